//! Names that stay closed though nobody holds them: to the client that had them as to everybody else.

use tenure_testkit::{Options as _, Shape, in_time};

use crate::stage::{LONG, Stage, leaves_nothing, line_is};

/// After a break the lock-delay is for the client too whose hold was broken: it does not take what keeps the name closed for its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_the_client_whose_hold_was_broken() {
    let stage = Stage::new();
    let (one, other) = (stage.direct().await, stage.direct().await);
    for shape in Shape::ALL {
        let lock = shape.make(&one, "x").unwrap().ttl(LONG).unwrap().lock_delay(LONG).unwrap();
        let lock = lock.keep(false); // so it is let in for all of its ttl: a pause after the hand-over does not lose it
        let held = lock.lock().await.unwrap();
        assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
        in_time("the holder is told", held.lost()).await;
        assert!(lock.try_lock().await.unwrap().is_none(), "{shape:?} opened too early");
        let waiting = async { in_time("it opens", lock.lock()).await.unwrap() };
        let opening = async {
            line_is(&other, "x", 1).await;
            assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
        };
        let (next, ()) = tokio::join!(waiting, opening);
        next.release().await.unwrap();
    }
    leaves_nothing(&stage.cluster, [one, other]).await;
}
