//! What the clients do in a history: everything that its seed determines, whatever goes wrong meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{Client, Error, ErrorKind, Instant, Owner, Result};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::fenced::FencedFile;
use crate::history::{Kind, Mode, Op, Phase, Recorder, Task};
use crate::polls::{Polled, at_most};
use crate::stress::{Ask, kind};
use crate::{Held, Rng, Shape};

/// What one history is about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Determines all that the tasks do, but not how long each step takes.
    pub(super) seed: u64,
    /// The one name of this history.
    pub(super) name: String,
    /// What it is locked as.
    pub(super) shape: Shape,
    /// The ttl of holds that are renewed.
    pub(super) ttl: Duration,
    /// How many tasks there are, over all clients.
    pub(super) tasks: u64,
    /// When they begin nothing new, in nanoseconds on the clock that all processes of a host share.
    pub(super) until: u64,
    /// Whether writers become readers now and then.
    pub(super) downgrades: bool,
}

/// A history has so many clients; tasks take turns at them.
pub(super) const CLIENTS: u64 = 3;
const PERMITS: u32 = 4;
/// The ttl of a hold that is left to expire.
const SHORT: Duration = Duration::from_millis(200);

impl Plan {
    /// The one of this seed, on a store that offers these.
    pub(super) fn new(seed: u64, name: String, offered: &[Shape], until: Instant, downgrades: bool) -> Self {
        let mut rng = Rng::new(seed);
        Plan {
            seed,
            name,
            shape: offered[rng.below(offered.len() as u64) as usize],
            ttl: Duration::from_millis(400 + rng.below(400)),
            tasks: 4 + rng.below(5),
            until: until.as_nanos(),
            downgrades,
        }
    }

    /// Starts the tasks of one of the clients on the current runtime.
    pub(super) fn start(&self, client: &Client, which: u64, recorder: &Recorder, dir: &Path) -> Vec<JoinHandle<()>> {
        let owners = [Owner::new(client), Owner::new(client)];
        let mine = (0..self.tasks).filter(|task| task % CLIENTS == which);
        mine.map(|task| {
            let owner = (task / CLIENTS) as usize % owners.len();
            let pen = recorder.task(&self.name, kind(self.shape));
            let worker = Worker {
                client: client.clone(),
                pen: match self.shape {
                    Shape::ReentrantMutex => pen.owner((u64::from(std::process::id()) << 8) | (which * 2 + owner as u64)),
                    _ => pen,
                },
                owner: owners[owner].clone(),
                fenced: FencedFile::at(self.fenced(dir)).recorded(recorder, &self.name),
                plan: self.clone(),
                rng: Rng::new(self.seed ^ (task + 1).wrapping_mul(0xA076_1D64_78BD_642F)),
            };
            tokio::spawn(worker.work())
        })
        .collect()
    }

    fn fenced(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.fenced", self.name))
    }

    /// Where a process writes this history.
    pub(super) fn file(&self, dir: &Path, process: &str) -> PathBuf {
        dir.join(format!("{}.{process}", self.name))
    }
}

struct Worker {
    client: Client,
    owner: Owner,
    pen: Task,
    fenced: FencedFile,
    plan: Plan,
    rng: Rng,
}

/// How one round's hold is to end.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Release,
    Drop,
    Expire,
}

impl Worker {
    async fn work(mut self) {
        while Instant::now().as_nanos() < self.plan.until {
            self.pause(30).await;
            self.round().await;
        }
    }

    async fn round(&mut self) {
        let end = match self.rng.below(20) {
            // A hold that others have entered must not be left to die under them.
            0 if self.plan.shape != Shape::ReentrantMutex => End::Expire,
            1..4 => End::Drop,
            _ => End::Release,
        };
        let mode = match self.plan.shape {
            Shape::RwLock if self.rng.one_in(2) => Mode::Shared,
            Shape::Semaphore => Mode::Permits { take: 1 + self.rng.below(PERMITS.into()) as u32, of: PERMITS },
            _ => Mode::Exclusive,
        };
        let expires = end == End::Expire;
        self.pen.stands(expires.then_some(SHORT));
        let claim = self.pen.asks(mode);
        let ttl = if expires { SHORT } else { self.plan.ttl };
        let whose = (&self.client, &self.owner);
        let ask =
            Ask::new(whose, self.plan.shape, &self.plan.name, mode, claim, ttl, !expires).expect("the store offers it");
        match self.acquire(&ask).await {
            Some(Ok(Some(held))) => {
                self.pen.granted(held.token().get(), held.valid_until());
                let (token, held) = (held.token().get(), self.stay(held, mode).await);
                if let Some(held) = held {
                    self.leave(held, end).await;
                }
                if mode == Mode::Exclusive && self.rng.one_in(4) {
                    self.pause(20).await;
                    self.writes(token); // too late, and refused if anybody wrote since
                }
            }
            Some(Ok(None)) => self.pen.write(Op::Acquire, Phase::Fail, None),
            Some(Err(error)) => self.pen.failed(Op::Acquire, &error),
            None => self.pen.write(Op::Acquire, Phase::Unknown, None),
        }
    }

    /// Asks in one of the ways there are. `None` if the future was dropped.
    async fn acquire(&mut self, ask: &Ask) -> Option<Result<Option<Held>>> {
        match self.rng.below(8) {
            0 => Some(ask.now().await),
            1 => Some(ask.for_so_long(self.rng.up_to(Duration::from_millis(300))).await),
            2 => timeout(self.rng.up_to(Duration::from_millis(100)), ask.for_ever()).await.ok().map(|held| held.map(Some)),
            3 => {
                let (polls, linger) = (self.rng.below(6) as u32, self.rng.up_to(Duration::from_millis(5)));
                match at_most(polls, linger, ask.for_ever()).await {
                    Polled::Done(held, _) => Some(held.map(Some)),
                    Polled::Dropped => None,
                }
            }
            _ => Some(ask.for_ever().await.map(Some)),
        }
    }

    /// Checks and writes for a while. Gives the hold back unless it was lost meanwhile.
    async fn stay(&mut self, mut held: Held, mode: Mode) -> Option<Held> {
        let mut mode = mode;
        for _ in 0..self.rng.below(4) {
            // Now and then for long enough that it must have been renewed.
            let longest = if self.rng.one_in(30) { self.plan.ttl.mul_f64(1.5) } else { Duration::from_millis(15) };
            let lasts = self.rng.up_to(longest);
            if timeout(lasts, held.lost()).await.is_ok() {
                return self.is_lost(held, mode);
            }
            self.pen.checks(&held);
            if mode == Mode::Exclusive {
                self.writes(held.token().get());
                if self.plan.downgrades && self.plan.shape == Shape::RwLock && self.rng.one_in(6) {
                    mode = Mode::Shared;
                    self.downgrade(&mut held).await;
                    if held.check().is_err() {
                        self.pen.checks(&held);
                        return None; // a guard that is being downgraded tells nobody that it is lost
                    }
                }
            }
        }
        Some(held)
    }

    async fn downgrade(&mut self, held: &mut Held) {
        let Held::One(guard) = held else { return };
        self.pen.downgrades(Phase::Invoke, guard.valid_until());
        match guard.downgrade().await {
            Ok(()) => self.pen.downgrades(Phase::Ok, guard.valid_until()),
            Err(error) => self.pen.failed(Op::Downgrade, &error),
        }
    }

    fn is_lost(&mut self, held: Held, mode: Mode) -> Option<Held> {
        self.pen.write(Op::Lost, Phase::Ok, Some(held.valid_until()));
        self.pen.checks(&held);
        if mode == Mode::Exclusive && self.rng.one_in(2) {
            self.writes(held.token().get());
        }
        None
    }

    /// The resource knows who is late, and keeps its own record.
    fn writes(&self, token: u64) {
        self.fenced.write(token).expect("the file can be written");
    }

    async fn leave(&mut self, held: Held, end: End) {
        match end {
            End::Release => {
                self.pen.write(Op::Release, Phase::Invoke, Some(held.valid_until()));
                match held.release().await {
                    Ok(()) => self.pen.write(Op::Release, Phase::Ok, None),
                    Err(error) if error.kind() == ErrorKind::Lost => self.pen.write(Op::Release, Phase::Fail, None),
                    Err(error) => self.pen.failed(Op::Release, &error),
                }
            }
            End::Drop => {
                self.pen.write(Op::Release, Phase::Invoke, Some(held.valid_until()));
                drop(held); // somebody else ends it, at some time
            }
            End::Expire => {
                held.lost().await;
                self.is_lost(held, Mode::Shared);
            }
        }
    }

    async fn pause(&mut self, below_ms: u64) {
        sleep(self.rng.up_to(Duration::from_millis(below_ms))).await;
    }
}

/// What a second process does: its client's part of these histories, each in a file of its own.
pub(crate) async fn take_part(client: &Client, plans: &[Plan], dir: &Path) -> std::result::Result<(), Error> {
    let mut tasks = Vec::new();
    for plan in plans {
        let recorder = Recorder::to_file(plan.file(dir, "second")).expect("the history can be written");
        tasks.extend(plan.start(client, CLIENTS - 1, &recorder, dir));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    client.close().await
}

/// Writes who is seen in line: every ask carries its number as a note.
pub(super) async fn watch_the_line(client: Client, plan: Plan, recorder: Recorder) {
    let pen = recorder.task(&plan.name, Kind::Fair);
    let mut seen = std::collections::HashSet::new();
    while Instant::now().as_nanos() < plan.until {
        if let Ok(view) = client.view(&plan.name).await {
            for claim in view.line.iter().filter_map(|waiter| waiter.note.as_str().parse().ok()) {
                if seen.insert(claim) {
                    pen.saw(Op::Queue, Some(claim), None);
                }
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}
