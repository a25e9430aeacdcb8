//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. The protocol knows no request numbers, so
//! requests queue, in the order of asking, and each reads its whole answer. Whoever asked may be gone by then: what was begun is
//! then finished on the runtime that opened the session, so that nothing half-read is ever used again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mysql_async::Conn;
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use crate::config::Settings;
use crate::error;
use crate::link::{Rows, read_all};

/// A connection that is one session.
pub(super) struct Wire {
    settings: Arc<Settings>,
    conn: Arc<Mutex<Option<Conn>>>,
    /// Whether it is over.
    over: watch::Sender<bool>,
    home: Handle,
}

impl Wire {
    /// On the runtime that shall keep it.
    pub(super) fn new(settings: &Arc<Settings>, conn: Conn) -> Self {
        let conn = Arc::new(Mutex::new(Some(conn)));
        Wire { settings: Arc::clone(settings), conn, over: watch::Sender::new(false), home: Handle::current() }
    }

    pub(super) fn is_open(&self) -> bool {
        !*self.over.borrow()
    }

    /// Cuts the connection, whatever is under way on it.
    pub(super) fn close(&self) {
        self.over.send_replace(true);
        if let Ok(mut conn) = self.conn.try_lock() {
            self.drop_conn(conn.take());
        }
    }

    /// A connection says good-bye when it is dropped, and needs a runtime for that.
    fn drop_conn(&self, conn: Option<Conn>) {
        let _home = self.home.enter();
        drop(conn);
    }

    /// Completes when it is over. Does not keep it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        async move {
            let _ = over.wait_for(|over| *over).await;
        }
    }

    /// Sends statements and reads all that they answer; `doing` completes "while …".
    ///
    /// # Cancel safety
    /// Dropped while it queues, nothing is sent; later, the statements are executed and their answer is read.
    pub(super) async fn send(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        let mut conn = Arc::clone(&self.conn).lock_owned().await;
        let (over, mut cut) = (self.over.clone(), self.over.subscribe());
        let home = self.home.clone();
        let asking = async move {
            let open = conn.as_mut().filter(|_| !*over.borrow())?;
            let answer = tokio::select! {
                biased;
                answer = read_all(open, &text) => Some(answer),
                _ = cut.wait_for(|over| *over) => None,
            };
            let goes_on = match &answer {
                Some(Ok(_)) => true,
                Some(Err(failure)) => error::code(failure).is_some_and(|code| !ENDS.contains(&code)),
                None => false,
            };
            if !goes_on {
                let gone = conn.take();
                over.send_replace(true);
                let _home = home.enter();
                drop(gone);
            }
            answer
        };
        let finishing = Finishing { asking: Some(Box::pin(asking)), home: self.home.clone() };
        match finishing.await {
            Some(answer) => answer.map_err(|failure| error::explain(failure, &self.settings, doing)),
            None => Err(self.is_over(doing)),
        }
    }

    fn is_over(&self, doing: &str) -> Failure {
        let error = Error::new(ErrorKind::Unavailable, format!("the session was over while {doing}"))
            .with_store(self.settings.describe())
            .with_hint("Was the server restarted, or the connection killed?");
        Failure { error, fate: Fate::Unknown, again: true }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

/// The session ends with these: a shutdown, a kill.
const ENDS: &[u16] = &[1053, 1927, 1152, 1159, 1161, 4031];

/// A request that is finished in the background if its asker goes.
struct Finishing<T: Send + 'static> {
    asking: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    home: Handle,
}

impl<T: Send + 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(asking) = &mut self.asking else { return Poll::Pending };
        let polled = asking.as_mut().poll(cx);
        if polled.is_ready() {
            self.asking = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let Some(asking) = self.asking.take() {
            self.home.spawn(asking);
        }
    }
}
