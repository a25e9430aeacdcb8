//! The client's side of the lease stores keeps every promise without messages, and over a bad network; real servers show the rest.

mod desk;

use std::sync::Arc;
use std::time::Duration;

use desk::{Fortune, Server, Weather};
use tenure_core::lease::Lease;
use tenure_core::{Backend, Client};
use tenure_testkit::{Harness, in_time};

macro_rules! harness {
    ($harness:ident, $weather:expr) => {
        struct $harness(Arc<Server>);

        impl Harness for $harness {
            async fn start() -> Self {
                $harness(Server::new($weather))
            }

            async fn backend(&self) -> Arc<dyn Backend> {
                Arc::new(Lease::new(self.0.desk()))
            }

            async fn residue(&self) -> usize {
                self.0.residue()
            }

            fn keeps_order(&self) -> bool {
                $weather != Weather::Foul
            }
        }
    };
}

harness!(Mute, Weather::Mute);
harness!(Foul, Weather::Foul);

tenure_testkit::conformance!(mute => Mute);
tenure_testkit::conformance!(foul => Foul);

/// Whoever is ready to wait does not give up because somebody's transaction has the name while an earlier copy of its ask is
/// still on its way.
#[tokio::test]
async fn a_transaction_in_the_way_and_a_lost_ask_are_waited_for() {
    let server = Server::new(Weather::Fair);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    server.next.lock().unwrap().extend([Fortune::Lost, Fortune::Locked, Fortune::Locked]);
    let mutex = client.mutex("x").unwrap();
    let held = in_time("it gets in", mutex.try_lock_for(Duration::from_secs(3_600))).await.unwrap();
    held.expect("there was an hour").release().await.unwrap();
    // Out of time meanwhile, nothing of it stays.
    server.next.lock().unwrap().extend([Fortune::Lost].into_iter().chain([Fortune::Locked; 1_000]));
    assert!(mutex.try_lock_for(Duration::from_millis(20)).await.unwrap().is_none());
    server.next.lock().unwrap().clear();
    mutex.try_lock().await.unwrap().expect("nobody has it").release().await.unwrap();
}
