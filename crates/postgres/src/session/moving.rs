//! A connection that can move from one runtime to another.
//!
//! Whoever locks should not pay for a hop to another thread and back with every statement: it would cost more than the server does. But
//! a session must not end with the runtime of whoever happened to open it, nor stand still with it. So the driver of a session
//! goes where it is used: to a runtime that has sent several requests in a row, or on which somebody waits in line; and back home
//! when anything has no answer soon, or when that runtime ends.
//!
//! Who can interleave: at most one [`Driving`] task is the one that the [`Mover`] counts on; all others see, under its mutex,
//! that their time is over, and touch nothing. The new one polls at once, so that what happened during the move is seen.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::net::sockopt;
use tenure_core::Address;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

/// So many requests in a row from one runtime bring the driver there.
const REQUESTS: u64 = 8;
/// How long an answer may take before it is looked for at home.
const SOON: Duration = Duration::from_millis(5);
/// How soon a server is probed that is silent, and how often.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How often a connection was told to move: what its stream and its [`Mover`] have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Arc<AtomicU64>);

impl Place {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// A TCP stream that is read and written on whichever runtime polls it first after a move.
#[derive(Debug)]
pub(super) struct MovingStream {
    io: TcpStream,
    /// The same socket, for the next runtime.
    socket: std::net::TcpStream,
    /// Where it is.
    at: u64,
    place: Place,
}

impl MovingStream {
    /// A socket on which a peer that vanished without a word is found out by probes, and by what it does not acknowledge for
    /// `limit`.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed.
    pub(super) async fn dial(address: &Address, limit: Duration, place: &Place) -> io::Result<Self> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        #[cfg(target_os = "linux")]
        {
            let limit = limit.max(KEEPALIVE * 2).as_millis();
            sockopt::set_tcp_user_timeout(&stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
        }
        let socket = stream.into_std()?;
        let io = TcpStream::from_std(socket.try_clone()?)?;
        Ok(MovingStream { io, socket, at: place.get(), place: place.clone() })
    }

    fn here(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let place = self.place.get();
        if self.at != place {
            Handle::try_current().map_err(io::Error::other)?; // whoever closes it may have none
            // With no descriptor left for that, it is read as before: by a detour, and not never again.
            if let Ok(io) = self.socket.try_clone().and_then(TcpStream::from_std) {
                self.io = io;
            }
            self.at = place;
        }
        Ok(Pin::new(&mut self.io))
    }
}

impl AsyncRead for MovingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for MovingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.here()?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.here()?.poll_shutdown(cx)
    }
}

/// A connection of any sort, as far as it must be driven.
pub(super) trait Drive: Send {
    /// Ready when it is over.
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// Where a connection is driven.
pub(super) struct Mover {
    place: Place,
    driven: Mutex<Driven>,
    home: Handle,
    over: watch::Sender<bool>,
}

struct Driven {
    connection: Option<Box<dyn Drive>>,
    /// Of the task that drives it: it must see that its time is over, or it would stay on its runtime for ever.
    driver: Option<Waker>,
    /// The runtime it is on.
    runtime: Id,
    /// Requests in a row from this other runtime.
    others: (Id, u64),
}

impl Mover {
    /// Drives it here from now on, which is home.
    pub(super) fn start(connection: Box<dyn Drive>, place: Place) -> Arc<Mover> {
        let home = Handle::current();
        let driven = Driven { connection: Some(connection), driver: None, runtime: home.id(), others: (home.id(), 0) };
        let mover = Arc::new(Mover { place, driven: Mutex::new(driven), home, over: watch::Sender::new(false) });
        mover.drive_on(&mover.home);
        mover
    }

    fn lock(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request comes from here.
    pub(super) fn is_used(self: &Arc<Self>) {
        let Ok(here) = Handle::try_current() else { return };
        let id = here.id();
        let moves = {
            let mut driven = self.lock();
            if driven.runtime == id {
                driven.others.1 = 0;
                return;
            }
            let in_a_row = if driven.others.0 == id { driven.others.1 + 1 } else { 1 };
            driven.others = (id, in_a_row);
            in_a_row >= REQUESTS
        };
        if moves {
            self.drive_on(&here);
        }
    }

    /// Somebody waits here, for as long as it takes: nobody could tell whether there is no answer yet or nobody who reads it.
    pub(super) fn is_waited_for(self: &Arc<Self>) {
        if let Ok(here) = Handle::try_current()
            && self.lock().runtime != here.id()
        {
            self.drive_on(&here);
        }
    }

    /// What is asked, which has its answer soon: else it is driven where everything stands still, and is brought home.
    ///
    /// # Cancel safety
    /// That of the asking.
    pub(super) async fn answered<T>(self: &Arc<Self>, asking: impl Future<Output = T>) -> T {
        tokio::pin!(asking);
        match tokio::time::timeout(SOON, &mut asking).await {
            Ok(answer) => answer,
            Err(_) => {
                self.go_home();
                asking.await
            }
        }
    }

    /// Brings it home, where nothing stands still.
    fn go_home(self: &Arc<Self>) {
        if self.lock().runtime != self.home.id() {
            self.drive_on(&self.home);
        }
    }

    fn drive_on(self: &Arc<Self>, runtime: &Handle) {
        let (mine, before) = {
            let mut driven = self.lock();
            driven.runtime = runtime.id();
            driven.others.1 = 0;
            (self.place.next(), driven.driver.take())
        };
        if let Some(before) = before {
            before.wake();
        }
        runtime.spawn(Driving { mover: Arc::clone(self), mine });
    }

    /// Cuts it, whatever is under way.
    pub(super) fn close(&self) {
        let (gone, driver) = {
            let mut driven = self.lock();
            (driven.connection.take(), driven.driver.take())
        };
        self.over.send_replace(true); // before anybody hears that nobody answers
        drop(gone); // and before it moves: it may have a last word
        self.place.next();
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Completes when it is over. Does not keep it.
    ///
    /// # Cancel safety
    /// It only looks.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        async move { drop(over.wait_for(|over| *over).await) }
    }
}

/// The task that drives.
struct Driving {
    mover: Arc<Mover>,
    mine: u64,
}

impl Future for Driving {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut driven = self.mover.lock();
        if self.mover.place.get() != self.mine {
            return Poll::Ready(());
        }
        let Some(connection) = &mut driven.connection else { return Poll::Ready(()) };
        if connection.poll_drive(cx).is_pending() {
            if driven.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
                driven.driver = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        drop(driven);
        self.mover.close();
        Poll::Ready(())
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        let is_home = {
            let driven = self.mover.lock();
            if self.mover.place.get() != self.mine {
                return; // somebody else drives it, or nobody has to
            }
            driven.runtime == self.mover.home.id()
        };
        // Its runtime has ended.
        if is_home { self.mover.close() } else { self.mover.go_home() }
    }
}

#[cfg(test)]
mod tests;
