//! A listener for tests of one connection: it hears nothing, and has a runtime that is always running.

use tenure_core::Instant;
use tenure_core::lease::{Listener, Message};
use tokio::runtime::Handle;

/// Somebody whose connections live on this runtime.
#[derive(Debug)]
pub struct AtHome(pub Handle);

impl Listener for AtHome {
    fn told(&self, _: Message) {}
    fn listening(&self) {}
    fn silenced(&self) {}
    fn connected(&self, _: &str, _: Instant, _: u64) {}
    fn home(&self) -> Option<Handle> {
        Some(self.0.clone())
    }
}
