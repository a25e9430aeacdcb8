//! The way to the members: one at a time, the same one for as long as it answers, another when it does not.
//!
//! A [`Link`] has a channel to each member that it ever needed, made when it is first used, on the keeper's runtime: a channel
//! made on a caller's would end with that. Any number of tasks send through one channel at once.
//!
//! Whoever finds a member dead, silent or without its leader moves the link on to the next one, once for all: the number of the
//! move is compared, so a hundred tasks that fail together move it by one. What was asked is asked again there at once, inside
//! the caller's limit. That is safe as every request is the same when it is done twice: a claim's key is its own, conditions
//! are compared, and what has an end is marked (see `end`).

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::{Address, Error, ErrorKind, Instant, Result, Secret};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::config::Settings;
use crate::error::{Attempt, Failure, Next, explain, from_transport, silent};
use crate::proto::{AuthenticateRequest, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::tls::Connector;
use crate::wire::Wire;

/// A way to the members, for one purpose.
pub(crate) struct Link {
    pub(crate) settings: Arc<Settings>,
    home: Arc<OnceLock<Handle>>,
    /// How often it moved on: the member it is at is this one, modulo how many there are.
    moves: AtomicU64,
    channels: Mutex<HashMap<usize, Channel>>,
    login: Arc<Login>,
    /// One at a time makes a lease over it; the others then find that. Each link has its own: renewals must not queue behind asks.
    pub(crate) making: tokio::sync::Mutex<()>,
    /// Rings when it moves on.
    pub(crate) moved: Arc<Notify>,
}

/// Who we are to the members: a token that lasts for some minutes, shared by all links.
#[derive(Default)]
pub(crate) struct Login {
    token: Mutex<Option<Arc<str>>>,
    asking: tokio::sync::Mutex<()>,
}

impl Login {
    fn token(&self) -> Option<Arc<str>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, token: Option<Arc<str>>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// This token is of no use any more; if it is another one already, that stays.
    fn forget(&self, used: &Option<Arc<str>>) {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if *token == *used {
            *token = None;
        }
    }
}

/// A member, as a request found it.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) wire: Wire,
    pub(crate) address: Address,
    /// The number of the move that led there.
    pub(crate) number: u64,
    token: Option<Arc<str>>,
}

/// An answer, and when what it answers was sent for the last time.
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    pub(crate) sent: Instant,
    /// It was asked once and answered once: no copy of it is on its way.
    pub(crate) clean: bool,
}

impl Link {
    pub(crate) fn new(settings: &Arc<Settings>, home: &Arc<OnceLock<Handle>>, login: &Arc<Login>, first: u64) -> Self {
        Link {
            settings: Arc::clone(settings),
            home: Arc::clone(home),
            moves: AtomicU64::new(first),
            channels: Mutex::default(),
            login: Arc::clone(login),
            making: tokio::sync::Mutex::default(),
            moved: Arc::default(),
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<usize, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets its channels: they were made on a runtime that may end.
    pub(crate) fn come_home(&self) {
        self.channels().clear();
    }

    fn place(&self, number: u64) -> usize {
        (number % self.settings.members.len() as u64) as usize
    }

    /// Moves on from a member that is of no use, unless somebody did so already. Its channel goes: it may be stuck.
    pub(crate) fn leave(&self, number: u64) {
        let moved = self.moves.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            self.channels().remove(&self.place(number));
            self.moved.notify_waiters();
        }
    }

    /// Goes to the member that leads, if one says so: every write goes through it, and from the others that is two hops more. Where there
    /// are users, some versions say so only to one that is logged in, and some only to root.
    pub(crate) async fn go_to_leader(&self) {
        let members = self.settings.members.len();
        if members == 1 {
            return;
        }
        let (sender, mut leads) = tokio::sync::mpsc::channel(members);
        for (place, address) in self.settings.members.iter().enumerate() {
            let Ok(channel) = self.channel(place, address) else { continue };
            let wire = Wire::new(channel, None);
            let wire = if let Some(token) = self.login.token() { wire.with_token(&token) } else { wire };
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(Ok(status)) = tokio::time::timeout(LOOK_ROUND, wire.status()).await
                    && status.header.is_some_and(|header| header.member_id == status.leader)
                {
                    let _ = sender.send(place as u64).await;
                }
            });
        }
        drop(sender);
        if let Some(place) = leads.recv().await {
            self.moves.store(place, Ordering::Relaxed);
        }
    }

    /// Goes where another link is.
    pub(crate) fn follow(&self, other: &Link) {
        self.moves.store(other.number(), Ordering::Relaxed);
    }

    /// Where it is now.
    pub(crate) fn number(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Whether what was opened at a member has the login that requests have now.
    pub(crate) fn is_logged_in(&self, member: &Member) -> bool {
        self.login.token() == member.token
    }

    /// A member does not take the login that it was reached with: whoever asks next logs in again, unless somebody did.
    pub(crate) fn log_out(&self, member: &Member) {
        self.login.forget(&member.token);
    }

    /// The member that it is at, logged in.
    pub(crate) async fn member(&self) -> Attempt<Member> {
        let Some(user) = &self.settings.user else { return self.stranger() };
        let token = match self.login.token() {
            Some(token) => token,
            None => self.log_in(user, self.settings.password.as_ref()).await?,
        };
        let member = self.stranger()?;
        Ok(Member { wire: member.wire.with_token(&token), token: Some(token), ..member })
    }

    /// The member that it is at, to which we are nobody.
    fn stranger(&self) -> Attempt<Member> {
        let number = self.number();
        let address = self.settings.members[self.place(number)].clone();
        let channel = self.channel(self.place(number), &address)?;
        Ok(Member { wire: Wire::new(channel, None), address, number, token: None })
    }

    async fn log_in(&self, user: &str, password: Option<&Secret>) -> Attempt<Arc<str>> {
        let _alone = self.login.asking.lock().await;
        if let Some(token) = self.login.token() {
            return Ok(token); // somebody else did meanwhile
        }
        let member = self.stranger()?; // whoever tried before may have moved on
        let password = password.map_or("", Secret::reveal).to_owned();
        let asked = member.wire.authenticate(AuthenticateRequest { name: user.to_owned(), password });
        let limit = self.attempt_limit();
        let answer = match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer.map_err(|status| explain(&status, &member.address, &self.settings, "logging in"))?,
            Err(_) => return Err(silent(&member.address, &self.settings, limit, "logging in")),
        };
        let token: Arc<str> = answer.token.into();
        self.login.set(Some(Arc::clone(&token)));
        Ok(token)
    }

    fn channel(&self, place: usize, address: &Address) -> Result<Channel> {
        let mut channels = self.channels();
        if let Some(channel) = channels.get(&place) {
            return Ok(channel.clone());
        }
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| Error::new(ErrorKind::BadUrl, "a member's address cannot be used").with_source(error))?
            .connect_timeout(self.settings.connect_limit.min(self.attempt_limit()))
            .tcp_nodelay(true)
            .tcp_keepalive(Some(KEEPALIVE))
            .initial_connection_window_size(Some(1 << 20))
            .initial_stream_window_size(Some(1 << 20));
        let _entered = self.home.get().map(Handle::enter); // what drives it lives there
        let channel = endpoint.connect_with_connector_lazy(Connector::new(address, self.settings.tls.as_ref()));
        channels.insert(place, channel.clone());
        Ok(channel)
    }

    /// Nobody has answered for so long, though nobody was asked either: others who were first had no answer.
    pub(crate) fn silence(&self, limit: Duration, doing: &str) -> Failure {
        silent(&self.settings.members[self.place(self.number())], &self.settings, limit, doing)
    }

    /// How long one member may take before another is asked; or the same one, where it is the only one, on a new connection.
    fn attempt_limit(&self) -> Duration {
        (self.settings.answer_limit / 4).max(Duration::from_millis(200)).min(self.settings.answer_limit)
    }

    /// One request, of whichever member answers first, within the limit for answers.
    ///
    /// # Cancel safety
    /// Dropped, the request may have been done, or may be done yet.
    pub(crate) async fn call<T, F>(&self, doing: &str, ask: impl Fn(Wire) -> F) -> Attempt<Answer<T>>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        self.call_within(self.settings.answer_limit, doing, ask).await
    }

    /// A transaction.
    pub(crate) async fn txn(&self, doing: &str, txn: TxnRequest) -> Attempt<Answer<TxnResponse>> {
        self.call(doing, |wire| {
            let txn = txn.clone();
            async move { wire.txn(txn).await }
        })
        .await
    }

    /// A read.
    pub(crate) async fn range(&self, doing: &str, request: RangeRequest) -> Attempt<Answer<RangeResponse>> {
        self.call(doing, |wire| {
            let request = request.clone();
            async move { wire.range(request).await }
        })
        .await
    }

    /// The same as a call, within another limit.
    pub(crate) async fn call_within<T, F>(&self, limit: Duration, doing: &str, ask: impl Fn(Wire) -> F) -> Attempt<Answer<T>>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let deadline = Instant::now() + limit;
        let (mut clean, mut tries, mut logins) = (true, 0u32, 0);
        let mut said: Option<Failure> = None; // by a member that said anything: silence explains nothing
        loop {
            // Others may be logging in, one after the other: to wait for them is part of the limit.
            let member = tokio::time::timeout(deadline.since(Instant::now()), self.member()).await;
            let waited = |_| Err(said.take().unwrap_or_else(|| self.silence(limit, doing)));
            let failure = match member.unwrap_or_else(waited) {
                Ok(member) => {
                    let sent = Instant::now();
                    let attempt = self.attempt_limit().min(deadline.since(sent));
                    let failure = match tokio::time::timeout(attempt, ask(member.wire.clone())).await {
                        Ok(Ok(value)) => return Ok(Answer { value, sent, clean }),
                        Ok(Err(status)) => explain(&status, &member.address, &self.settings, doing),
                        Err(_) => match said.take() {
                            Some(said) if Instant::now() >= deadline => said,
                            before => {
                                said = before;
                                silent(&member.address, &self.settings, attempt, doing)
                            }
                        },
                    };
                    clean &= !failure.in_doubt;
                    match failure.next {
                        Next::Elsewhere => self.leave(member.number),
                        // Where roles are changed one after the other, the next login may be over at once too.
                        Next::Login if self.settings.user.is_some() => {
                            logins += 1;
                            self.login.forget(&member.token);
                            if logins < 3 {
                                continue;
                            }
                        }
                        _ => {}
                    }
                    failure
                }
                Err(failure) => {
                    if failure.next == Next::Elsewhere {
                        self.leave(self.number());
                    }
                    failure
                }
            };
            tries += 1;
            let is_busy = matches!(failure.next, Next::Later | Next::Login);
            let may_help = match failure.next {
                Next::Elsewhere | Next::Later => true,
                Next::Login => self.settings.user.is_some(),
                _ => false,
            };
            if !may_help || Instant::now() >= deadline {
                return Err(Failure { in_doubt: failure.in_doubt || !clean, ..failure });
            }
            said = if failure.spoken { Some(failure) } else { said };
            // Once round the members at once; then there is no majority, and one is waited for.
            let members = self.settings.members.len() as u32;
            if is_busy || tries.is_multiple_of(members) {
                let pause = Duration::from_millis(20).saturating_mul(1 << (tries / members).min(4));
                tokio::time::sleep(pause.min(deadline.since(Instant::now()))).await;
            }
        }
    }
}

/// How long a member may take to say whether it leads.
const LOOK_ROUND: Duration = Duration::from_millis(500);
/// After so long without a word the kernel asks whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A channel could not be made at all.
pub(crate) fn unreachable(error: impl std::error::Error + Send + Sync + 'static) -> Status {
    from_transport(error)
}
