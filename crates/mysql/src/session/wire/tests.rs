//! Statements that go together: each gets its own answer, in order, whatever comes of the others.

use tenure_testkit::in_time;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tokio::task::JoinHandle;

use super::*;
use crate::verbs::{number, text};

async fn wire_to(server: &MariaDb) -> Arc<Wire> {
    let settings = Arc::new(Settings::from_url(&server.url().parse().unwrap()).unwrap());
    Arc::new(Wire::connect(&settings).await.unwrap())
}

async fn wire() -> Arc<Wire> {
    wire_to(MariaDb::shared()).await
}

fn send_one(wire: &Arc<Wire>, text: &str) -> JoinHandle<Result<Rows, Failure>> {
    let (wire, text) = (Arc::clone(wire), text.to_owned());
    tokio::spawn(async move { wire.send_one("testing", text).await })
}

/// Until so many wait in the queue.
async fn queued(wire: &Wire, many: usize) {
    while wire.queue.len() != many {
        tokio::task::yield_now().await;
    }
}

async fn answer(asked: JoinHandle<Result<Rows, Failure>>) -> Result<Rows, Failure> {
    in_time("it is answered", asked).await.unwrap()
}

fn first(rows: &Rows) -> i64 {
    number(&rows[0][0], 0).unwrap()
}

/// Has the server busy with one statement, which only its interruption ends.
async fn keep_busy(wire: &Arc<Wire>) -> (JoinHandle<Result<Rows, Failure>>, i64) {
    let id = first(&wire.send_one("testing", "SELECT CONNECTION_ID()".to_owned()).await.unwrap());
    let before = wire.queue.last();
    let sleeps = send_one(wire, "SELECT SLEEP(600)");
    while wire.queue.len() != 0 || wire.queue.last() == before {
        tokio::task::yield_now().await;
    }
    (sleeps, id)
}

/// Ends what a session does: a sleep then says that it was interrupted.
async fn interrupt(id: i64) {
    let other = wire().await;
    let is_asleep = format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {id} AND STATE = 'User sleep'");
    while first(&other.send_one("testing", is_asleep.clone()).await.unwrap()) == 0 {}
    other.send("testing", format!("KILL QUERY {id}")).await.unwrap();
}

/// Those that are asked while the server is busy wait side by side, and go together when it is done.
#[tokio::test]
async fn each_has_its_own_answer() {
    let wire = wire().await;
    let (sleeps, id) = keep_busy(&wire).await;
    let before = send_one(&wire, "SELECT @n := 1");
    queued(&wire, 1).await;
    let bad = send_one(&wire, "SELECT * FROM nowhere");
    queued(&wire, 2).await;
    let behind = send_one(&wire, "SELECT @n := @n + 1");
    queued(&wire, 3).await;
    let dropped = send_one(&wire, "SELECT @n := 1000");
    queued(&wire, 4).await;
    dropped.abort();
    queued(&wire, 3).await;
    let alone = {
        let wire = Arc::clone(&wire);
        tokio::spawn(async move { wire.send("testing", "SET @n = @n + 1; SELECT @n; SELECT @n + 100".to_owned()).await })
    };
    queued(&wire, 4).await;
    let last = send_one(&wire, "SELECT @n := @n + 1");
    queued(&wire, 5).await;
    interrupt(id).await;
    let _ = answer(sleeps).await; // a row or an error, as the server likes

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

/// Whoever asked is dropped: what stands behind is answered all the same. And when the session ends, all of them hear it.
#[tokio::test]
async fn nobody_is_forgotten() {
    let wire = wire().await;
    let (gone, id) = keep_busy(&wire).await;
    let behind = send_one(&wire, "SELECT 7");
    queued(&wire, 1).await;
    gone.abort();
    interrupt(id).await;
    assert_eq!(first(&answer(behind).await.unwrap()), 7);

    let (sleeps, _) = keep_busy(&wire).await;
    let waits = send_one(&wire, "SELECT 8");
    queued(&wire, 1).await;
    wire.close();
    for task in [sleeps, waits, send_one(&wire, "SELECT 9")] {
        let failure = answer(task).await.unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Unavailable);
    }
}

/// A session that the server ends is heard of at once, without asking anything of it.
#[tokio::test]
async fn its_end_is_heard() {
    let wire = wire().await;
    let ended = wire.ended();
    let id = first(&wire.send_one("testing", "SELECT CONNECTION_ID()".to_owned()).await.unwrap());
    assert!(wire.is_open());
    self::wire().await.send("testing", format!("KILL {id}")).await.unwrap();
    in_time("it is over", ended).await;
    assert!(!wire.is_open());
}

/// What is larger than a packet goes in parts, both ways.
#[tokio::test]
async fn large_ones() {
    const MANY: usize = 20 << 20;
    let server = MariaDb::start(MariaDbOptions::new().set("max_allowed_packet", "64M"));
    let wire = wire_to(&server).await;
    let sets =
        wire.send_one("testing", format!("SELECT LENGTH('{}'), REPEAT('y', {MANY})", "x".repeat(MANY))).await.unwrap();
    assert_eq!(number(&sets[0][0], 0), Some(MANY as i64));
    assert_eq!(text(&sets[0][0], 1), "y".repeat(MANY));
    assert_eq!(first(&wire.send_one("testing", "SELECT 7".to_owned()).await.unwrap()), 7);
}
