//! A suite that cannot fail proves nothing: memory with one fault planted must fail the cases that are about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Finding};
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

impl<const F: u8> Backend for BrokenBackend<F> {
    fn abilities(&self) -> Abilities {
        let kinds: &[Kind] = if F == fault::SEMAPHORES_DENIED { &[Kind::Mutex] } else { &Kind::ALL };
        Abilities { kinds, ..self.0.abilities() }
    }

    fn acquire<'a>(&'a self, claim: &'a Claim, wait: Wait) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move { Ok(self.0.acquire(&self.claim(claim), wait).await?.map(|grant| self.grant(grant))) })
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Vec<Result<Renewal>>> {
        if F == fault::HOLLOW_RENEWALS {
            let until = |claim: &Claim| claim.window(tenure_core::Instant::now());
            return Box::pin(
                async move { claims.iter().map(|c| Ok(Renewal::Held { until: until(c), asked: None })).collect() },
            );
        }
        Box::pin(async move {
            let claims: Vec<Claim> = claims.iter().map(|claim| self.claim(claim)).collect();
            self.0.renew(&claims).await
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { if F == fault::NO_RELEASE { Ok(()) } else { self.0.release(&self.claim(claim)).await } })
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn attach(&self, news: News) {
        self.0.attach(news);
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<bool>> {
        self.0.downgrade(claim)
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<View>> {
        self.0.view(name)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        self.0.list(prefix, after, limit)
    }

    fn watch<'a>(&'a self, name: &'a LockName, seen: &'a View) -> BoxFuture<'a, Result<View>> {
        self.0.watch(name, seen)
    }

    fn ask<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Result<usize>> {
        self.0.ask(name, ask)
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Result<usize>> {
        self.0.break_holds(name, only)
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<tenure_core::Versioned>> {
        self.0.cell_get(name)
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        self.0.cell_set(name, expected, value)
    }

    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        self.0.probe()
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        self.0.examine()
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
