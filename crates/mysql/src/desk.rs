//! Each verb's way to the server.
//!
//! Three connections at most: one for asks and all that is only read, one for renewals and ends, which nothing that a user
//! asks for can hold up, and one for looking after waiters. An end whose caller finds the first one idle goes there.
//!
//! # Why waiters look, and are not told
//!
//! The server cannot speak unasked. One thing comes close: a session that sits in `SLEEP` can be woken by another with
//! `KILL QUERY`, so a release could wake whoever it lets in. It is not done, for these reasons:
//!
//! - Whom a `KILL QUERY` hits is not known: between the look at what the session does and the kill it may have gone on to
//!   the next statement, which then breaks off in the middle, with its transaction open and its fate unknown.
//! - It needs the same user, or the right to kill anybody's sessions, which no lock should need.
//! - A session's number is good for one run of one server, and not behind a proxy; on Galera it is another node's.
//! - It is done at once, whether or not the release is committed: it would have to come after the commit, and whoever is
//!   killed in between is never told.
//!
//! What it could save is small. A waiter looks again after a sixteenth of the time it has waited, so looking adds a
//! thirty-second to a wait on average, never more than 100 ms; and what looking costs does not grow with the number of
//! waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{Abilities, Fencing, Finding, Liveness, Reach, Waiting, async_trait};
use tenure_core::lease::{
    ALIVE, Answer, Asked, Asking, Desk, Ended, Ending, Failure, Fate, Limits, Listener, Looked, MARK, Renewed, Said,
};
use tenure_core::record::ClientKey;
use tenure_core::{Ask, Claim, ClaimId, Error, ErrorKind, Instant, Kind, LockName, MIN_TTL, Result, Token, Versioned, View};

use crate::config::Settings;
use crate::examine::{self, Server};
use crate::link::{Link, OPENS, Rows, Shared};
use crate::schema;
use crate::solo::Solo;
use crate::verbs::{self, AtOnce, Nonsense};

/// What MySQL and MariaDB can do in lease mode.
pub const ABILITIES: Abilities = Abilities {
    store: "mysql",
    kinds: &Kind::ALL,
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Polled,
    liveness: Liveness::Lease,
    reach: Reach::Network,
    cells: true,
    delays: true,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// How many names are tidied in one transaction: whoever comes to a new name waits for it.
const TIDY_AT_ONCE: usize = 32;
/// While anybody waits, the places are kept about once a second; if they were not for so long, probably nobody does.
const BEATS_STOPPED: Duration = Duration::from_millis(1_500);

/// A client of one server.
pub(crate) struct Tables {
    settings: Arc<Settings>,
    client: ClientKey,
    shared: Arc<Shared>,
    pub(crate) asks: Link,
    keep: Link,
    ear: Link,
    /// When this client was last heard of by the server, if it has a row there; else 0.
    beat: AtomicU64,
    /// The short way.
    at_once: AtOnce,
    /// Which names and claims it is worth trying for.
    solo: Solo,
}

impl Tables {
    pub(crate) fn new(settings: Settings, client: ClientKey) -> Self {
        let (settings, shared) = (Arc::new(settings), Arc::<Shared>::default());
        let link = |home| Link::new(&settings, &shared, home);
        // The last two are used on the keeper's runtime. There a connection is made in the background, whoever gives up meanwhile.
        let (asks, keep, ear) = (link(false), link(true), link(true));
        let at_once = AtOnce::new(&settings.prefix);
        Tables { settings, client, shared, asks, keep, ear, beat: AtomicU64::new(0), at_once, solo: Solo::default() }
    }

    fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    fn sense<T>(&self, read: Result<T, Nonsense>) -> Result<T, Failure> {
        read.map_err(|Nonsense| {
            let error = Error::new(ErrorKind::Backend, "the server's answer is not what was asked for")
                .with_store(self.settings.describe())
                .with_hint("Are the procedures ours? `tenure migrate` puts them right");
            Failure { error, fate: Fate::Unknown, again: false }
        })
    }

    /// Takes a name that nobody else seems to want with one plain statement; `None` if somebody does, and nothing was done.
    async fn ask_at_once(&self, asking: &Asking) -> Result<Option<Said<Vec<Asked>>>, Failure> {
        let Asking { claim, .. } = asking;
        if !self.solo.is_worth_trying(&claim.name) || !verbs::fits(claim.mode) {
            return Ok(None);
        }
        let text = |server: &Server| server.writes_at_once().then(|| self.at_once.ask(self.client, asking));
        let Some((1, drawn)) = self.asks.write("asking", text).await? else { return Ok(None) };
        let granted = Asked::Granted { token: Token::new(drawn), left: claim.ttl };
        self.solo.asked(asking, true);
        Ok(Some(Said { now: drawn, value: vec![granted] }))
    }

    /// Lets go of a name that was taken so, if nobody else has come meanwhile. Whether that was so.
    async fn end_at_once(&self, ending: &Ending) -> Result<bool, Failure> {
        if !self.solo.ends(ending) {
            return Ok(false);
        }
        let text = |server: &Server| server.writes_at_once().then(|| self.at_once.end(ending));
        // The connection that is kept for it lives on the keeper's thread: a detour, where nobody is in the way.
        let link = if self.asks.is_at_hand() { &self.asks } else { &self.keep };
        Ok(matches!(link.write("ending", text).await?, Some((1, _))))
    }

    /// Fetches what others had to say to this client.
    async fn fetch_mail(&self) -> Answer<()> {
        let said = self.touch_once(None, &[]).await?;
        if let Some(listener) = self.shared.listener() {
            said.value.mail.into_iter().for_each(|message| listener.told(message));
        }
        Ok(Said { now: said.now, value: () })
    }

    async fn touch_once(&self, alive: Option<Duration>, waiters: &[(LockName, ClaimId)]) -> Answer<Looked> {
        let ids = waiters.iter().map(|(_, id)| *id);
        let sets = self.ear.send("looking after waiters", |_| verbs::touch(self.prefix(), self.client, alive, ids)).await?;
        self.sense(verbs::touched(&sets).map(|(said, _)| said))
    }

    /// Removes this client's row, unless somebody waits all the same: on a busy machine a beat may be late, and whoever
    /// stands at the head of a line would be thought dead. Who begins to wait between the two is alive by itself until the
    /// next beat.
    async fn forget_client(&self, beat: u64) -> Result<(), Failure> {
        let (prefix, client) = (self.prefix(), self.client);
        let text = format!("SELECT COUNT(*) FROM {prefix}ticket WHERE client = {client} AND waiting = 1");
        let waiting = self.ear.send("tidying", |_| text).await?;
        let waiting = waiting.first().and_then(|rows| rows.first()).and_then(|row| verbs::number(row, 0));
        if waiting == Some(0) {
            let text = format!("DELETE FROM {prefix}client WHERE id = {client}");
            self.ear.send("tidying", |_| text).await?;
            let _ = self.beat.compare_exchange(beat, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn tidy_names(&self, names: &[LockName], quiet: Duration) -> Result<(), Failure> {
        for names in names.chunks(TIDY_AT_ONCE) {
            let calls = names.iter().map(|name| verbs::tidy(self.prefix(), name, quiet)).collect();
            self.ear.send("tidying", |_| together(calls)).await?;
        }
        Ok(())
    }

    async fn rows(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.asks.send(doing, |_| text).await
    }

    /// The same for what nobody sends again.
    async fn rows_once(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.asks.send_once(doing, text).await
    }
}

/// Several calls in one transaction, of which each that fails undoes all.
fn together(calls: Vec<String>) -> String {
    format!("{OPENS}; {}; COMMIT", calls.join("; "))
}

/// One call alone, or several together where the server can do that.
fn batch(server: &Server, many: usize, call: impl Fn(usize, bool) -> String) -> String {
    let alone = many == 1 || !server.takes_batches();
    let calls: Vec<String> = (0..many).map(|place| call(place, alone)).collect();
    if alone { calls.join("; ") } else { together(calls) }
}

#[async_trait]
impl Desk for Tables {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    fn describe(&self) -> String {
        self.settings.describe()
    }

    fn client(&self) -> ClientKey {
        self.client
    }

    fn limits(&self) -> Limits {
        Limits { answer: self.settings.answer_limit, patience: self.settings.patience }
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        self.shared.attach(listener);
    }

    async fn ask(&self, asks: &[Asking]) -> Answer<Vec<Asked>> {
        // Whoever is let in must be able to renew, though others take every connection that is left.
        self.keep.stand_ready().await?;
        if let [asking] = asks
            && let Some(said) = self.ask_at_once(asking).await?
        {
            return Ok(said);
        }
        let call = |place: usize, alone| verbs::ask(self.prefix(), self.client, &asks[place], ALIVE, alone);
        let mut is_apart = false;
        let sets = self.asks.send("asking", |server| {
            is_apart = asks.len() > 1 && !server.takes_batches();
            batch(server, asks.len(), call)
        });
        // Each of those is committed by itself: one that was refused says nothing of those before it.
        let unknown = |failure| Failure { fate: Fate::Unknown, ..failure };
        let sets = sets.await;
        let sets = sets.map_err(|failure| if is_apart { unknown(failure) } else { failure })?;
        let answers = self.sense(verbs::asked(&sets))?;
        asks.iter().zip(&answers).for_each(|(asking, answer)| self.solo.asked(asking, answer.solo));
        // One commit, one time: the last, before which nobody else has seen any of it.
        let now = answers.last().map_or(0, |answer| answer.now);
        Ok(Said { now, value: answers.into_iter().map(|answer| answer.asked).collect() })
    }

    async fn end(&self, ends: &[Ending]) -> Answer<Vec<Ended>> {
        if let [ending] = ends
            && self.end_at_once(ending).await?
        {
            return Ok(Said { now: 0, value: vec![Ended::Done] });
        }
        let call = |place: usize, alone| verbs::end(self.prefix(), &ends[place], alone);
        let sets = self.keep.send("ending", |server| batch(server, ends.len(), call)).await?;
        self.sense(verbs::ended(&sets))
    }

    async fn renew(&self, claims: &[Claim]) -> Answer<Vec<Renewed>> {
        let claims_of = claims.iter().map(|claim| (&claim.name, claim.id));
        let sets = self.keep.send("renewing", |_| verbs::renew(self.prefix(), claims_of)).await?;
        self.sense(verbs::renewed(&sets, claims.len()))
    }

    async fn stand_ready(&self) -> Result<(), Failure> {
        self.ear.stand_ready().await
    }

    async fn touch(&self, beat: bool, waiters: &[(LockName, ClaimId)]) -> Answer<Looked> {
        if beat {
            self.beat.store(Instant::now().as_nanos(), Ordering::Relaxed);
        }
        self.touch_once(beat.then_some(ALIVE), waiters).await
    }

    async fn downgrade(&self, claim: &Claim) -> Answer<bool> {
        let text = verbs::downgrade(self.prefix(), &claim.name, claim.id);
        let Said { now, value } = self.sense(verbs::counted(&self.rows("downgrading", text).await?))?;
        Ok(Said { now, value: value > 0 })
    }

    async fn view(&self, name: &LockName) -> Answer<View> {
        let said = self.sense(verbs::viewed(&self.rows("looking", verbs::view(self.prefix(), name)).await?))?;
        let view = said.value.into_iter().next().unwrap_or_else(|| View::free(name.clone()));
        Ok(Said { now: said.now, value: view })
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>> {
        let mut views: Vec<View> = Vec::new();
        let mut after = after.cloned();
        loop {
            let wanted = limit - views.len();
            let text = verbs::list(self.prefix(), prefix, after.as_ref(), wanted);
            let said = self.sense(verbs::viewed(&self.rows("listing", text).await?))?;
            let is_last = said.value.len() < wanted;
            after = said.value.last().map(|view| view.name.clone());
            // Where time has ended everybody, nobody has come by since.
            views.extend(said.value.into_iter().filter(|view| !view.is_free()));
            if is_last || views.len() == limit {
                return Ok(Said { now: said.now, value: views });
            }
        }
    }

    async fn request(&self, name: &LockName, ask: &Ask) -> Answer<usize> {
        self.sense(verbs::counted(&self.rows_once("asking holders", verbs::request(self.prefix(), name, ask)).await?))
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Answer<usize> {
        self.sense(verbs::counted(&self.rows_once("breaking", verbs::break_holds(self.prefix(), name, only)).await?))
    }

    async fn cell_get(&self, name: &LockName) -> Answer<Versioned> {
        self.sense(verbs::cell(&self.rows("reading a cell", verbs::cell_get(self.prefix(), name)).await?))
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Answer<Option<u64>> {
        let text = verbs::cell_set(self.prefix(), name, expected, value);
        self.sense(verbs::cell_written(&self.rows_once("writing a cell", text).await?))
    }

    async fn tidy_after(&self, after: Option<&LockName>, limit: usize, quiet: Duration) -> Answer<Option<LockName>> {
        if after.is_none() {
            let beat = self.beat.load(Ordering::Relaxed);
            if beat > 0 && Instant::now().since(Instant::from_nanos(beat)) > BEATS_STOPPED {
                self.forget_client(beat).await?;
            }
            self.fetch_mail().await?; // what was said to whom has let go meanwhile
        }
        let text = verbs::names_after(self.prefix(), after, limit, quiet);
        let said = self.sense(verbs::names(&self.ear.send("tidying", |_| text).await?))?;
        self.tidy_names(&said.value, quiet).await?;
        let text = format!("CALL {}leftovers({limit}, {})", self.prefix(), verbs::micros(MARK));
        self.ear.send("tidying", |_| text).await?;
        let is_last = said.value.len() < limit;
        Ok(Said { now: said.now, value: said.value.into_iter().last().filter(|_| !is_last) })
    }

    async fn leave(&self) -> Answer<()> {
        self.fetch_mail().await?;
        self.forget_client(self.beat.load(Ordering::Relaxed)).await?;
        // Holds may go on, and their renewals need their connection at once; the others are made when they are needed.
        self.ear.close().await;
        self.asks.close().await;
        Ok(Said { now: 0, value: () })
    }

    async fn probe(&self) -> Answer<()> {
        // One row, written and committed: a place in `setup` that stays.
        let text = format!(
            "INSERT INTO {}setup (id, version) VALUES (2, 0) ON DUPLICATE KEY UPDATE version = (version + 1) % 1000000",
            self.prefix()
        );
        self.rows("probing", text).await?;
        Ok(Said { now: 0, value: () })
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let server = self.asks.server().await?;
        let mut findings = examine::findings(&server, &self.settings);
        let sets = self.rows("looking at the tables", verbs::sizes(self.prefix())).await?;
        if let Some(row) = sets.first().and_then(|rows| rows.first()) {
            let [names, tickets, free] = [0, 1, 2].map(|column| verbs::number(row, column).unwrap_or(0));
            findings.push(examine::tables_finding(names, tickets, free));
        }
        let found = schema::found(&self.rows("looking at the procedures", schema::look(self.prefix())).await?);
        findings.push(schema::stamp_of_text().finding(found.and_then(|(_, stamp)| stamp)));
        Ok(findings)
    }
}
