//! A fence for one process: as good as the process is the resource, and gone with it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Fence, Rule, Verdict, storable};
use crate::backend::async_trait;
use crate::{LockName, Result, Token};

/// A fence in this process's memory: for tests, and for resources that live no longer than the process does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::fence::{Fence as _, MemoryFence, Rule, Verdict};
/// use tenure_core::{LockName, Token};
/// let (fence, name) = (MemoryFence::new(), LockName::new("account/7")?);
/// assert_eq!(fence.advance(&name, Token::new(34), Rule::ANY).await?, Verdict::Accepted);
/// assert_eq!(fence.advance(&name, Token::new(33), Rule::ANY).await?, Verdict::Stale { highest: Token::new(34) });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryFence(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept {
    marks: Mutex<HashMap<LockName, Token>>,
    probed: AtomicU64,
}

impl MemoryFence {
    /// A fence that has seen nothing.
    pub fn new() -> Self {
        MemoryFence::default()
    }

    /// The process's fence of this name: what `memory://NAME` opens. It stays until the process ends: a fence that forgot
    /// because nobody used it for a while would be none.
    pub fn shared(name: &str) -> Self {
        static FENCES: OnceLock<Mutex<HashMap<String, MemoryFence>>> = OnceLock::new();
        let mut fences = FENCES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        fences.entry(name.to_owned()).or_default().clone()
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<LockName, Token>> {
        self.0.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Fence for MemoryFence {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    async fn advance(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        storable(token)?;
        let mut marks = self.marks();
        let verdict = Verdict::of(marks.get(name).copied(), token, rule);
        if verdict.is_accepted() {
            marks.insert(name.clone(), token);
        }
        Ok(verdict)
    }

    async fn highest(&self, name: &LockName) -> Result<Option<Token>> {
        Ok(self.marks().get(name).copied())
    }

    async fn probe(&self, number: u64) -> Result<()> {
        self.0.probed.store(number, Ordering::Relaxed);
        Ok(())
    }
}
