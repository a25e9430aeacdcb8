//! Random histories of every store under every fault: many at once, each with a seed, every one judged and left as a file.
//!
//! A *history* is 4 to 8 tasks on one name, over three clients, for about two seconds: a mutex, a fair mutex, an rw lock, a semaphore
//! or a re-entrant mutex, renewed or left to expire, released, dropped, downgraded, asked for and given up at random polls, with
//! a fenced file beside it that refuses late writers. A *round* is a batch of histories on one server that meet one fault at the
//! same time. The seed of a round determines what its tasks do and when the fault comes; how long each step takes is the
//! machine's doing, so that the same seed is the same attack and not the same history.
//!
//! - `site`: the stores and their servers; `fault`: what is done to them, and what is promised meanwhile
//! - `work`: what the tasks do; `round`: a batch of them and a fault; `verdict`: whether a history keeps what was promised
//! - `summary`: what was run, as a table; `ledger`: the same in a file, over several runs

mod fault;
mod ledger;
mod round;
mod site;
mod summary;
mod verdict;
mod work;

pub use fault::{Cell, Fault};
pub use site::Store;
pub use summary::{Summary, Tally};
pub use verdict::{Conditions, Verdict, judge};
pub use work::Plan;

pub(crate) use work::take_part;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::{Client, Instant, Result};
use tokio::sync::Semaphore;

use crate::history::Violation;
use round::{Judged, Round, left_in};
use site::Site;

/// How a client is made from a URL.
pub type Connect = for<'a> fn(&'a str) -> BoxFuture<'a, Result<Client>>;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// These stores.
    pub stores: Vec<Store>,
    /// These faults.
    pub faults: Vec<Fault>,
    /// No new round after this; but each pair has one.
    pub lasts: Duration,
    /// No new round of a pair that has so many histories, with those that `dir` has of earlier runs.
    pub enough: usize,
    /// The seed of each pair's first round; later ones, also in later runs, count up from it.
    pub seed: u64,
    /// Where histories are written, and what came of each round. A run adds to what it finds there.
    pub dir: PathBuf,
    /// So many rounds at a time, over all stores.
    pub width: usize,
    /// The test program's way into a second process, as for a [`Taker`](crate::taker::Taker).
    pub taker: &'static str,
}

/// So many rounds at a time on a server that nobody hurts.
const ROUNDS_AT_A_TIME: usize = 3;

/// What a second process of an attack does. Comes back at once in any other process.
pub fn serve(connect: Connect) {
    crate::taker::serve_client(async |url| connect(url).await.expect("the store can be opened"));
}

/// Whether this process is a second one.
pub fn is_second_process() -> bool {
    std::env::var_os(crate::taker::TAKER).is_some()
}

/// Runs it, and says each violation as soon as it is found. What comes back is of earlier runs in the same directory, too.
pub fn run(options: &Options, connect: Connect, say: impl Fn(String) + Send + Sync + 'static) -> std::io::Result<Summary> {
    std::fs::create_dir_all(&options.dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let attack = Arc::new(Attack {
        options: options.clone(),
        connect,
        say: Box::new(say),
        begun: Mutex::new(ledger::read(&options.dir)?),
        width: Semaphore::new(options.width),
        end: Instant::now() + options.lasts,
    });
    runtime.block_on(async {
        let mut sites = tokio::task::JoinSet::new();
        for &store in &options.stores {
            let is_due = |fault: &&Fault| {
                !matches!(fault.cell(store), Cell::DoesNotApply(_))
                    && attack.begun().tally(store, **fault).histories < options.enough
            };
            let (server, client): (Vec<Fault>, Vec<Fault>) =
                options.faults.iter().filter(is_due).partition(|fault| fault.hits_server());
            for (faults, at_a_time) in [(client, ROUNDS_AT_A_TIME), (server, 1)] {
                if !faults.is_empty() {
                    sites.spawn(Arc::clone(&attack).on_one_site(store, faults, at_a_time));
                }
            }
        }
        while let Some(ended) = sites.join_next().await {
            ended.expect("rounds may panic, and nothing else does");
        }
    });
    ledger::read(&options.dir)
}

struct Attack {
    options: Options,
    connect: Connect,
    say: Box<dyn Fn(String) + Send + Sync>,
    /// What was run in earlier runs, and of this one what has begun.
    begun: Mutex<Summary>,
    width: Semaphore,
    end: Instant,
}

impl Attack {
    fn begun(&self) -> std::sync::MutexGuard<'_, Summary> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault that this store has met in the fewest histories, and the seed of its next round; none at the end.
    fn next(&self, store: Store, faults: &[Fault]) -> Option<(Fault, u64)> {
        let mut begun = self.begun();
        let fault = *faults.iter().min_by_key(|fault| begun.tally(store, **fault).histories)?;
        let Tally { histories, seeds, .. } = begun.tally(store, fault);
        if histories >= self.options.enough || (histories > 0 && Instant::now() > self.end) {
            return None;
        }
        let seed = seeds.map_or(self.options.seed, |(_, last)| last + 1);
        begun.add(store, fault, &Tally { histories: store.batch(), seeds: Some((seed, seed)), ..Tally::default() });
        Some((fault, seed))
    }

    async fn on_one_site(self: Arc<Self>, store: Store, faults: Vec<Fault>, at_a_time: usize) {
        let site = tokio::task::spawn_blocking(move || Site::start(store)).await.expect("the server starts");
        let (site, faults) = (Arc::new(site), Arc::new(faults));
        let mut lanes = tokio::task::JoinSet::new();
        for _ in 0..at_a_time {
            lanes.spawn(Arc::clone(&self).lane(Arc::clone(&site), Arc::clone(&faults)));
        }
        while let Some(ended) = lanes.join_next().await {
            ended.expect("rounds may panic, and nothing else does");
        }
        if let Some(left) = left_in(Arc::clone(&site), self.connect).await {
            let violation = Violation { property: "residue", lock: "*".to_owned(), says: left };
            self.found(store, faults[0], &violation, "after the last round");
            self.keep(store, faults[0], &Tally { broken: 1, ..Tally::default() });
        }
        let _ = tokio::task::spawn_blocking(move || drop(site)).await;
    }

    async fn lane(self: Arc<Self>, site: Arc<Site>, faults: Arc<Vec<Fault>>) {
        loop {
            let _turn = self.width.acquire().await.expect("it is never closed");
            let Some((fault, seed)) = self.next(site.store, &faults) else { return };
            let round = Round {
                site: Arc::clone(&site),
                fault,
                seed,
                dir: self.options.dir.clone(),
                connect: self.connect,
                taker: self.options.taker,
            };
            let (store, which) = (site.store, round.to_string());
            match tokio::spawn(async move { round.run().await }).await {
                Ok(judged) => self.count(store, fault, &judged),
                Err(panicked) => {
                    let says = format!("{panicked}");
                    let violation = Violation { property: "panic", lock: "*".to_owned(), says };
                    self.found(store, fault, &violation, &which);
                    self.keep(store, fault, &Tally { broken: 1, seeds: Some((seed, seed)), ..Tally::default() });
                }
            }
        }
    }

    fn count(&self, store: Store, fault: Fault, judged: &[Judged]) {
        for Judged { file, seed, verdict } in judged {
            for violation in &verdict.broken {
                self.found(store, fault, violation, &format!("seed {seed}, {}", file.display()));
            }
        }
        let tallies = judged.iter().map(|judged| Tally::of(judged.seed, &judged.verdict));
        self.keep(store, fault, &tallies.fold(Tally::default(), |sum, tally| sum.plus(&tally)));
    }

    fn keep(&self, store: Store, fault: Fault, tally: &Tally) {
        ledger::add(&self.options.dir, store, fault, tally).expect("there is room for a line");
    }

    fn found(&self, store: Store, fault: Fault, violation: &Violation, place: &str) {
        (self.say)(format!("{} under {}: {violation} ({place})", store.words().0, fault.words().0));
    }
}
