//! Two MariaDBs that are one Galera cluster: both take writes, and each has what the other committed.

use std::path::Path;

use super::{MariaDb, MariaDbOptions};
use crate::servers::Port;
use crate::servers::process::demand;

/// A cluster of two. They end when dropped.
///
/// Who is killed leaves the other without a majority, and then that one refuses everything (error 1047) until the killed
/// one is back. Who is stopped says goodbye, and the other goes on alone.
pub struct Galera {
    nodes: Vec<MariaDb>,
    _ports: Vec<Ports>,
}

/// Beside the one for clients.
struct Ports {
    group: Port,
    missed: Port,
    whole: Port,
}

const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// What a node says 1 to when it takes part.
pub(super) const IS_SYNCED: &str = "SELECT COUNT(*) FROM information_schema.global_status \
     WHERE variable_name = 'wsrep_local_state_comment' AND variable_value = 'Synced'";

impl Galera {
    /// Starts both; returns when the second has got everything from the first.
    pub fn start() -> Self {
        demand(PROVIDER, "galera-4");
        demand("rsync", "rsync");
        demand("wsrep_sst_rsync", "mariadb-server");
        // Who joins and gives up leaves the first without a majority: then both begin anew, on other ports.
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt() {
                Ok(galera) => return galera,
                Err(log) => said = log,
            }
        }
        panic!("no cluster of Galera comes together:\n{said}")
    }

    /// Both.
    pub fn nodes(&self) -> &[MariaDb] {
        &self.nodes
    }

    fn attempt() -> Result<Self, String> {
        let ports: Vec<Ports> = (0..2).map(|_| Ports::reserve()).collect();
        let peers: Vec<String> = ports.iter().map(|ports| ports.group.address().to_string()).collect();
        let both = format!("gcomm://{}", peers.join(","));
        // The first founds the cluster, which is what an address of nobody means; should it come back, it joins.
        let first = MariaDb::attempt(&node(&ports[0], "gcomm://"))?;
        write_address(first.dir(), &both);
        let second = MariaDb::attempt(&node(&ports[1], &both))?;
        Ok(Galera { nodes: vec![first, second], _ports: ports })
    }
}

impl Ports {
    fn reserve() -> Self {
        Ports { group: Port::reserve(), missed: Port::reserve(), whole: Port::reserve() }
    }
}

fn node(ports: &Ports, cluster: &str) -> MariaDbOptions {
    let group = ports.group.address();
    let provider = format!("gmcast.listen_addr=tcp://{group};ist.recv_addr={}", ports.missed.address());
    let options = MariaDbOptions { galera: Some(cluster.to_owned()), ..MariaDbOptions::new() };
    options
        .set("wsrep_on", "ON")
        .set("wsrep_provider", PROVIDER)
        .set("wsrep_provider_options", &provider)
        .set("wsrep_cluster_name", "tenure")
        .set("wsrep_node_name", &format!("node-{}", group.port()))
        .set("wsrep_node_address", &group.to_string())
        .set("wsrep_sst_method", "rsync")
        .set("wsrep_sst_receive_address", &ports.whole.address().to_string())
        .set("binlog_format", "ROW")
        .set("innodb_autoinc_lock_mode", "2")
}

/// The one setting that is in a file, because it changes: whom to look for.
pub(super) fn write_address(dir: &Path, cluster: &str) {
    let text = format!("[mysqld]\nwsrep_cluster_address={cluster}\n");
    std::fs::write(dir.join(FILE), text).expect("the directory is ours");
}

/// Where that is.
pub(super) const FILE: &str = "galera.cnf";
