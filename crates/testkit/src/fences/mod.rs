//! The suite every fence must pass: write a [`FenceHarness`] of a few lines, and [`fences!`](macro@crate::fences) makes one real test of
//! every promise for it.
//!
//! - `list`: the cases, which exist once; `cases`: what they do, compiled once for all stores
//! - `order`: whether what was accepted can have been in that order (pure); `racer`: a second process, to race and to be killed

mod cases;
mod list;
pub mod order;
mod racer;

use std::future::{Future, ready};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::fence::Fence;
use tenure_core::{Error, ErrorKind, Kind, LockName, Mode, Result, Sequencer, Token};

pub use self::list::{Case, boxed};
pub(crate) use self::racer::{Plan, Racer};

/// A fence to be tested. Every case gets a fresh one, so cases run side by side.
pub trait FenceHarness: Send + Sync + Sized + 'static {
    /// A fresh fence that has seen nothing. Called inside a tokio runtime.
    fn start() -> impl Future<Output = Self> + Send;

    /// The same on a server of its own, which may be killed; where there is none, like any other.
    fn start_alone() -> impl Future<Output = Self> + Send {
        Self::start()
    }

    /// The fence, opened anew: what another program would have.
    fn fence(&self) -> impl Future<Output = Arc<dyn Fence>> + Send;

    /// Where another process finds it; `None` if it cannot.
    fn url(&self) -> Option<String> {
        None
    }

    /// Opens it in another process, at what [`url`](FenceHarness::url) gave here.
    fn open(url: &str) -> impl Future<Output = Result<Arc<dyn Fence>>> + Send {
        let refusal = format!("this harness has no way to open {url} in another process");
        ready(Err(Error::new(ErrorKind::BadUrl, refusal)))
    }

    /// Kills the server with `kill -9` and starts it again; `false` if there is none.
    fn crash(&self) -> bool {
        false
    }
}

/// The sequencer of a mutex's holder.
pub fn writer(name: &str, token: u64) -> Sequencer {
    sequencer(name, Kind::Mutex, Mode::Exclusive, token)
}

/// Sequencers that must not pass a fence in a transaction that writes to what the lock `name` protects, however high their tokens
/// are, and what the error is.
pub fn strangers(name: &str, token: u64) -> [(Sequencer, ErrorKind); 3] {
    let some = Mode::Permits { take: NonZeroU32::MIN, of: NonZeroU32::new(2).expect("two") };
    [
        (sequencer(&format!("not {name}"), Kind::Mutex, Mode::Exclusive, token), ErrorKind::Mismatch),
        (sequencer(name, Kind::RwLock, Mode::Shared, token), ErrorKind::Unsupported),
        (sequencer(name, Kind::Semaphore, some, token), ErrorKind::Unsupported),
    ]
}

fn sequencer(name: &str, kind: Kind, mode: Mode, token: u64) -> Sequencer {
    Sequencer::new(LockName::new(name).expect("a good name"), kind, mode, Token::new(token), 0)
}

/// A case's surroundings. What fence it is nobody sees, and so a case is compiled once for all of them.
pub struct Stage {
    harness: Box<dyn Harness>,
    racer: &'static str,
}

/// A [`FenceHarness`] of whatever type.
trait Harness: Send + Sync {
    fn fence(&self) -> BoxFuture<'_, Arc<dyn Fence>>;
    fn url(&self) -> Option<String>;
    fn open<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Arc<dyn Fence>>>;
    fn crash(&self) -> bool;
}

impl<H: FenceHarness> Harness for H {
    fn fence(&self) -> BoxFuture<'_, Arc<dyn Fence>> {
        Box::pin(FenceHarness::fence(self))
    }

    fn url(&self) -> Option<String> {
        FenceHarness::url(self)
    }

    fn open<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Arc<dyn Fence>>> {
        Box::pin(H::open(url))
    }

    fn crash(&self) -> bool {
        FenceHarness::crash(self)
    }
}

impl Stage {
    /// The fence, opened anew.
    pub async fn fence(&self) -> Arc<dyn Fence> {
        self.harness.fence().await
    }

    /// A second process with the fence; `None` where nobody else can have it, which it must say itself.
    pub(crate) async fn racer(&self, plan: Plan) -> Option<Racer> {
        match self.harness.url() {
            Some(url) => Some(Racer::start(self.racer, &url, &plan)),
            None => {
                assert!(self.harness.open("anything").await.is_err(), "a fence that one process has is no other's");
                None
            }
        }
    }

    /// Kills the server and starts it again, on a thread where that is in nobody's way; `false` if there is none.
    pub(crate) async fn crash(self: &Arc<Self>) -> bool {
        let stage = Arc::clone(self);
        tokio::task::spawn_blocking(move || stage.harness.crash()).await.expect("the server starts again")
    }
}

/// Runs one case on a fresh fence, in a runtime of two workers.
pub fn run<H: FenceHarness>(racer: &'static str, alone: bool, case: Case) {
    play(start::<H>, racer, alone, case);
}

/// What the `racer` test does: nothing, unless it was started to be one.
pub fn race<H: FenceHarness>() {
    racer::serve(|url| Box::pin(H::open(url)));
}

type Start = fn(bool) -> BoxFuture<'static, Box<dyn Harness>>;

fn start<H: FenceHarness>(alone: bool) -> BoxFuture<'static, Box<dyn Harness>> {
    Box::pin(async move { Box::new(if alone { H::start_alone().await } else { H::start().await }) as Box<dyn Harness> })
}

fn play(start: Start, racer: &'static str, alone: bool, case: Case) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let stage = Arc::new(Stage { harness: start(alone).await, racer });
        tokio::time::timeout(HANGS, case(&stage)).await.expect("the case ends");
    });
    runtime.shutdown_background();
}

/// Beyond every limit that a case waits for by itself, and all the writes of the longest to the slowest disk together.
const HANGS: Duration = Duration::from_secs(900);
