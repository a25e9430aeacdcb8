//! A connection that can move from one runtime to another.
//!
//! Whoever locks should not pay for a hop to another thread and back with every statement: it would cost more than the server does. But
//! a session must not end with the runtime of whoever happened to open it, nor stand still with it. So the driver of a session
//! goes where it is used: to a runtime that has sent several requests in a row, back home when a renewal has no answer soon,
//! or when that runtime ends.
//!
//! Who can interleave: at most one [`Driving`] task is the one that the [`Mover`] counts on; all others see, under its mutex,
//! that their time is over, and touch nothing. The new one polls at once, so that what happened during the move is seen.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio_postgres::Connection;

/// So many requests in a row from one runtime bring the driver there.
const REQUESTS: u64 = 8;

/// A TCP stream that is read and written on whichever runtime polls it first after a move.
pub(super) struct MovingStream {
    io: TcpStream,
    /// The same socket, for the next runtime.
    socket: std::net::TcpStream,
    /// How often it has moved, and how often it was told to.
    at: u64,
    place: Arc<AtomicU64>,
}

impl MovingStream {
    pub(super) fn new(io: TcpStream, place: &Arc<AtomicU64>) -> io::Result<Self> {
        let socket = io.into_std()?;
        let io = TcpStream::from_std(socket.try_clone()?)?;
        Ok(MovingStream { io, socket, at: place.load(Ordering::Acquire), place: Arc::clone(place) })
    }

    fn here(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let place = self.place.load(Ordering::Acquire);
        if self.at != place {
            self.io = TcpStream::from_std(self.socket.try_clone()?)?;
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

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Drive for Connection<MovingStream, T> {
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match ready!(self.poll_message(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(()), // each request has its own error
            }
        }
    }
}

/// Where a connection is driven.
pub(super) struct Mover {
    /// Counts the moves.
    place: Arc<AtomicU64>,
    driven: Mutex<Driven>,
    home: Handle,
    over: watch::Sender<bool>,
}

struct Driven {
    connection: Option<Box<dyn Drive>>,
    /// The runtime it is on.
    runtime: Id,
    /// Requests in a row from this other runtime.
    others: (Id, u64),
}

impl Mover {
    /// Drives it here from now on, which is home.
    pub(super) fn start(connection: Box<dyn Drive>, place: Arc<AtomicU64>) -> Arc<Mover> {
        let home = Handle::current();
        let driven = Driven { connection: Some(connection), runtime: home.id(), others: (home.id(), 0) };
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

    /// Brings it home, where nothing stands still.
    pub(super) fn go_home(self: &Arc<Self>) {
        if self.lock().runtime != self.home.id() {
            self.drive_on(&self.home);
        }
    }

    fn drive_on(self: &Arc<Self>, runtime: &Handle) {
        let mine = {
            let mut driven = self.lock();
            driven.runtime = runtime.id();
            driven.others.1 = 0;
            self.place.fetch_add(1, Ordering::AcqRel) + 1
        };
        runtime.spawn(Driving { mover: Arc::clone(self), mine });
    }

    /// Cuts it, whatever is under way.
    pub(super) fn close(&self) {
        let gone = {
            let mut driven = self.lock();
            self.place.fetch_add(1, Ordering::AcqRel);
            driven.connection.take()
        };
        drop(gone);
        self.over.send_replace(true);
    }

    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Completes when it is over. Does not keep it.
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
        if self.mover.place.load(Ordering::Acquire) != self.mine {
            return Poll::Ready(());
        }
        let Some(connection) = &mut driven.connection else { return Poll::Ready(()) };
        ready!(connection.poll_drive(cx));
        drop(driven);
        self.mover.close();
        Poll::Ready(())
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        if self.mover.place.load(Ordering::Acquire) != self.mine {
            return; // somebody else drives it, or nobody has to
        }
        // Its runtime has ended.
        let is_home = self.mover.lock().runtime == self.mover.home.id();
        if is_home { self.mover.close() } else { self.mover.go_home() }
    }
}
