//! A network that takes its time: every answer comes late, and nothing is lost.

use std::time::Duration;

use tenure_core::Instant;
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, leaves_nothing, lets_go, line_is};

/// From one continent to another.
const FAR: Duration = Duration::from_millis(150);

/// Whoever is let in after a wait holds on what is left of the short lease of those who wait, until a renewal that takes several answers,
/// one after the other, has moved it to its own. A machine that stands still may lose it, once; a network that is slow may not, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_handed_over_is_kept() {
    let stage = Stage::new();
    let (holder, far) = (stage.direct().await, stage.proxied(LONG).await);
    stage.proxy.set(Which::All, Fault::Delay(Toward::Client, FAR));
    let waiters_looked = || {
        let keys = stage.cluster.ctl(&["get", "--prefix", "--sort-by", "CREATE", "-w", "fields", "tenure/lock/x "]);
        keys.lines().filter_map(|line| line.strip_prefix("\"Version\" : ")).skip(1).all(|version| version != "1")
    };
    for left in (0..5).rev() {
        let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let mutex = far.mutex("x").unwrap().ttl(LONG).unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        line_is(&holder, "x", 1).await;
        eventually("it has looked at whom it waits for, and is on the short lease", waiters_looked).await;
        held.release().await.unwrap();
        let next = in_time("it is let in", waiting).await.unwrap().unwrap();
        let is_moved = || next.valid_until() > Instant::now() + LONG / 2;
        eventually("it has its whole ttl, or is lost", || is_moved() || next.check().is_err()).await;
        let is_kept = next.check().is_ok();
        lets_go(next.release().await);
        if is_kept {
            break;
        }
        assert!(left > 0, "it is lost each time");
    }
    stage.proxy.heal();
    leaves_nothing(&stage.cluster, [holder, far]).await;
}
