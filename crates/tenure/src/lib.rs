//! Distributed locks on the store you already run.
pub use tenure_core::*;
