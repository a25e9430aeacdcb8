//! A majority of five keeps the promises of one: the whole suite over a quorum of memory nodes, with fencing and without.

use std::sync::Arc;

use tenure_core::Backend;
use tenure_core::memory::Memory;
use tenure_core::quorum::{Quorum, Settings};
use tenure_testkit::Harness;

struct Five(Vec<Memory>);

impl Five {
    fn quorum(&self, fencing: bool) -> Arc<dyn Backend> {
        let mut settings = Settings::default();
        settings.fencing = fencing;
        let nodes = self.0.iter().map(Memory::node).collect();
        Arc::new(Quorum::new(nodes, settings).expect("five nodes are a quorum"))
    }
}

impl Harness for Five {
    async fn start() -> Self {
        Five((0..5).map(|_| Memory::new()).collect())
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        self.quorum(false)
    }

    async fn residue(&self) -> usize {
        self.0.iter().map(Memory::residue).sum()
    }

    fn numbers_readers_apart(&self) -> bool {
        false
    }
}

/// The same with tokens that are written back.
struct Fenced(Five);

impl Harness for Fenced {
    async fn start() -> Self {
        Fenced(Five::start().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        self.0.quorum(true)
    }

    async fn residue(&self) -> usize {
        self.0.residue().await
    }

    fn numbers_readers_apart(&self) -> bool {
        self.0.numbers_readers_apart()
    }
}

tenure_testkit::conformance!(quorum => super::Five);
tenure_testkit::conformance!(fenced => super::Fenced);
