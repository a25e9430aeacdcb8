//! A store with faults at the flick of a switch: requests that fail, replies that are late, lost or never come.
//!
//! It wraps a real backend and forwards to it, so that what the store *did* and what the client *heard* can differ: that
//! is where locks go wrong.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Finding, async_trait};
use tenure_core::{
    Abilities, Ask, Backend, Claim, Error, ErrorKind, Grant, Instant, LockName, News, Renewal, Result, Sequencer, Standing,
    Token, View, Wait,
};

/// A backend with faults in front of it.
pub struct Faulty {
    inner: Arc<dyn Backend>,
    faults: Arc<Faults>,
}

impl Faulty {
    /// Wraps a backend; everything works until a switch is turned.
    pub fn new(inner: Arc<dyn Backend>) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (Faulty { inner, faults: Arc::clone(&faults) }, faults)
    }
}

/// The switches, and what was counted.
#[derive(Debug, Default)]
pub struct Faults {
    renewals_fail: AtomicBool,
    renewals_to_hang: AtomicUsize,
    grants_lost: AtomicUsize,
    next_grant_delayed_ns: AtomicU64,
    releases_lost: AtomicUsize,
    downgrades_lost: AtomicUsize,
    next_downgrade_late: AtomicBool,
    late_downgrade: Mutex<Option<Claim>>,
    news_lost: AtomicBool,
    renew_calls: AtomicUsize,
    renewed_claims: AtomicUsize,
    release_calls: AtomicUsize,
    hung: Mutex<Vec<Hung>>,
}

/// A renewal that got no answer.
#[derive(Clone, Copy, Debug)]
pub struct Hung {
    /// When it was sent.
    pub sent: Instant,
    /// When its caller gave up on it.
    pub dropped: Option<Instant>,
}

impl Faults {
    /// Renewals fail, without reaching the store.
    pub fn fail_renewals(&self, fail: bool) {
        self.renewals_fail.store(fail, SeqCst);
    }

    /// The next so many renewals get no answer at all.
    pub fn hang_renewals(&self, many: usize) {
        self.renewals_to_hang.store(many, SeqCst);
    }

    /// The store handles the next so many asks, and the answers are lost.
    pub fn lose_grants(&self, many: usize) {
        self.grants_lost.store(many, SeqCst);
    }

    /// The store handles the next ask at once, and its answer takes so long.
    pub fn delay_next_grant(&self, by: Duration) {
        self.next_grant_delayed_ns.store(by.as_nanos() as u64, SeqCst);
    }

    /// The next so many releases fail, without reaching the store.
    pub fn lose_releases(&self, many: usize) {
        self.releases_lost.store(many, SeqCst);
    }

    /// The store handles the next so many downgrades, and the answers are lost.
    pub fn lose_downgrades(&self, many: usize) {
        self.downgrades_lost.store(many, SeqCst);
    }

    /// The next downgrade gets no answer, and reaches the store only after the next grant.
    pub fn delay_next_downgrade(&self) {
        self.next_downgrade_late.store(true, SeqCst);
    }

    /// Whether a downgrade is still under way.
    pub fn downgrade_is_under_way(&self) -> bool {
        self.late_downgrade().is_some()
    }

    fn late_downgrade(&self) -> MutexGuard<'_, Option<Claim>> {
        self.late_downgrade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store says on its own account is not heard. Must be set before the client is made to matter.
    pub fn lose_news(&self, lose: bool) {
        self.news_lost.store(lose, SeqCst);
    }

    /// How often `renew` was called.
    pub fn renew_calls(&self) -> usize {
        self.renew_calls.load(SeqCst)
    }

    /// For how many claims altogether.
    pub fn renewed_claims(&self) -> usize {
        self.renewed_claims.load(SeqCst)
    }

    /// How often `release` was called.
    pub fn release_calls(&self) -> usize {
        self.release_calls.load(SeqCst)
    }

    /// The renewals that got no answer.
    pub fn hung(&self) -> Vec<Hung> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Never completes; notes when its caller gives up.
    async fn hang(&self) {
        struct Noting<'a>(&'a Faults, usize);
        impl Drop for Noting<'_> {
            fn drop(&mut self) {
                self.0.hung.lock().unwrap_or_else(PoisonError::into_inner)[self.1].dropped = Some(Instant::now());
            }
        }
        let noting = {
            let mut hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
            hung.push(Hung { sent: Instant::now(), dropped: None });
            Noting(self, hung.len() - 1)
        };
        std::future::pending::<()>().await;
        drop(noting);
    }
}

/// Takes one off a counter, if there is one.
fn take_one(counter: &AtomicUsize) -> bool {
    counter.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn lost(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what} was lost on the way, as this test wants it"))
}

#[async_trait]
impl Backend for Faulty {
    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        let answer = self.inner.acquire(claim, wait).await?;
        let late = if answer.is_some() { self.faults.late_downgrade().take() } else { None };
        if let Some(late) = late {
            let _ = self.inner.downgrade(&late).await; // nobody hears the answer
        }
        if take_one(&self.faults.grants_lost) {
            return Err(lost("the answer"));
        }
        let delay = Duration::from_nanos(self.faults.next_grant_delayed_ns.swap(0, SeqCst));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(answer)
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.faults.renew_calls.fetch_add(1, SeqCst);
        self.faults.renewed_claims.fetch_add(claims.len(), SeqCst);
        if take_one(&self.faults.renewals_to_hang) {
            self.faults.hang().await;
        }
        if self.faults.renewals_fail.load(SeqCst) {
            return claims.iter().map(|_| Err(lost("the renewal"))).collect();
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        self.faults.release_calls.fetch_add(1, SeqCst);
        if take_one(&self.faults.releases_lost) {
            return Err(lost("the release"));
        }
        self.inner.release(claim).await
    }

    fn attach(&self, news: News) {
        if !self.faults.news_lost.load(SeqCst) {
            self.inner.attach(news);
        }
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        if self.faults.next_downgrade_late.swap(false, SeqCst) {
            *self.faults.late_downgrade() = Some(claim.clone());
            return Err(lost("the downgrade"));
        }
        let answer = self.inner.downgrade(claim).await;
        if take_one(&self.faults.downgrades_lost) { Err(lost("the answer")) } else { answer }
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.inner.view(name).await
    }

    async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        self.inner.check(sequencer).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.inner.watch(name, seen).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.inner.ask(name, ask).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.inner.break_holds(name, only).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<tenure_core::Versioned> {
        self.inner.cell_get(name).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.inner.cell_set(name, expected, value).await
    }

    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
