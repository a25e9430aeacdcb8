//! etcd: three members on loopback, each of which waits for the disk at every write.

use tenure_testkit::servers::etcd as kit;

use super::{Calls, Server};

pub(super) struct Etcd {
    cluster: kit::EtcdCluster,
    url: String,
}

impl Etcd {
    pub(super) fn start() -> Self {
        let cluster = kit::EtcdCluster::start_with(kit::EtcdOptions::new().loopback().disk());
        Etcd { url: cluster.url(), cluster }
    }
}

impl Server for Etcd {
    fn url(&self) -> &str {
        &self.url
    }

    fn what(&self) -> String {
        let version = self.cluster.ctl(&["version"]);
        let version = version.lines().find_map(|line| line.strip_prefix("etcdctl version: ")).unwrap_or("?").to_owned();
        format!("etcd {version}, three members on loopback, fsync")
    }

    /// Messages that clients sent, also those on streams; the members have a port of their own for each other.
    fn calls(&mut self) -> Result<Calls, String> {
        let mut calls = Calls::new();
        for member in self.cluster.members() {
            for (method, count) in member.metrics().lines().filter_map(parse_received) {
                *calls.entry(method).or_default() += count;
            }
        }
        Ok(calls)
    }

    fn clear(&mut self) -> Result<(), String> {
        // Whoever was here has been killed, and his leases last on; without keys they cost nothing.
        self.cluster.ctl(&["del", "", "--from-key"]);
        Ok(())
    }
}

/// `grpc_server_msg_received_total{grpc_method="Txn",…} 12`.
fn parse_received(line: &str) -> Option<(String, u64)> {
    let rest = line.strip_prefix("grpc_server_msg_received_total{grpc_method=\"")?;
    let (method, rest) = rest.split_once('"')?;
    let count = rest.rsplit_once(' ')?.1.parse::<f64>().ok()? as u64;
    (count > 0).then(|| (method.to_owned(), count))
}

#[cfg(test)]
mod tests {
    #[test]
    fn methods_are_counted_by_name() {
        let line =
            r#"grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12"#;
        assert_eq!(super::parse_received(line), Some(("Txn".to_owned(), 12)));
        assert_eq!(super::parse_received("grpc_server_msg_sent_total{grpc_method=\"Txn\"} 1"), None);
    }
}
