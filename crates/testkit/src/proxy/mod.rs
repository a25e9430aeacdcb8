//! A TCP proxy whose faults are switched on and off while connections run through it.
//!
//! ```no_run
//! use std::time::Duration;
//! use tenure_testkit::proxy::{After, Cut, Fault, Proxy, Toward, Which};
//! use tenure_testkit::servers::redis::Redis;
//!
//! let proxy = Proxy::start(Redis::shared().address());
//! let url = format!("redis://{}", proxy.address());
//! // … a client connects to `url` and works …
//! proxy.set(Which::All, Fault::Lose(Toward::Client, 1, After::Silence)); // the next reply is lost
//! proxy.heal();
//! let late = proxy.set(Which::All, Fault::Delay(Toward::Server, Duration::from_secs(2)));
//! proxy.lift(late);
//! proxy.set(Which::sent("SUBSCRIBE"), Fault::Blackhole(Toward::Client)); // deaf, and does not know it
//! proxy.cut(Which::Newest, Cut::Reset);
//! ```
//!
//! - Faults are for requests or replies, and for all connections, the newest, or those that have sent something: [`Which`].
//! - Messages of Redis' protocol are told apart, so that whole ones are lost, delayed or doubled; anything else is carried
//!   as it comes.
//! - It runs on a thread of its own: a test may block its runtime, and `shared()` servers outlive it.
//! - Random are only the times of [`Fault::Jitter`], and those come from a seed.

mod fault;
mod link;
mod resp;

pub use fault::{After, Counters, Cut, Fault, FaultId, Toward, Which};

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::servers::{Port, wait_until};
use fault::State;

/// A proxy in front of a server. Ends, with all its connections, when dropped.
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one on a free port; everything works until a fault is set.
    pub fn start(target: SocketAddr) -> Self {
        Self::seeded(target, 0)
    }

    /// The same, with a seed for what is random.
    pub fn seeded(target: SocketAddr, seed: u64) -> Self {
        let shared = Arc::new(Shared { state: Mutex::new(State::new(target, seed)), changed: watch::channel(()).0 });
        let (port, listener) = loop {
            let port = Port::reserve();
            if let Ok(listener) = std::net::TcpListener::bind(port.address()) {
                break (port, listener);
            }
        };
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime can be built").block_on(serve(listener, its));
            })
            .expect("a thread can be started");
        Proxy { port, shared, thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where it listens, without the host.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Sets a fault. What is read from now on meets it; what is on its way does not.
    pub fn set(&self, which: Which, fault: Fault) -> FaultId {
        self.change(|state| state.set(which, fault))
    }

    /// Lifts a fault. Connections that lost something to it are reset.
    pub fn lift(&self, fault: FaultId) {
        self.change(|state| state.lift(Some(fault)));
    }

    /// Lifts all faults, and accepts connections again.
    pub fn heal(&self) {
        self.change(|state| state.lift(None));
        self.refuse(false);
    }

    /// Cuts connections, on both sides, and says how many; returns when they are gone.
    pub fn cut(&self, which: Which, cut: Cut) -> usize {
        let links = self.change(|state| state.cut(which, cut));
        let gone = || links.iter().all(|link| !self.shared.state().is_open(*link));
        assert!(wait_until(gone), "a connection that was cut is still there");
        links.len()
    }

    /// Whether new connections are refused, as by a host where nobody listens; returns when it is so. Those that are there
    /// stay.
    pub fn refuse(&self, refuse: bool) {
        self.change(|state| state.refusing = refuse);
        assert!(wait_until(|| self.shared.state().listening != refuse), "the proxy stands still");
    }

    /// Sends new connections elsewhere. Those that are there stay.
    pub fn retarget(&self, target: SocketAddr) {
        self.change(|state| state.target = target);
    }

    /// What was seen so far.
    pub fn counters(&self) -> Counters {
        self.shared.state().counters
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.shared.state());
        self.shared.changed.send_replace(());
        changed
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.over = true);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the handle and the connections have in common.
struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let address = listener.local_addr().expect("it is bound");
    listener.set_nonblocking(true).expect("a socket can be asked not to block");
    let mut listener = Some(TcpListener::from_std(listener).expect("this is a runtime"));
    let mut changes = shared.changes();
    while !shared.state().over {
        let refusing = shared.state().refusing;
        // Only a closed port refuses; that nobody else takes it meanwhile is what a reserved port is for.
        match (&listener, refusing) {
            (Some(open), true) => {
                // A process that a test is just starting has a copy of the socket, so to close ours is not enough.
                rustix::net::shutdown(open, rustix::net::Shutdown::Both).expect("it listens");
                listener = None;
            }
            (None, false) => listener = Some(TcpListener::bind(address).await.expect("the port is reserved")),
            _ => {}
        }
        shared.state().listening = !refusing;
        tokio::select! {
            changed = changes.changed() => changed.expect("we have the sender"),
            accepted = accept(listener.as_ref()) => {
                let Ok((client, _)) = accepted else { continue };
                let (id, shared) = (shared.state().opened(), Arc::clone(&shared));
                tokio::spawn(async move { link::carry(client, id, &shared).await });
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> std::io::Result<(tokio::net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}
