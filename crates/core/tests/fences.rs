//! The suite every fence must pass, over memory.

use std::sync::Arc;

use tenure_core::fence::{Fence, MemoryFence};
use tenure_testkit::fences::FenceHarness;

struct Memory(MemoryFence);

impl FenceHarness for Memory {
    async fn start() -> Self {
        Memory(MemoryFence::new())
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        Arc::new(self.0.clone())
    }
}

tenure_testkit::fences!(memory => Memory);
