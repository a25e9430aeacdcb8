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
//! - `summary`: what was run, as a table

mod fault;
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
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The seed of each pair's first round; later ones count up from it.
    pub seed: u64,
    /// Where histories are written.
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

/// Runs it, and says each violation as soon as it is found.
pub fn run(options: &Options, connect: Connect, say: impl Fn(String) + Send + Sync + 'static) -> std::io::Result<Summary> {
    std::fs::create_dir_all(&options.dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let attack = Arc::new(Attack {
        options: options.clone(),
        connect,
        say: Box::new(say),
        summary: Mutex::default(),
        width: Semaphore::new(options.width),
        end: Instant::now() + options.lasts,
    });
    runtime.block_on(async {
        let mut sites = tokio::task::JoinSet::new();
        for &store in &options.stores {
            let applies = |fault: &&Fault| !matches!(fault.cell(store), Cell::DoesNotApply(_));
            let (server, client): (Vec<Fault>, Vec<Fault>) =
                options.faults.iter().filter(applies).partition(|fault| fault.hits_server());
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
    let summary = std::mem::take(&mut *attack.summary());
    Ok(summary)
}

struct Attack {
    options: Options,
    connect: Connect,
    say: Box<dyn Fn(String) + Send + Sync>,
    summary: Mutex<Summary>,
    width: Semaphore,
    end: Instant,
}

impl Attack {
    fn summary(&self) -> std::sync::MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn on_one_site(self: Arc<Self>, store: Store, faults: Vec<Fault>, at_a_time: usize) {
        let site = tokio::task::spawn_blocking(move || Site::start(store)).await.expect("the server starts");
        let (site, faults, next) = (Arc::new(site), Arc::new(faults), Arc::new(AtomicU64::new(0)));
        let mut lanes = tokio::task::JoinSet::new();
        for _ in 0..at_a_time {
            lanes.spawn(Arc::clone(&self).lane(Arc::clone(&site), Arc::clone(&faults), Arc::clone(&next)));
        }
        while let Some(ended) = lanes.join_next().await {
            ended.expect("rounds may panic, and nothing else does");
        }
        if let Some(left) = left_in(Arc::clone(&site), self.connect).await {
            let violation = Violation { property: "residue", lock: "*".to_owned(), says: left };
            self.found(store, faults[0], &violation, "after the last round");
        }
        let _ = tokio::task::spawn_blocking(move || drop(site)).await;
    }

    async fn lane(self: Arc<Self>, site: Arc<Site>, faults: Arc<Vec<Fault>>, next: Arc<AtomicU64>) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= faults.len() as u64 && Instant::now() > self.end {
                return;
            }
            let _turn = self.width.acquire().await.expect("it is never closed");
            let round = Round {
                site: Arc::clone(&site),
                fault: faults[(number % faults.len() as u64) as usize],
                seed: self.options.seed + number / faults.len() as u64,
                dir: self.options.dir.clone(),
                connect: self.connect,
                taker: self.options.taker,
            };
            let (store, fault, which) = (site.store, round.fault, round.to_string());
            match tokio::spawn(async move { round.run().await }).await {
                Ok(judged) => judged.into_iter().for_each(|judged| self.count(store, fault, judged)),
                Err(panicked) => {
                    let says = format!("{panicked}");
                    let violation = Violation { property: "panic", lock: "*".to_owned(), says };
                    self.found(store, fault, &violation, &which);
                }
            }
        }
    }

    fn count(&self, store: Store, fault: Fault, judged: Judged) {
        for violation in &judged.verdict.broken {
            self.found(store, fault, violation, &format!("seed {}, {}", judged.seed, judged.file.display()));
        }
        self.summary().add(store, fault, judged.seed, &judged.verdict);
    }

    fn found(&self, store: Store, fault: Fault, violation: &Violation, place: &str) {
        self.summary().tally(store, fault).broken += 1;
        (self.say)(format!("{} under {}: {violation} ({place})", store.words().0, fault.words().0));
    }
}
