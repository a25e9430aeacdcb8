//! Waits, as a session's server sees them.

use tenure_core::{Mode, StoreUrl};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tenure_testkit::{claim, in_time};

use super::*;
use crate::config::Settings;

/// Some sessions, with the tables they need.
async fn sessions(server: &MariaDb) -> [Arc<Locks>; 2] {
    let url: StoreUrl = format!("{}?liveness=session", server.url()).parse().unwrap();
    drop(crate::connect(&url).await.unwrap());
    let settings = Arc::new(Settings::from_url(&url).unwrap());
    let texts = Arc::new(Texts::new("tenure_", "tenure".to_owned()));
    let in_vain = Arc::new(InVain::new());
    let open = async || {
        let wire = Wire::connect(&settings).await.unwrap();
        Arc::new(Locks::begin(wire, 7, (&texts, &in_vain), Dialect::MariaDb, Duration::from_secs(64)).await.unwrap())
    };
    [open().await, open().await]
}

/// How many rows there are, and how many locks: of a name, of a kind, and of what is not shown yet.
fn left(server: &MariaDb) -> (String, String) {
    let rows = server.sql("SELECT COUNT(*) FROM tenure_session").remove(0).remove(0);
    server.try_sql("INSTALL SONAME 'metadata_lock_info'").ok();
    let locks = "SELECT COUNT(*) FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock'";
    (rows, server.sql(locks).remove(0).remove(0))
}

fn held(token: Token, shown: bool) -> Held {
    Held { token, mode: Mode::Exclusive, age: Duration::ZERO, shown }
}

/// A short wait is shown to nobody, a long one is; both leave nothing.
#[tokio::test]
async fn a_wait_is_shown_when_it_lasts() {
    let server = MariaDb::start(MariaDbOptions::new());
    let [one, two] = sessions(&server).await;
    let (first, second) = (claim(Kind::Mutex, 1), claim(Kind::Mutex, 2));
    let Some(Waited { token, shown: false }) = one.wait(&first, None).await.unwrap() else { panic!("nobody was there") };
    assert_eq!(left(&server), ("0".into(), "3".into()));

    assert_eq!(two.wait(&second, Some(Duration::from_millis(1))).await.unwrap(), None);
    two.give_up(&second).await.unwrap();
    let waiting = tokio::spawn(async move { (two.wait(&second, None).await, two, second) });
    while left(&server).0 != "1" {
        tokio::task::yield_now().await; // until it is shown
    }
    one.unlock(&first, held(token, false)).await.unwrap();
    let (waited, two, second) = in_time("it is let in", waiting).await.unwrap();
    let Some(Waited { token: higher, shown: true }) = waited.unwrap() else { panic!("it was shown") };
    assert!(higher > token);
    two.unlock(&second, held(higher, true)).await.unwrap();
    assert_eq!(left(&server), ("0".into(), "0".into()));
}

/// Whoever is told to stop waiting stops, in the moment in which it is shown to nobody and later.
#[tokio::test]
async fn a_wait_that_is_interrupted_ends() {
    let server = MariaDb::start(MariaDbOptions::new());
    let [one, two] = sessions(&server).await;
    one.wait(&claim(Kind::Mutex, 1), None).await.unwrap().unwrap();
    let (long, claim) = (Duration::from_secs(600), claim(Kind::Mutex, 2));
    let moment = two.texts.wait_a_moment(two.dialect, two.conn, &claim, long).unwrap();
    for text in [moment, two.texts.wait(two.dialect, two.client, &claim, Some(long))] {
        let waiting = Arc::clone(&two);
        let waiting = tokio::spawn(async move { waiting.tried(&waiting.wire.wait("testing", text).await?, "testing") });
        let waits = format!("SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {} AND STATE = 'User lock'", two.conn);
        while server.sql(&waits).is_empty() {
            tokio::task::yield_now().await;
        }
        server.sql(&format!("KILL QUERY {}", two.conn));
        in_time("it is interrupted", waiting).await.unwrap().expect_err("nobody let go");
        two.give_up(&claim).await.unwrap();
    }
    assert_eq!(left(&server), ("0".into(), "3".into()), "what the first one has");
}
