//! F40: a cluster with no space left takes nothing new, and says so; what is there can still be let go.

use std::io::Write as _;
use std::process::Stdio;

use tenure_core::ErrorKind;
use tenure_core::backend::Level;
use tenure_testkit::in_time;
use tenure_testkit::servers::etcd::{EtcdCluster, EtcdOptions};

use crate::stage::{LONG, patient, residue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cluster_says_so_and_lets_go() {
    let cluster = EtcdCluster::start_with(EtcdOptions::new().loopback().quota(2 << 20));
    let client = patient(&cluster).await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let filler = vec![b'x'; 512 << 10];
    let full = (0..64).any(|number| {
        let mut put = cluster.etcdctl(&["put", &format!("filler/{number}")]);
        let mut put = put.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        put.stdin.take().unwrap().write_all(&filler).unwrap();
        let said = put.wait_with_output().unwrap().stderr; // in an election it says something else, and that is not it
        String::from_utf8_lossy(&said).contains("space exceeded")
    });
    assert!(full, "its quota is reached");
    let refused = in_time("an answer", client.mutex("y").unwrap().ttl(LONG).unwrap().lock()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    assert!(refused.to_string().contains("space") && refused.to_string().contains("etcdctl defrag"), "{refused}");
    let findings = client.examine().await.unwrap();
    let alarm = findings.iter().find(|finding| finding.what == "alarms").expect("it is looked at");
    assert!(alarm.level == Level::Bad && alarm.says.contains("NOSPACE"), "{alarm:?}");
    held.check().unwrap();
    in_time("the release", held.release()).await.unwrap();
    assert!(residue(&cluster).is_empty(), "it can be let go");
}
