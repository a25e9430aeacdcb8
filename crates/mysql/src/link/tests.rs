//! What a request must never hide, and what giving up must not throw away.

use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::{AtHome, in_time};

use super::*;
use crate::error::code;

async fn conn() -> Conn {
    let settings = Settings::from_url(&MariaDb::shared().url().parse().unwrap()).unwrap();
    Conn::new(settings.options().unwrap()).await.unwrap()
}

#[tokio::test]
async fn an_error_in_a_later_result_is_an_error() {
    let mut conn = conn().await;
    for text in
        ["SELECT 1; SELECT * FROM nowhere", "DO 1; SELECT * FROM nowhere; DO 1", "SELECT 1; SELECT 2; SELECT * FROM nowhere"]
    {
        let failure = read_all(&mut conn, text).await.expect_err(text);
        assert_eq!(code(&failure), Some(1146), "{text}: {failure}");
        assert_eq!(read_all(&mut conn, "SELECT 7").await.unwrap().len(), 1, "and the connection goes on");
    }
    let sets = read_all(&mut conn, "DO 1; SELECT 1; DO 2; SELECT 2, 3 UNION SELECT 4, 5").await.unwrap();
    assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2], "only what has columns");
}

/// A renewal is given up after a sixth of its ttl; where making a connection takes longer, the next one goes on with it.
#[tokio::test]
async fn one_that_is_half_made_is_finished_for_the_next() {
    let server = MariaDb::shared();
    let proxy = Proxy::start(server.address());
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let url = format!("{url}?connect_limit=60s"); // one that takes too long would be begun anew
    let settings = Arc::new(Settings::from_url(&url.parse().unwrap()).unwrap());
    let shared = Arc::new(Shared::default());
    shared.attach(Arc::new(AtHome(Handle::current())));
    let link = Link::new(&settings, &shared, true);
    proxy.set(Which::All, Fault::Hold(Toward::Both));
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(20), link.server()).await;
        assert!(given_up.is_err(), "nobody answers");
    }
    proxy.heal();
    in_time("it is made", link.server()).await.unwrap();
    assert_eq!(proxy.counters().connections, 1);
}

/// The short way is prepared, and does not wait all the same; what is sent after it waits as it did before.
#[tokio::test]
async fn what_is_to_be_done_at_once_waits_for_nobody() {
    const LIMIT: &str = "SELECT @@innodb_lock_wait_timeout";
    let settings = Arc::new(Settings::from_url(&MariaDb::shared().url().parse().unwrap()).unwrap());
    let link = Link::new(&settings, &Arc::default(), false);
    let mut other = conn().await;
    other.query_drop("CREATE OR REPLACE TABLE at_once (id INT PRIMARY KEY, n BIGINT) ENGINE = InnoDB").await.unwrap();
    other.query_drop("INSERT INTO at_once VALUES (1, 0)").await.unwrap();
    let text = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR UPDATE at_once SET n = LAST_INSERT_ID(?) WHERE id = 1";
    let write = |n: u64| link.write("writing", move |_| Some(Statement { text, values: vec![n.into()] }));
    let limit = link.send("looking", |_| LIMIT.to_owned()).await.unwrap();

    assert_eq!(write(7).await.unwrap(), Some((1, 7)));
    other.query_drop("BEGIN").await.unwrap();
    other.query_drop("SELECT * FROM at_once FOR UPDATE").await.unwrap();
    assert_eq!(write(8).await.unwrap(), None, "whoever waits is given up after a while, and that is an error");
    other.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(write(9).await.unwrap(), Some((1, 9)));
    let after = link.send("looking", |_| LIMIT.to_owned()).await.unwrap();
    assert_eq!(crate::verbs::number(&after[0][0], 0), crate::verbs::number(&limit[0][0], 0));
    other.query_drop("DROP TABLE at_once").await.unwrap();
}

/// Where nothing can be prepared it is not tried again, and everything else goes on.
#[tokio::test]
async fn what_cannot_be_prepared_is_not_tried_again() {
    let settings = Arc::new(Settings::from_url(&MariaDb::shared().url().parse().unwrap()).unwrap());
    let link = Link::new(&settings, &Arc::default(), false);
    for text in ["DO 1", "PREPARE s FROM 'DO 1'", "DO 1"] {
        let done = link.write("writing", |_| Some(Statement { text, values: Vec::new() })).await.unwrap();
        let prepares = link.place.lock().await.live.as_ref().unwrap().prepares;
        assert_eq!(done.is_some(), prepares, "{text}");
    }
    assert!(!link.place.lock().await.live.as_ref().unwrap().prepares);
    assert_eq!(link.send("looking", |_| "SELECT 7".to_owned()).await.unwrap().len(), 1);
}
