//! What giving up must not throw away, and what is prepared.

use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::postgres::Postgres;
use tenure_testkit::{AtHome, in_time};

use super::*;

/// A renewal is given up after a sixth of its ttl; where making a connection takes longer, the next one goes on with it.
#[tokio::test]
async fn one_that_is_half_made_is_finished_for_the_next() {
    let server = Postgres::shared();
    let proxy = Proxy::start(server.address());
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let url = format!("{url}?connect_limit=60s"); // one that takes too long would be begun anew
    let settings = Arc::new(Settings::from_url(&url.parse().unwrap()).unwrap());
    let listener: Arc<dyn Listener> = Arc::new(AtHome(Handle::current()));
    let link = Link::new(&settings, &listener, true);
    proxy.set(Which::All, Fault::Hold(Toward::Both));
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(20), link.live()).await;
        assert!(given_up.is_err(), "nobody answers");
    }
    proxy.heal();
    in_time("it is made", link.live()).await.unwrap();
    assert_eq!(proxy.counters().connections, 1);
}

/// What comes often is prepared; and a server that has forgotten it, is asked all the same.
#[tokio::test]
async fn what_is_prepared_may_be_forgotten() {
    let server = Postgres::shared();
    let settings = Arc::new(Settings::from_url(&server.url().parse().unwrap()).unwrap());
    let listener: Arc<dyn Listener> = Arc::new(AtHome(Handle::current()));
    let link = Link::new(&settings, &listener, true);
    let live = link.live().await.unwrap();
    live.batch("CREATE FUNCTION pg_temp.twice(n int8) RETURNS int8 LANGUAGE sql RETURN 2 * n", "preparing").await.unwrap();
    let twice = async |n: i64| {
        let request = Request::new("SELECT pg_temp.twice($1)").arg(n, Type::INT8);
        let rows = live.send_prepared(&request, "trying").await.unwrap();
        rows[0].get::<_, i64>(0)
    };
    let prepared = async || {
        let rows = live.read("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%twice%'", "looking").await;
        rows.unwrap()[0].get::<_, i64>(0)
    };
    for n in 0..20 {
        assert_eq!(twice(n).await, 2 * n);
    }
    assert_eq!(prepared().await, 1);
    live.batch("DEALLOCATE ALL", "forgetting").await.unwrap();
    for n in 0..20 {
        assert_eq!(twice(n).await, 2 * n);
    }
    assert_eq!(prepared().await, 1, "and prepared once more");
}
