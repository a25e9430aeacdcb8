//! A suite that cannot fail proves nothing: memory with one fault planted must fail the cases that are about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Finding, async_trait};
use tenure_core::{
    Abilities, Ask, Backend, Claim, ErrorKind, Grant, Kind, LockName, News, Renewal, Result, Token, View, Wait,
};
use tenure_testkit::suite::boxed::{self, MutexCase};
use tenure_testkit::{Harness, MemoryHarness, Need, Shape, run, run_as};

/// The planted faults.
mod fault {
    /// Every client has locks of its own.
    pub(super) const LONERS: u8 = 0;
    /// All tokens are equal.
    pub(super) const ONE_TOKEN: u8 = 1;
    /// A window is a second longer than what the store keeps.
    pub(super) const LONG_WINDOWS: u8 = 2;
    /// `A` and `a` are one name.
    pub(super) const FOLDED_NAMES: u8 = 3;
    /// A release does not reach the store.
    pub(super) const NO_RELEASE: u8 = 4;
    /// A renewal always says yes, and does nothing.
    pub(super) const HOLLOW_RENEWALS: u8 = 5;
    /// Not a fault: a store that has only mutexes, and says so.
    pub(super) const SEMAPHORES_DENIED: u8 = 6;
}

/// Memory with fault number `F`.
struct Broken<const F: u8>(MemoryHarness);

impl<const F: u8> Harness for Broken<F> {
    async fn start() -> Self {
        Broken(MemoryHarness::start().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        let store = if F == fault::LONERS { MemoryHarness::start().await } else { self.0.clone() };
        Arc::new(BrokenBackend::<F>(store.backend().await))
    }

    async fn residue(&self) -> usize {
        self.0.residue().await
    }
}

struct BrokenBackend<const F: u8>(Arc<dyn Backend>);

impl<const F: u8> BrokenBackend<F> {
    fn claim(&self, claim: &Claim) -> Claim {
        let folded = LockName::new(claim.name.as_str().to_lowercase());
        match folded {
            Ok(name) if F == fault::FOLDED_NAMES => Claim { name, ..claim.clone() },
            _ => claim.clone(),
        }
    }

    fn grant(&self, Grant { token, until }: Grant) -> Grant {
        Grant {
            token: if F == fault::ONE_TOKEN { Token::new(1) } else { token },
            until: if F == fault::LONG_WINDOWS { until + Duration::from_secs(1) } else { until },
        }
    }
}

#[async_trait]
impl<const F: u8> Backend for BrokenBackend<F> {
    fn abilities(&self) -> Abilities {
        let kinds: &[Kind] = if F == fault::SEMAPHORES_DENIED { &[Kind::Mutex] } else { &Kind::ALL };
        Abilities { kinds, ..self.0.abilities() }
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        Ok(self.0.acquire(&self.claim(claim), wait).await?.map(|grant| self.grant(grant)))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        if F == fault::HOLLOW_RENEWALS {
            let until = |claim: &Claim| claim.window(tenure_core::Instant::now());
            return claims.iter().map(|c| Ok(Renewal::Held { until: until(c), asked: None })).collect();
        }
        let claims: Vec<Claim> = claims.iter().map(|claim| self.claim(claim)).collect();
        self.0.renew(&claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        if F == fault::NO_RELEASE { Ok(()) } else { self.0.release(&self.claim(claim)).await }
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn attach(&self, news: News) {
        self.0.attach(news);
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        self.0.downgrade(claim).await
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.0.view(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.0.list(prefix, after, limit).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.0.watch(name, seen).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.0.ask(name, ask).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.0.break_holds(name, only).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<tenure_core::Versioned> {
        self.0.cell_get(name).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.0.cell_set(name, expected, value).await
    }

    async fn probe(&self) -> Result<()> {
        self.0.probe().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.0.examine().await
    }
}

/// Runs a case on memory with a fault, and demands that it fails. A machine that stands still for as long as a window is too long
/// may hide that once.
#[track_caller]
fn must_fail<const F: u8>(case: MutexCase) {
    let fails = || catch_unwind(AssertUnwindSafe(|| run_as::<Broken<F>>("", Shape::Mutex, case))).is_err();
    assert!((0..3).any(|_| fails()), "the case did not see the fault");
}

#[test]
fn exclusion_is_seen_to_be_broken() {
    must_fail::<{ fault::LONERS }>(boxed::mutex::excludes_another_client);
    must_fail::<{ fault::LONERS }>(boxed::mutex::many_tasks_take_turns);
    must_fail::<{ fault::LONERS }>(boxed::mutex::a_stress_is_sound);
}

#[test]
fn tokens_are_seen_to_repeat() {
    must_fail::<{ fault::ONE_TOKEN }>(boxed::mutex::tokens_rise);
    must_fail::<{ fault::ONE_TOKEN }>(boxed::mutex::a_stress_is_sound);
    must_fail::<{ fault::ONE_TOKEN }>(|scene, _| boxed::fencing::a_late_writer_is_refused(scene));
}

#[test]
fn windows_are_seen_to_be_too_long() {
    must_fail::<{ fault::LONG_WINDOWS }>(boxed::mutex::a_hold_that_is_not_kept_ends);
    must_fail::<{ fault::LONG_WINDOWS }>(boxed::mutex::a_stress_is_sound);
    must_fail::<{ fault::HOLLOW_RENEWALS }>(boxed::mutex::a_hold_that_is_kept_outlives_its_ttl);
}

#[test]
fn names_are_seen_to_meet() {
    must_fail::<{ fault::FOLDED_NAMES }>(|scene, _| boxed::names::all_are_different_and_come_back_intact(scene));
}

#[test]
fn a_release_is_seen_to_be_lost() {
    must_fail::<{ fault::NO_RELEASE }>(boxed::mutex::excludes_another_client);
}

#[test]
fn an_absent_kind_is_asserted_and_not_skipped() {
    // Honest absence passes, and the case itself does not run …
    run::<Broken<{ fault::SEMAPHORES_DENIED }>>("", Need::Kind(Kind::Semaphore), |_| panic!("it is not offered"));
    // … and it is what the client says, too.
    run::<Broken<{ fault::SEMAPHORES_DENIED }>>("", Need::Nothing, |scene| {
        Box::pin(async {
            assert_eq!(scene.client().await.semaphore("x", 1).unwrap_err().kind(), ErrorKind::Unsupported);
        })
    });
}
