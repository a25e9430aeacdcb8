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
