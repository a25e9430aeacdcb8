//! The client's side of the lease stores keeps every promise: over a good network, without messages, and over a bad one.

mod desk;

use std::sync::Arc;

use desk::{Server, Weather};
use tenure_core::Backend;
use tenure_core::lease::Lease;
use tenure_testkit::Harness;

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
        }
    };
}

harness!(Fair, Weather::Fair);
harness!(Mute, Weather::Mute);
harness!(Foul, Weather::Foul);

tenure_testkit::conformance!(fair => Fair);
tenure_testkit::conformance!(mute => Mute);
tenure_testkit::conformance!(foul => Foul);
