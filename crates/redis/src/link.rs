//! One connection to one server: made when it is needed, watched while it is there, made anew when it is not.
//!
//! The driver of a connection runs on the runtime of whoever happened to need it first: a request that hopped to a thread of
//! our own and back would cost as much again as the server does. The price is that it may vanish with that runtime; its
//! [`Pushes`] then go with it, and dropping those is how a link learns that its connection is no more, whatever the reason. Or
//! it may stand still, where the runtime has one thread and that is elsewhere: a connection that fell silent on such a runtime
//! is made anew on the keeper's, and so are all that follow it.
//!
//! Who can interleave: any number of tasks send through one [`Live`] at once, and answers come back in the order of sending.
//! Only one at a time connects; the others wait for it and share what it made. After a failed attempt the next one waits a
//! while, longer each time and at random, so that a restarted server is not stormed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tenure_core::lease::pause_after;
use tenure_core::{Clock, HalfMade, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};

use tenure_core::Address;

use crate::config::Settings;
use crate::error::{Failure, explain_connect};
use crate::examine::{self, Server};
use crate::schema::Bucket;

/// How long a request may go unanswered before its connection is given up.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Who hears what a connection says unasked.
pub(crate) trait Listener: Send + Sync + 'static {
    /// A message on one of our channels.
    fn message(&self, from: &Address, payload: &[u8]);
    /// A connection that had pushed to us is gone: what was said meanwhile was said to nobody.
    fn silenced(&self);
    /// There is a new connection. A look at the server's clock that was asked for at `sent` showed `then`, in microseconds.
    fn connected(&self, to: &Address, server: &Server, sent: Instant, then: u64);
    /// Another server has what one of them had.
    fn moved(&self);
    /// A runtime that is always running, if there is one.
    fn home(&self) -> Option<Handle>;
}

/// A way to one server, for one purpose.
pub(crate) struct Link {
    pub(crate) address: Address,
    way: Way,
    current: Mutex<Option<Arc<Live>>>,
    connecting: tokio::sync::Mutex<Attempts>,
}

/// What it takes to make a connection, wherever that is done.
#[derive(Clone)]
struct Way {
    settings: Arc<Settings>,
    address: Address,
    /// The channel to listen on from the start, for a link that has one.
    inbox: Option<Vec<u8>>,
    listener: Arc<dyn Listener>,
    /// A connection stood still with the caller's only thread: the next one lives on the keeper's runtime.
    homeward: Arc<AtomicBool>,
}

/// What came of the last attempts to connect.
struct Attempts {
    failed: u32,
    not_before: Instant,
    half_made: HalfMade<Made>,
}

/// A connection, when its first request was sent, and the server's time then.
type Made = Result<(Arc<Live>, Instant, u64), Failure>;

impl Default for Attempts {
    fn default() -> Self {
        Attempts { failed: 0, not_before: Instant::from_nanos(0), half_made: HalfMade::default() }
    }
}

/// A connection that was there when we last looked.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    open: Arc<AtomicBool>,
    /// When the last answer came.
    heard: AtomicU64,
    pub(crate) server: Server,
    /// The buckets whose inbox this connection listens to, besides the first.
    listens: Mutex<BTreeSet<Bucket>>,
    /// To be set when it falls silent; `None` where its runtime cannot stand still.
    homeward: Option<Arc<AtomicBool>>,
}

/// Where the driver puts what the server says unasked. Dropped with the driver, however that ends.
struct Pushes {
    listener: Arc<dyn Listener>,
    address: Address,
    open: Arc<AtomicBool>,
    /// Whether anybody could ever rely on it: a connection that was never made silences nobody.
    relied_on: Arc<AtomicBool>,
}

impl AsyncPushSender for Pushes {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match (info.kind, info.data.as_slice()) {
            (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                self.listener.message(&self.address, payload);
            }
            // Its slot has moved: somebody must listen elsewhere.
            (PushKind::SUnsubscribe, _) => {
                self.open.store(false, Ordering::Release);
                self.listener.silenced();
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Release);
        if self.relied_on.load(Ordering::Acquire) {
            self.listener.silenced();
        }
    }
}

impl Link {
    pub(crate) fn new(
        settings: &Arc<Settings>,
        address: Address,
        inbox: Option<Vec<u8>>,
        listener: &Arc<dyn Listener>,
    ) -> Self {
        let (settings, listener, homeward) = (Arc::clone(settings), Arc::clone(listener), Arc::default());
        let way = Way { settings, address: address.clone(), inbox, listener, homeward };
        Link { address, way, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one.
    pub(crate) fn open(&self) -> Option<Arc<Live>> {
        self.current().as_ref().filter(|live| live.is_open()).map(Arc::clone)
    }

    /// The connection, made now if need be. Boxed where it is made: every request carries the room for this future.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed, or finished on the keeper's runtime for whoever comes next.
    pub(crate) async fn live(&self) -> Result<Arc<Live>, Failure> {
        match self.open() {
            Some(live) => Ok(live),
            None => Box::pin(self.make()).await,
        }
    }

    async fn make(&self) -> Result<Arc<Live>, Failure> {
        let mut attempts = self.connecting.lock().await;
        if let Some(live) = self.open() {
            return Ok(live); // somebody was faster
        }
        Clock::Boot.sleep_until(attempts.not_before).await;
        let home = self.way.listener.home().filter(|_| self.way.homeward.load(Ordering::Relaxed));
        let made = match home {
            None => self.way.connect().await,
            Some(home) => {
                let way = self.way.clone();
                let made = attempts.half_made.finish(&home, async move { way.connect().await }).await;
                made.unwrap_or_else(|| Err(self.way.failed(timed_out())))
            }
        };
        match made {
            Ok((live, sent, then)) => {
                *attempts = Attempts::default();
                // In this order: nobody may use it before it is known which run of the server it leads to.
                self.way.listener.connected(&self.address, &live.server, sent, then);
                *self.current() = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(failure) => {
                attempts.failed += 1;
                attempts.not_before = Instant::now() + pause_after(attempts.failed);
                Err(failure)
            }
        }
    }
}

impl Way {
    fn failed(&self, error: RedisError) -> Failure {
        explain_connect(error, &self.address, &self.settings)
    }

    async fn connect(&self) -> Made {
        let failed = |error| self.failed(error);
        let (open, relied_on) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let pushes = Pushes {
            listener: Arc::clone(&self.listener),
            address: self.address.clone(),
            open: Arc::clone(&open),
            relied_on: Arc::clone(&relied_on),
        };
        let limit = self.settings.connect_limit;
        let config = self.settings.connection(&self.address).set_pipeline_buffer_size(PIPELINE).set_push_sender(pushes);
        let client = self.settings.client(&self.address)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        // In one flight: look at the server and at its clock, and listen.
        let (mut ear, mut clock) = (connection.clone(), connection.clone());
        let sent = Instant::now();
        let listen = async {
            match &self.inbox {
                Some(inbox) => {
                    let answer = ear.send_packed_command(redis::cmd("SUBSCRIBE").arg(inbox)).await;
                    answer.and_then(Value::extract_error).map(drop)
                }
                None => Ok(()),
            }
        };
        let time = async { clock.send_packed_command(&redis::cmd("TIME")).await.and_then(Value::extract_error) };
        let all = async { tokio::join!(listen, time, examine::look(&mut connection)) };
        let (listening, time, server) = tokio::time::timeout(limit, all).await.map_err(|_| failed(timed_out()))?;
        let server = server.map_err(failed)?;
        let (seconds, micros): (u64, u64) = time.and_then(|time| Ok(redis::from_redis_value(time)?)).map_err(failed)?;
        listening.map_err(failed)?;
        examine::require(&server, &self.address, &self.settings)?;
        relied_on.store(true, Ordering::Release);
        let heard = AtomicU64::new(Instant::now().as_nanos());
        let may_stand_still = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        let homeward = may_stand_still.then(|| Arc::clone(&self.homeward));
        let live = Live { connection, open, heard, server, listens: Mutex::default(), homeward };
        Ok((Arc::new(live), sent, seconds * 1_000_000 + micros))
    }
}

impl Live {
    /// Asks the server what it is, now.
    ///
    /// # Cancel safety
    /// It only reads.
    pub(crate) async fn look(&self, at: &Address, settings: &Settings) -> Result<Server, Failure> {
        examine::look(&mut self.connection.clone()).await.map_err(|error| explain_connect(error, at, settings))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Uses it no more: what was sent through it may or may not arrive.
    pub(crate) fn give_up(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// Gives it up if nothing at all was heard since then: a connection that answered somebody else is not stuck.
    pub(crate) fn give_up_if_silent_since(&self, sent: Instant) {
        if self.heard.load(Ordering::Relaxed) < sent.as_nanos() {
            self.give_up();
            if let Some(homeward) = &self.homeward {
                homeward.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether it listens to the inbox of this bucket.
    pub(crate) fn listens_to(&self, bucket: Bucket) -> bool {
        self.listens.lock().unwrap_or_else(PoisonError::into_inner).contains(&bucket)
    }

    /// From now on it does.
    pub(crate) fn listens_now_to(&self, bucket: Bucket) {
        self.listens.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket);
    }

    /// Sends one command.
    ///
    /// # Cancel safety
    /// Dropped, the command may or may not reach the server.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.connection.clone().send_packed_command(command).await.and_then(Value::extract_error);
        self.hear(&answer);
        answer
    }

    /// Sends several commands with nothing in between.
    ///
    /// # Cancel safety
    /// Dropped, the commands may or may not reach the server.
    pub(crate) async fn send_all(&self, commands: &redis::Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let answers = self.connection.clone().send_packed_commands(commands, 0, count).await;
        self.hear(&answers);
        answers
    }

    fn hear<T>(&self, answer: &RedisResult<T>) {
        match answer {
            Err(error) if error.is_unrecoverable_error() || error.is_timeout() => self.give_up(),
            _ => self.heard.store(Instant::now().as_nanos(), Ordering::Relaxed),
        }
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// How many requests may be on their way to the driver: more than anybody has tasks, so that nobody waits here.
const PIPELINE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use tenure_testkit::servers::redis::Redis;

    use super::*;

    /// Looks, when a connection is announced, whether anybody could use it already.
    #[derive(Default)]
    struct Witness {
        link: OnceLock<Weak<Link>>,
        in_use: Mutex<Vec<bool>>,
    }

    impl Listener for Witness {
        fn message(&self, _: &Address, _: &[u8]) {}

        fn silenced(&self) {}

        fn connected(&self, _: &Address, _: &Server, _: Instant, _: u64) {
            let link = self.link.get().and_then(Weak::upgrade).unwrap();
            self.in_use.lock().unwrap().push(link.open().is_some());
        }

        fn moved(&self) {}

        fn home(&self) -> Option<Handle> {
            None
        }
    }

    #[tokio::test]
    async fn which_run_it_leads_to_is_known_before_anybody_uses_a_connection() {
        let settings = Arc::new(Settings::from_url(&Redis::shared().url().parse().unwrap()).unwrap());
        let crate::config::Topology::Single(address) = &settings.topology else { unreachable!("it is one server") };
        let witness = Arc::new(Witness::default());
        let listener: Arc<dyn Listener> = witness.clone();
        let link = Arc::new(Link::new(&settings, address.clone(), None, &listener));
        witness.link.set(Arc::downgrade(&link)).unwrap();
        link.live().await.unwrap_or_else(|failure| panic!("{}", failure.error)).give_up();
        link.live().await.unwrap_or_else(|failure| panic!("{}", failure.error));
        assert_eq!(*witness.in_use.lock().unwrap(), [false, false]);
    }
}
