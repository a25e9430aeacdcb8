//! One run: a world from a seed, trouble for a while, peace, and the question whether everything was as promised.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Once};
use std::time::Duration;

use tenure_core::{Client, Clock, Environment, Kind};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::backend::SimBackend;
use crate::check;
use crate::history::{Fault, History, Who};
use crate::mutant::Mutant;
use crate::plan::{LONGEST_TTL_MS, Mishap, Plan};
use crate::rng::Rng;
use crate::workload::{Worker, observe};
use crate::world::World;

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// A number that two runs share only if the same things happened at the same times in the same order.
    pub hash: u64,
    /// How many events there were.
    pub events: usize,
    /// How many guards were given: a run without any proves nothing.
    pub holds: u32,
    /// What was not as promised.
    pub violations: Vec<String>,
    history: History,
    plan: Plan,
}

impl Run {
    /// The plan and the whole history, for people.
    pub fn story(&self) -> String {
        format!("{:#?}\n{}", self.plan, self.history)
    }

    /// One line that says what failed and how to see it again.
    pub fn complaint(&self) -> Option<String> {
        let first = self.violations.first()?;
        let more = match self.violations.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!("seed {}: {first}{more}; see it with: cargo run -p tenure-sim -- replay {}", self.seed, self.seed))
    }
}

/// Runs one seed, with a planted bug or without.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Run {
    listen_for_panics();
    let plan = Plan::of(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let clock = runtime.block_on(async { Clock::Simulated { origin: tokio::time::Instant::now() } });
    let world = World::new(seed, plan, clock, mutant);
    PANICS.with_borrow_mut(Vec::clear);
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(live(seed, Arc::clone(&world)))));
    drop(runtime); // whatever still ran ends here, and says so in the history's last lines
    let mut state = world.lock();
    let mut violations = std::mem::take(&mut state.violations);
    violations.extend(PANICS.with_borrow_mut(std::mem::take).into_iter().map(|what| format!("panic: {what}")));
    drop(lived); // a panic of the run itself is among those
    let history = std::mem::take(&mut state.history);
    violations.extend(check::check(&history, &world.plan));
    Run {
        seed,
        hash: history.hash(),
        events: history.events.len(),
        holds: history.holds(),
        violations,
        history,
        plan: world.plan.clone(),
    }
}

/// The world's life.
async fn live(seed: u64, world: Arc<World>) {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut clients: BTreeMap<u64, Vec<AbortHandle>> = BTreeMap::new();
    for number in 1..=world.plan.clients {
        let (client, ahead) = client(seed, &world, number);
        let mine = clients.entry(number).or_default();
        for task in 0..world.plan.tasks {
            let who = Who { client: number, task };
            let rng = Rng::new(seed, 1000 * number + u64::from(task));
            let worker = Worker { world: Arc::clone(&world), client: client.clone(), who, ahead, rng };
            mine.push(tasks.spawn(world.of_client(number, worker.work())));
        }
        let elections =
            (0..world.plan.names.len()).filter(|name| number == 1 && world.plan.names[*name].kind == Kind::Election);
        for name in elections {
            let who = Who { client: number, task: u32::MAX };
            tokio::spawn(observe(Arc::clone(&world), client.clone(), who, name));
        }
    }
    trouble(&world, &clients).await;
    peace(seed, &world, tasks).await;
}

/// A client, and how far its clock is ahead of the world's.
fn client(seed: u64, world: &Arc<World>, number: u64) -> (Client, Duration) {
    let mut rng = Rng::new(seed, 100 + number);
    let ahead = if world.plan.one_clock { Duration::ZERO } else { rng.millis(0, 100_000) };
    let Clock::Simulated { origin } = world.clock else { unreachable!("a world is simulated") };
    let clock = Clock::Simulated { origin: origin - ahead };
    let backend = Arc::new(SimBackend::new(world, number, clock));
    let client = Client::with_environment(backend, Environment::simulated(clock, rng.next()));
    (client.expect("a client asks nothing of its store"), ahead)
}

/// Lets mishaps happen, one at a time.
async fn trouble(world: &Arc<World>, clients: &BTreeMap<u64, Vec<AbortHandle>>) {
    let end = world.now() + world.plan.trouble;
    while !world.plan.mishaps.is_empty() && world.now() < end {
        tokio::time::sleep(world.draw(|rng| rng.millis(50, 2_500))).await;
        let alive: Vec<u64> = world.alive().into_iter().collect();
        let (mishap, client) = world.draw(|rng| (rng.pick(&world.plan.mishaps), rng.pick(&alive)));
        let lasts = world.draw(|rng| rng.millis(10, 4_000));
        match mishap {
            Mishap::Cut => world.fault(Fault::Cut(client)),
            Mishap::Isolate | Mishap::Freeze => {
                world.fault(if mishap == Mishap::Freeze {
                    Fault::Frozen(client, lasts)
                } else {
                    Fault::Isolated(client, lasts)
                });
                tokio::time::sleep(lasts).await;
                world.recover(client);
            }
            Mishap::Vanish if alive.len() > 1 => {
                world.fault(Fault::Vanished(client));
                clients[&client].iter().for_each(AbortHandle::abort);
            }
            Mishap::Vanish => {}
            Mishap::Restart(keeps) => world.restart(keeps, lasts / 4).await,
            Mishap::Jump => {
                world.fault(Fault::Jump(lasts));
                tokio::time::advance(lasts).await;
            }
        }
    }
    tokio::time::sleep(end.since(world.now())).await;
    world.fault(Fault::Healed);
}

/// No more faults: everybody is served, and nothing is left behind.
async fn peace(seed: u64, world: &Arc<World>, mut tasks: JoinSet<()>) {
    let complain = |what: String| world.lock().violations.push(what);
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(Duration::from_secs(200), all).await.is_err() {
        return complain("P6: tasks still wait long after the last fault".to_owned());
    }
    // What is under way may be late, and what it does may last for a ttl, a lock-delay and a minimum hold.
    let settled = Duration::from_millis(world.plan.late_ms + 2 * LONGEST_TTL_MS + 5_000);
    tokio::time::sleep(settled).await;
    let left = {
        let mut state = world.lock();
        let state = &mut *state;
        state.store.residue(world.moment(), &mut state.history)
    };
    if !left.is_empty() {
        complain(format!("P16: somebody still holds or waits for {left:?} after everybody has gone"));
    }
    let (auditor, _) = client(seed, world, 99);
    for name in &world.plan.names {
        let text = name.name.as_str();
        let wait = Duration::from_secs(1);
        let taken = match name.kind {
            Kind::FairMutex => auditor.fair_mutex(text).expect("made").try_lock_for(wait).await,
            Kind::RwLock => auditor.rw_lock(text).expect("made").try_write_for(wait).await,
            Kind::Semaphore => {
                auditor.semaphore(text, name.permits).expect("made").try_acquire_for(name.permits, wait).await
            }
            Kind::Election => auditor.election(text).expect("made").try_campaign_for(wait).await,
            _ => auditor.mutex(text).expect("made").try_lock_for(wait).await,
        };
        match taken {
            Ok(Some(guard)) => drop(guard.release().await),
            other => complain(format!("P6: {} cannot be had in peace: {other:?}", name.name)),
        }
    }
}

thread_local! {
    /// Panics of this thread: tokio keeps those of tasks to itself, and none may go unseen.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn listen_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let simulated = tokio::runtime::Handle::try_current().is_ok();
            if simulated {
                PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            } else {
                before(panic);
            }
        }));
    });
}
