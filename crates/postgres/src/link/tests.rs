//! What giving up must not throw away.

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
