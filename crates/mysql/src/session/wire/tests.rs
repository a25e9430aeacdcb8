//! Statements that go together: each gets its own answer, in order, whatever comes of the others.

use tenure_testkit::in_time;
use tenure_testkit::servers::mariadb::MariaDb;
use tokio::task::JoinHandle;

use super::*;
use crate::verbs::number;

async fn wire() -> Wire {
    let settings = Arc::new(Settings::from_url(&MariaDb::shared().url().parse().unwrap()).unwrap());
    let conn = Conn::new(settings.options().unwrap()).await.unwrap();
    Wire::new(&settings, conn)
}

async fn answer(asked: JoinHandle<Result<Rows, Failure>>) -> Result<Rows, Failure> {
    in_time("it is answered", asked).await.unwrap()
}

fn first(rows: &Rows) -> i64 {
    number(&rows[0][0], 0).unwrap()
}

/// Those that are asked while one has the connection wait side by side, and go together when it is done.
#[tokio::test]
async fn each_has_its_own_answer() {
    let wire = Arc::new(wire().await);
    let held = Arc::clone(&wire.conn).lock_owned().await;
    let one = |text: &str| {
        let (wire, text) = (Arc::clone(&wire), text.to_owned());
        tokio::spawn(async move { wire.send_one("testing", text).await })
    };
    let waits_for = |many: usize| {
        let queue = Arc::clone(&wire.queue);
        async move {
            while queue.lock().1.len() != many {
                tokio::task::yield_now().await;
            }
        }
    };

    let before = one("SELECT @n := 1");
    waits_for(1).await;
    let bad = one("SELECT * FROM nowhere");
    waits_for(2).await;
    let behind = one("SELECT @n := @n + 1");
    waits_for(3).await;
    let dropped = one("SELECT @n := 1000");
    waits_for(4).await;
    dropped.abort();
    waits_for(3).await;
    let alone = {
        let wire = Arc::clone(&wire);
        tokio::spawn(async move { wire.send("testing", "SET @n = @n + 1; SELECT @n; SELECT @n + 100".to_owned()).await })
    };
    waits_for(4).await;
    let last = one("SELECT @n := @n + 1");
    waits_for(5).await;
    drop(held);

    assert_eq!(first(&answer(before).await.unwrap()), 1);
    assert!(answer(bad).await.unwrap_err().error.to_string().contains("nowhere"));
    assert_eq!(
        first(&answer(behind).await.unwrap()),
        2,
        "it was not executed with the one that failed, and once afterwards"
    );
    let sets = answer(alone).await.unwrap();
    assert_eq!((sets.len(), first(&sets)), (2, 3), "what is sent alone may answer as it likes");
    assert_eq!(first(&answer(last).await.unwrap()), 4, "and whoever was dropped in the queue was not sent");
}

/// Whoever sends for the others is dropped: theirs is answered all the same. And when the session ends, all of them hear it.
#[tokio::test]
async fn nobody_is_forgotten() {
    let wire = Arc::new(wire().await);
    let send = |text: &'static str| {
        let wire = Arc::clone(&wire);
        tokio::spawn(async move { wire.send_one("testing", text.to_owned()).await })
    };
    let held = Arc::clone(&wire.conn).lock_owned().await;
    let leader = send("SELECT SLEEP(0.2)");
    tokio::task::yield_now().await;
    let follower = send("SELECT 7");
    tokio::task::yield_now().await;
    assert_eq!(wire.queue.lock().1.len(), 2);
    drop(held);
    while !wire.queue.lock().1.is_empty() {
        tokio::task::yield_now().await;
    }
    leader.abort();
    assert_eq!(first(&answer(follower).await.unwrap()), 7);

    let (sleeps, waits) = (send("SELECT SLEEP(600)"), send("SELECT 8"));
    while wire.conn.try_lock().is_ok() {
        tokio::task::yield_now().await; // until it sleeps
    }
    wire.close();
    for task in [sleeps, waits] {
        let failure = answer(task).await.unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Unavailable);
    }
}
