//! The desk: each verb on the connection that is meant for it.
//!
//! A client has at most three: `asks` for asks and everything that is not urgent, `keep` for renewals and ends, which nothing else
//! can hold up (an end whose caller finds `asks` idle, on its own runtime, goes there), and the ear, where it is told and its waiters are looked after.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Abilities, Fencing, Finding, Liveness, Reach, Waiting, async_trait};
use tenure_core::lease::{
    ALIVE, Answer, Asked, Asking, Desk, Ended, Ending, Failure, Fate, Limits, Listener, Looked, Renewed, Said,
};
use tenure_core::record::ClientKey;
use tenure_core::{
    Ask, Claim, ClaimId, Error, ErrorKind, Instant, Kind, LockName, MIN_TTL, Result, Token, Versioned, View, random,
};
use tokio::runtime::Handle;
use tokio_postgres::Row;

use crate::config::Settings;
use crate::ear::Ear;
use crate::link::{Link, Live};
use crate::schema::Layout;
use crate::seal::NotifyKey;
use crate::verbs::{self, Garbled, Request, Verbs};

/// What PostgreSQL does, by leases.
pub const ABILITIES: Abilities = Abilities {
    store: "postgres",
    kinds: &Kind::ALL,
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::Lease,
    reach: Reach::Network,
    cells: true,
    delays: true,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// A client's end of a database.
pub(crate) struct PostgresDesk {
    settings: Arc<Settings>,
    layout: Layout,
    me: ClientKey,
    notify_key: NotifyKey,
    /// Made when it is known who listens, which is before anything else.
    shared: OnceLock<Arc<Shared>>,
}

/// What a client's tasks share.
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) layout: Layout,
    pub(crate) verbs: Verbs,
    pub(crate) me: ClientKey,
    pub(crate) notify_key: NotifyKey,
    pub(crate) asks: Link,
    keep: Link,
    pub(crate) ear_link: Link,
    pub(crate) ear: Ear,
    listener: Arc<dyn Listener>,
}

impl Shared {
    pub(crate) fn listener(&self) -> &dyn Listener {
        &*self.listener
    }

    pub(crate) fn home(&self) -> Option<Handle> {
        self.listener.home()
    }

    /// With what messages to us are sealed, if they arrive.
    fn heard_with(&self) -> Option<&NotifyKey> {
        self.ear.listens().then_some(&self.notify_key)
    }

    /// An answer that none of our functions gives.
    pub(crate) fn garbled(&self, doing: &str) -> Failure {
        let what = format!("the server's answer could not be read while {doing}");
        let error = Error::new(ErrorKind::Backend, what)
            .with_store(self.settings.describe())
            .with_hint("Has somebody changed tenure's functions? `tenure migrate --store URL` makes them as they should be");
        Failure { error, fate: Fate::Unknown, again: false }
    }

    /// One request on a connection, and what it says.
    async fn on<T>(
        &self,
        live: &Live,
        request: Request<'_>,
        doing: &str,
        parse: impl FnOnce(&[Row]) -> std::result::Result<T, Garbled>,
    ) -> std::result::Result<T, Failure> {
        let rows = match self.is_ours_alone(live) {
            true => live.send_prepared(&request, doing).await?,
            false => live.send(&request, doing).await?,
        };
        parse(&rows).map_err(|Garbled| self.garbled(doing))
    }

    /// Whether no pooler lends the server's end of a connection to others: a message that was sent to us has arrived on one that goes
    /// to the same place.
    fn is_ours_alone(&self, live: &Live) -> bool {
        self.ear.listens() && self.ear_link.open().is_some_and(|ear| ear.address == live.address)
    }

    /// The same on the connection for whatever is not urgent.
    async fn ask<T>(
        &self,
        request: Request<'_>,
        doing: &str,
        parse: impl FnOnce(&[Row]) -> std::result::Result<T, Garbled>,
    ) -> std::result::Result<T, Failure> {
        let live = self.asks.live().await?;
        self.on(&live, request, doing, parse).await
    }
}

impl PostgresDesk {
    pub(crate) fn new(settings: Settings) -> Result<Self> {
        let layout = settings.check()?;
        let (me, notify_key) = (ClientKey::from_le_bytes(random()), NotifyKey::draw());
        Ok(PostgresDesk { settings: Arc::new(settings), layout, me, notify_key, shared: OnceLock::new() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.shared.get().expect("whoever made the desk has attached a listener")
    }
}

/// Gives a connection up that was silent since then, unless what it carried is answered.
struct UntilAnswered<'a> {
    live: Option<&'a Live>,
    since: Instant,
}

impl Drop for UntilAnswered<'_> {
    fn drop(&mut self) {
        if let Some(live) = self.live {
            live.give_up_if_silent_since(self.since);
        }
    }
}

#[async_trait]
impl Desk for PostgresDesk {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    fn describe(&self) -> String {
        self.settings.describe()
    }

    fn client(&self) -> ClientKey {
        self.me
    }

    fn limits(&self) -> Limits {
        Limits { answer: self.settings.answer_limit, patience: self.settings.patience }
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        let asks = Link::new(&self.settings, &listener, false);
        let shared = Shared {
            settings: Arc::clone(&self.settings),
            layout: self.layout.clone(),
            verbs: Verbs::new(&self.layout),
            me: self.me,
            notify_key: self.notify_key.clone(),
            keep: asks.beside(true),
            ear_link: asks.beside(true),
            asks,
            ear: Ear::default(),
            listener,
        };
        let _ = self.shared.set(Arc::new(shared));
    }

    async fn ask(&self, asks: &[Asking]) -> Answer<Vec<Asked>> {
        let shared = self.shared();
        // Whoever is let in must be able to renew, though others take every connection that is left.
        shared.keep.live().await?;
        let key = shared.heard_with();
        let request = shared.verbs.ask(self.me, key, ALIVE, asks);
        let said = shared.ask(request, "asking for a lock", |rows| verbs::asked(rows, asks.len())).await?;
        let waits = said.value.iter().any(|(asked, _)| matches!(asked, Asked::Queued { .. }));
        if waits && key.is_none() && shared.ear.listens() {
            shared.tell_that_we_listen(); // the ear was made meanwhile, and our ask said that we have none
        }
        Ok(Said { now: said.now, value: said.value.into_iter().map(|(asked, _)| asked).collect() })
    }

    async fn end(&self, ends: &[Ending]) -> Answer<Vec<Ended>> {
        let shared = self.shared();
        let live = match shared.asks.at_hand() {
            Some(live) => live,
            None => shared.keep.live().await?,
        };
        let request = shared.verbs.end(ends);
        let said = shared.on(&live, request, "letting go of a lock", |rows| verbs::ended(rows, ends.len())).await?;
        Ok(Said { now: said.now, value: said.value.into_iter().map(|(ended, _)| ended).collect() })
    }

    async fn renew(&self, claims: &[Claim]) -> Answer<Vec<Renewed>> {
        let shared = self.shared();
        let live = shared.keep.live().await?;
        let mut guard = UntilAnswered { live: Some(&live), since: Instant::NEVER }; // whatever else it answers
        let request = shared.verbs.renew(claims.iter().map(|claim| (&claim.name, claim.id)));
        let answer = shared.on(&live, request, "renewing locks", |rows| verbs::renewed(rows, claims.len())).await;
        guard.live = None;
        answer
    }

    async fn touch(&self, beat: bool, waiters: &[(LockName, ClaimId)]) -> Answer<Looked> {
        let shared = self.shared();
        let live = match shared.ear() {
            Some(live) => live,
            None => shared.asks.live().await?,
        };
        let mut guard = UntilAnswered { live: Some(&live), since: Instant::now() };
        let claims = waiters.iter().map(|(name, id)| (name, *id));
        let request = shared.verbs.touch(self.me, beat, shared.heard_with(), ALIVE, claims);
        let parse = |rows: &[Row]| verbs::touched(rows, waiters.len());
        let answer = shared.on(&live, request, "looking after waiters", parse).await;
        guard.live = None;
        answer
    }

    async fn downgrade(&self, claim: &Claim) -> Answer<bool> {
        let shared = self.shared();
        let request = shared.verbs.downgrade(&claim.name, claim.id);
        let Said { now, value } = shared.ask(request, "downgrading a lock", verbs::counted).await?;
        Ok(Said { now, value: value > 0 })
    }

    async fn view(&self, name: &LockName) -> Answer<View> {
        let shared = self.shared();
        let viewed = |rows: &[Row]| verbs::viewed_alone(rows, name);
        shared.ask(shared.verbs.view(name), "looking at a lock", viewed).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>> {
        let shared = self.shared();
        shared.ask(shared.verbs.list(prefix, after, limit), "listing locks", verbs::viewed).await
    }

    async fn request(&self, name: &LockName, ask: &Ask) -> Answer<usize> {
        let shared = self.shared();
        shared.ask(shared.verbs.request(name, ask), "asking holders to let go", verbs::counted).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Answer<usize> {
        let shared = self.shared();
        shared.ask(shared.verbs.break_holds(name, only), "breaking a lock", verbs::counted).await
    }

    async fn cell_get(&self, name: &LockName) -> Answer<Versioned> {
        let shared = self.shared();
        shared.ask(shared.verbs.cell_get(name), "reading a cell", verbs::cell).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Answer<Option<u64>> {
        let shared = self.shared();
        shared.ask(shared.verbs.cell_set(name, expected, value), "writing a cell", verbs::cell_written).await
    }

    async fn tidy_after(&self, after: Option<&LockName>, limit: usize, quiet: Duration) -> Answer<Option<LockName>> {
        let shared = self.shared();
        shared.ask(shared.verbs.tidy_after(after, limit, quiet), "tidying up", verbs::tidied).await
    }

    async fn leave(&self) -> Answer<()> {
        let shared = self.shared();
        shared.ask(shared.verbs.leave(self.me), "leaving", verbs::done).await
    }

    async fn probe(&self) -> Answer<()> {
        let shared = self.shared();
        shared.ask(shared.verbs.probe(), "probing", |_| Ok(Said { now: 0, value: () })).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.shared().examine().await
    }
}
