//! What a client's tasks share, and the way of each verb to its server and back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tenure_core::backend::Finding;
use tenure_core::lease::Lowered;
use tenure_core::{Ask, Claim, ClaimId, Error, ErrorKind, Instant, LockName, Result, Token, Versioned, View, random};

use crate::config::Settings;
use crate::ear::Ear;
use crate::error::Failure;
use crate::examine;
use crate::fleet::{Answer, Fleet, Lane};
use crate::link::Listener;
use crate::schema::{Bucket, hex};
use crate::scripts::{self, Script};
use crate::verbs;

/// One client of one store.
pub(crate) struct Inner {
    pub(crate) fleet: Fleet,
    pub(crate) ear: Arc<Ear>,
    /// Claims of whose asks a copy may be on its way, and since when: their end leaves a mark. All others were asked for once
    /// and answered, or so long ago that no copy is expected any more.
    doubtful: Mutex<HashMap<ClaimId, Instant>>,
    /// Whether the heart beats.
    pub(crate) beats: Arc<AtomicBool>,
    /// Counts asks, and where in the index the next look for forgotten names begins.
    asks: AtomicU32,
    tidied: Mutex<(Bucket, Option<LockName>)>,
    /// The other servers of a Redlock, those that were named before this one.
    pub(crate) siblings: OnceLock<Vec<Weak<Inner>>>,
    /// Whether somebody tries to listen again.
    listening: Arc<AtomicBool>,
    /// Whether a server of a Redlock that was never reached is being tried.
    pub(crate) reaching: Arc<AtomicBool>,
}

/// A claim that was asked for and not answered yet.
pub(crate) struct Doubt<'a> {
    inner: &'a Inner,
    id: ClaimId,
    /// Some copy of the ask has no answer.
    pub(crate) remains: bool,
}

impl Doubt<'_> {
    /// An answer came. Whether it was to the only copy there is.
    pub(crate) fn answered(self) -> bool {
        if !self.remains {
            self.inner.doubtful().remove(&self.id);
        }
        !self.remains
    }
}

/// How long a mark stays that a claim was ended, and how long a copy of its ask is expected that was not answered.
pub(crate) const MARK: Duration = Duration::from_secs(60);
/// One ask in so many looks for names whose records are gone: their clients died and nobody has come since.
const TIDY_EVERY: u32 = 256;
/// How many names it looks at.
const TIDY_AT_ONCE: usize = 64;

impl Inner {
    /// A client that has not connected to anything yet.
    pub(crate) fn new(settings: Settings) -> Result<Arc<Self>> {
        settings.check()?;
        let ear = Arc::new(Ear::default());
        let listener: Arc<dyn Listener> = ear.clone();
        Ok(Arc::new(Inner {
            fleet: Fleet::new(Arc::new(settings), listener, hex(&random::<12>())),
            ear,
            doubtful: Mutex::default(),
            beats: Arc::default(),
            asks: AtomicU32::new(0),
            tidied: Mutex::default(),
            siblings: OnceLock::new(),
            listening: Arc::default(),
            reaching: Arc::default(),
        }))
    }

    /// Connects to one of the servers, to learn early what is wrong.
    pub(crate) async fn reach(&self) -> Result<()> {
        let limit = self.fleet.settings.connect_limit;
        match tokio::time::timeout(limit, self.fleet.reach(0)).await {
            Ok(reached) => Ok(reached.map(drop)?),
            Err(_) => Err(self.fleet.silent(0, limit).error),
        }
    }

    pub(crate) fn bucket(&self, name: &LockName) -> Bucket {
        self.fleet.layout.bucket(name)
    }

    /// One script about one name, tried again while that may help.
    pub(crate) async fn run(
        &self,
        name: &LockName,
        script: &'static Script,
        command: &Cmd,
    ) -> std::result::Result<Answer, Failure> {
        let grants = script.name == scripts::ASK.name;
        let lane = if self.fleet.settings.min_replicas > 0 && grants { Lane::SyncedAsks } else { Lane::Asks };
        self.fleet.insist(lane, self.bucket(name), Some(script), command, self.fleet.settings.answer_limit).await
    }

    /// One command about a bucket, tried again while that may help: a script, or a plain read.
    async fn ask_bucket(&self, bucket: Bucket, script: Option<&'static Script>, command: &Cmd) -> Result<Value> {
        let limit = self.fleet.settings.answer_limit;
        Ok(self.fleet.insist(Lane::Asks, bucket, script, command, limit).await?.value)
    }

    /// One script about one name, tried once: for what is not the same when it is done twice.
    async fn run_once(&self, name: &LockName, script: &'static Script, command: &Cmd) -> Result<Answer> {
        let (bucket, limit) = (self.bucket(name), self.fleet.settings.answer_limit);
        match tokio::time::timeout(limit, self.fleet.call(Lane::Asks, bucket, Some(script), command)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(self.fleet.silent(bucket, limit).error),
        }
    }

    fn doubtful(&self) -> MutexGuard<'_, HashMap<ClaimId, Instant>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is about to be asked for. Until the ask is answered, and for as long as a mark stays if it is not, a copy of it
    /// may be on its way.
    pub(crate) fn doubt(&self, id: ClaimId) -> Doubt<'_> {
        let remains = self.doubtful().insert(id, Instant::now()).is_some(); // an earlier ask of this claim was never answered
        Doubt { inner: self, id, remains }
    }

    /// Forgets doubts of which nothing can come any more: during an outage each request leaves one.
    fn forget_doubts(&self, now: Instant) {
        self.doubtful().retain(|_, since| now.since(*since) < MARK);
    }

    /// Ends whatever a claim left behind; `false` if nothing was surely there. It leaves a mark where an ask of it may still arrive.
    pub(crate) async fn end(&self, claim: &Claim, min_hold: Duration) -> Result<bool> {
        let mark = if self.doubtful().contains_key(&claim.id) { MARK } else { Duration::ZERO };
        let command = verbs::end(&self.fleet.layout, self.fleet.publish(), &claim.name, claim.id, min_hold, mark);
        let answer = self.run(&claim.name, &scripts::END, &command).await?;
        let (_, was_there) = verbs::ended(answer.value)?;
        self.doubtful().remove(&claim.id);
        Ok(was_there || !answer.clean)
    }

    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        let command = verbs::downgrade(&self.fleet.layout, self.fleet.publish(), &claim.name, claim.id);
        // A replica that does not know of it yet keeps readers out: it needs no confirmation.
        let answer = self.run(&claim.name, &scripts::DOWNGRADE, &command).await?;
        Ok(verbs::counted(answer.value)?.1 > 0)
    }

    pub(crate) async fn view(&self, name: &LockName) -> Result<View> {
        let command = verbs::view(&self.fleet.layout, &[name]);
        let answer = self.ask_bucket(self.bucket(name), Some(&scripts::VIEW), &command).await?;
        let mut views = verbs::viewed(answer, &[name])?.1;
        Ok(views.pop().unwrap_or_else(|| View::free(name.clone())))
    }

    /// Tried once: the second time it might ask somebody who came after the first.
    pub(crate) async fn request(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        let command = verbs::request(&self.fleet.layout, self.fleet.publish(), name, ask);
        Ok(verbs::counted(self.run_once(name, &scripts::REQUEST, &command).await?.value)?.1)
    }

    /// Tried once: the second time it would break whoever was let in by the first.
    pub(crate) async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        let command = verbs::break_holds(&self.fleet.layout, self.fleet.publish(), name, only);
        Ok(verbs::counted(self.run_once(name, &scripts::BREAK, &command).await?.value)?.1)
    }

    pub(crate) async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        let command = verbs::cell_get(&self.fleet.layout, name);
        verbs::cell(self.ask_bucket(self.bucket(name), None, &command).await?)
    }

    /// A write that may have happened twice is not tried again: the second time it would say that somebody was faster.
    pub(crate) async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        let command = verbs::cell_set(&self.fleet.layout, name, expected, value);
        Ok(verbs::cell_written(self.run_once(name, &scripts::CELL_SET, &command).await?.value)?.1)
    }

    pub(crate) async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token> {
        let command = verbs::raise(&self.fleet.layout, self.bucket(name), at_least);
        Ok(verbs::raised(self.run(name, &scripts::RAISE, &command).await?.value)?.1)
    }

    pub(crate) async fn probe(&self) -> Result<()> {
        let command = verbs::probe(&self.fleet.layout, 0);
        self.ask_bucket(0, Some(&scripts::PROBE), &command).await.map(drop)
    }

    /// What every server of the store says about itself, each once.
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>> {
        let mut seen = HashSet::new();
        let mut findings = Vec::new();
        for bucket in self.fleet.layout.buckets() {
            let live = self.fleet.reach(bucket).await?;
            if let Some(node) = self.fleet.known(bucket).filter(|node| seen.insert(node.address.clone())) {
                let address = &node.address;
                let server = live.look(address, &self.fleet.settings).await?;
                let several = self.fleet.is_cluster();
                findings.extend(examine::findings(&server, &self.fleet.settings).into_iter().map(|finding| Finding {
                    what: if several { format!("{address}: {}", finding.what) } else { finding.what },
                    ..finding
                }));
            }
        }
        Ok(findings)
    }

    /// One page of names in use: each bucket's own page, merged.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        let mut views = Vec::new();
        let mut after = after.cloned();
        while views.len() < limit {
            let (wanted, from) = ((limit - views.len()).min(LIST_AT_ONCE), after.as_ref());
            let buckets = self.fleet.layout.buckets();
            let pages: Vec<_> = buckets.map(|bucket| self.names(bucket, prefix, from, wanted)).collect();
            let mut names = BTreeMap::new();
            let mut horizon: Option<LockName> = None; // what every bucket has told us of
            for page in join_all(pages).await {
                let (bucket, page) = page?;
                if let Some(last) =
                    page.last().filter(|last| page.len() == wanted && horizon.as_ref().is_none_or(|known| *last < known))
                {
                    horizon = Some(last.clone());
                }
                names.extend(page.into_iter().map(|name| (name, bucket)));
            }
            let known = names.into_iter().filter(|(name, _)| horizon.as_ref().is_none_or(|horizon| name <= horizon));
            let page: Vec<(LockName, Bucket)> = known.take(wanted).collect();
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            views.extend(self.views(&page).await?);
        }
        Ok(views)
    }

    async fn names(
        &self,
        bucket: Bucket,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<(Bucket, Vec<LockName>)> {
        let command = verbs::list(&self.fleet.layout, bucket, prefix, after, limit);
        Ok((bucket, verbs::listed(self.ask_bucket(bucket, None, &command).await?)?))
    }

    /// The views of these names that are in use, in order; names whose records are gone are forgotten on the way.
    async fn views(&self, page: &[(LockName, Bucket)]) -> Result<Vec<View>> {
        let mut buckets: BTreeMap<Bucket, Vec<&LockName>> = BTreeMap::new();
        for (name, bucket) in page {
            buckets.entry(*bucket).or_default().push(name);
        }
        let mut reads = Vec::new();
        for (bucket, names) in &buckets {
            reads.extend(names.chunks(VIEWS_AT_ONCE).map(|names| self.read(*bucket, names)));
        }
        let mut views = Vec::new();
        for read in join_all(reads).await {
            views.extend(read?.into_iter().filter(|view| !view.is_free()));
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    async fn read(&self, bucket: Bucket, names: &[&LockName]) -> Result<Vec<View>> {
        let command = verbs::view(&self.fleet.layout, names);
        let views = verbs::viewed(self.ask_bucket(bucket, Some(&scripts::VIEW), &command).await?, names)?.1;
        let free: Vec<&LockName> = views.iter().filter(|view| view.is_free()).map(|view| &view.name).collect();
        if !free.is_empty() {
            self.tidy(bucket, &free).await?;
        }
        Ok(views)
    }

    async fn tidy(&self, bucket: Bucket, names: &[&LockName]) -> Result<()> {
        let command = verbs::tidy(&self.fleet.layout, bucket, names);
        self.ask_bucket(bucket, Some(&scripts::TIDY), &command).await.map(drop)
    }

    /// Now and then, a look at a part of the index, for names that nobody has used since their client died.
    pub(crate) fn tidy_now_and_then(self: &Arc<Self>) {
        if !self.asks.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIDY_EVERY) {
            return;
        }
        self.forget_doubts(Instant::now());
        let inner = Arc::clone(self);
        self.spawn(async move {
            let (bucket, after) = inner.tidied.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Ok((_, names)) = inner.names(bucket, "", after.as_ref(), TIDY_AT_ONCE).await else { return };
            let next = match names.last() {
                Some(last) if names.len() == TIDY_AT_ONCE => (bucket, Some(last.clone())),
                _ => ((bucket + 1) % inner.fleet.layout.buckets().count() as Bucket, None),
            };
            *inner.tidied.lock().unwrap_or_else(PoisonError::into_inner) = next;
            let names: Vec<&LockName> = names.iter().collect();
            if !names.is_empty() {
                let _ = inner.tidy(bucket, &names).await;
            }
        });
    }

    /// Listens again where that has stopped: whoever only holds would else hear of a restart, or of an ask, at its next
    /// renewal.
    pub(crate) fn listen_again(self: &Arc<Self>) {
        let deaf: Vec<Bucket> = self.fleet.heard_of().filter(|bucket| !self.fleet.is_listening(*bucket)).collect();
        if deaf.is_empty() || self.listening.swap(true, Ordering::Relaxed) {
            return;
        }
        let (inner, listening) = (Arc::clone(self), Lowered(Arc::clone(&self.listening)));
        self.spawn(async move {
            let _listening = listening;
            let patience = inner.fleet.settings.patience;
            let attempts: Vec<_> =
                deaf.into_iter().map(|bucket| inner.fleet.insist_on_listening(bucket, patience)).collect();
            join_all(attempts).await;
        });
    }

    /// Does something in the background, wherever there is a runtime for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let keepers = self.ear.news.get().and_then(|news| news.runtime());
        if let Some(runtime) = keepers.or_else(|| tokio::runtime::Handle::try_current().ok()) {
            runtime.spawn(work);
        }
    }

    pub(crate) fn too_few_replicas(&self, confirmed: u32) -> Error {
        let Settings { min_replicas, replica_wait, .. } = &*self.fleet.settings;
        let what = format!("{confirmed} of {min_replicas} replicas confirmed within {replica_wait:?}");
        Error::new(ErrorKind::Unavailable, what)
            .with_hint("Look at the replicas' links (INFO replication), or ask for fewer with min_replicas")
    }
}

/// How many names one command lists.
const LIST_AT_ONCE: usize = 512;
/// How many records one script reads.
const VIEWS_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_without_an_answer_are_not_remembered_for_good() {
        let inner = Inner::new(Settings::from_url(&"redis://localhost".parse().unwrap()).unwrap()).unwrap();
        let ids: Vec<ClaimId> = (0..1_000_u128).map(|number| ClaimId::from_bytes(number.to_be_bytes())).collect();
        let now = Instant::now();
        assert!(ids.iter().all(|id| !inner.doubt(*id).remains)); // and nobody answered
        inner.forget_doubts(now);
        assert_eq!(inner.doubtful().len(), 1_000, "copies may be on their way");
        inner.forget_doubts(Instant::now() + MARK);
        assert_eq!(inner.doubtful().len(), 0);
        assert!(inner.doubt(ids[0]).answered(), "it was the only copy");
    }
}
