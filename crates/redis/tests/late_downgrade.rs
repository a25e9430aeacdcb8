//! A downgrade that is stuck in a connection until its holder has released and is the writer anew:
//! it arrives, and does nothing.

use std::time::Duration;

use tenure_core::{Client, Guard, Mode};
use tenure_testkit::proxy::{Fault, FaultId, Proxy, Toward, Which};
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{eventually, in_time};

use self::stage::{LONG, calls, client, leaves_nothing};

// The same stage as the faults', of which this binary uses a part.
#[expect(dead_code, reason = "the faults use the rest")]
#[path = "faults/stage.rs"]
mod stage;

/// After this long without an answer a connection counts as stuck, and what is asked next takes
/// another one.
const STUCK: Duration = Duration::from_millis(100);

/// The writer. The connection that has asked for it has also sent `beacon`, which nobody else
/// names.
async fn writer(client: &Client) -> Guard {
    client.rw_lock("beacon").unwrap().write().await.unwrap().release().await.unwrap();
    client.rw_lock("x").unwrap().ttl(LONG).unwrap().keep(false).write().await.unwrap()
}

/// Begins a downgrade, which gets stuck on its way to the server, and gives it up. `None` if it was
/// done all the same: a machine that stood still may have cost the holder that connection, so that
/// the request went by another.
async fn stuck_downgrade(proxy: &Proxy, held: &mut Guard) -> Option<FaultId> {
    let stuck = proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Server));
    let before = proxy.counters().requests;
    let is_done = tokio::select! {
        done = held.downgrade() => done.is_ok(),
        () = async {
            eventually("it asks", || proxy.counters().requests > before).await;
            tokio::time::sleep(STUCK).await;
        } => false,
    };
    if is_done {
        proxy.lift(stuck);
    }
    (!is_done).then_some(stuck)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_downgrade_lets_nobody_in() {
    let server = Redis::start(RedisOptions::new());
    let proxy = Proxy::start(server.address());
    let (one, other) = (client(&format!("redis://{}", proxy.address())).await, client(&server.url()).await);
    let stuck = loop {
        let mut held = writer(&one).await;
        let stuck = stuck_downgrade(&proxy, &mut held).await;
        assert_eq!(held.mode(), Mode::Shared, "it may be that, and so it is");
        in_time("the release", held.release()).await.unwrap();
        if let Some(stuck) = stuck {
            break stuck;
        }
    };
    let held = in_time("it is the writer anew", one.rw_lock("x").unwrap().ttl(LONG).unwrap().write()).await.unwrap();
    let before = calls(&server, "evalsha");
    proxy.lift(stuck);
    eventually("the downgrade arrives", || calls(&server, "evalsha") > before).await;
    assert!(other.rw_lock("x").unwrap().try_read().await.unwrap().is_none(), "the writer is inside");
    assert_eq!(other.view("x").await.unwrap().holders[0].mode, Mode::Exclusive);
    held.check().unwrap();
    held.release().await.unwrap();
    leaves_nothing(&server, [one, other]).await;
}
