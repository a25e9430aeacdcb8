//! What a store's author writes to have the suite run over it.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::memory::Memory;
use tenure_core::{Backend, Client, Environment, Error, ErrorKind, Result};

/// A store to be tested. Every case gets a fresh one, so cases run side by side.
pub trait Harness: Send + Sync + Sized + 'static {
    /// A fresh store that shares nothing with any other. Called inside a tokio runtime.
    fn start() -> impl Future<Output = Self> + Send;

    /// A new, independent backend of it: what one client in one process would have.
    fn backend(&self) -> impl Future<Output = Arc<dyn Backend>> + Send;

    /// How much there is in the store right now, in whatever the store counts: names, rows, keys, waiters. Must be 0 for
    /// a store that nobody has used yet, and must get there again.
    fn residue(&self) -> impl Future<Output = usize> + Send;

    /// How many leases or sessions clients have in the store, where it counts them apart from what they hold. Must get to 0 once every
    /// client is closed.
    fn leases(&self) -> impl Future<Output = usize> + Send {
        ready(0)
    }

    /// Where another process finds this store; `None` if it cannot, and then its abilities must say `Reach::Process`.
    fn url(&self) -> Option<String> {
        None
    }

    /// A backend in another process of the store at this URL, which is what [`url`](Harness::url) gave there.
    fn open(url: &str) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send {
        let refusal = format!("this harness has no way to open {url} in another process");
        ready(Err(Error::new(ErrorKind::BadUrl, refusal)))
    }

    /// Whether an ask that leaves first comes first. Over a network that loses requests it may have to be sent again, and then
    /// stands behind others: nothing can be said of the order of asks.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Whether readers that enter at the same time have different numbers: not where each of several nodes counts for itself.
    fn numbers_readers_apart(&self) -> bool {
        true
    }

    /// Whether a holder is told at once what others do to its hold. Else it looks now and then.
    fn tells_holders(&self) -> bool {
        true
    }

    /// Whether everybody who is seen to wait for `name` is skipped soon if it dies: a store may need another step for that after it
    /// noted a newcomer, and who dies in between stays in line for its ttl. Asked of a name that one exclusive claim has.
    fn is_settled(&self, name: &str) -> impl Future<Output = bool> + Send {
        let _ = name;
        ready(true)
    }

    /// Which names every one of which is a lock of its own here: fewer where the layout is that of another program.
    fn names(&self) -> Vec<String> {
        crate::names::corpus()
    }

    /// Whether names in use can be listed. Else a list is refused as `Unsupported`.
    fn lists(&self) -> bool {
        true
    }

    /// Does something bad to the store; `false` if this store cannot be treated like that.
    fn sabotage(&self, how: Sabotage) -> impl Future<Output = bool> + Send {
        let _ = how;
        ready(false)
    }

    /// A client of its own.
    fn client(&self) -> impl Future<Output = Client> + Send {
        async { client_of(self.backend().await) }
    }
}

/// What can be done to a server. Stores without one leave it alone.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Sabotage {
    /// Stop answering for so long, then go on.
    Pause(Duration),
    /// Cut every connection there is now.
    Cut,
    /// Kill the server and start it again with what it kept.
    Restart,
}

/// A client with its own keeper, in the real world.
pub(crate) fn client_of(backend: Arc<dyn Backend>) -> Client {
    Client::with_environment(backend, Environment::real()).expect("a client can be made")
}

/// The memory store under test.
#[derive(Clone)]
pub struct MemoryHarness(Memory);

impl Harness for MemoryHarness {
    async fn start() -> Self {
        MemoryHarness(Memory::new())
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.backend())
    }

    async fn residue(&self) -> usize {
        self.0.residue()
    }
}
