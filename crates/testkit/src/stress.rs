//! Many tasks on one name, doing everything that users do in no particular order, on record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Owner, ReentrantMutex, Result, RwLock, Semaphore};
use tokio::time::timeout;

use crate::history::{Kind, Mode, Op, Phase, Recorder, Task};
use crate::lock::Options as _;
use crate::{Held, LIMIT, Lock, Rng, Shape};

/// What a stress does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Which kind of lock. Read-write locks are also read, semaphores have [`PERMITS`], re-entrant mutexes two owners a client.
    pub(crate) shape: Shape,
    /// The name.
    pub(crate) name: String,
    /// How many tasks.
    pub(crate) tasks: usize,
    /// How many rounds each.
    pub(crate) rounds: u32,
    /// How long what nobody lets expire is held if nothing more is heard of its holder.
    pub(crate) ttl: Duration,
}

const PERMITS: u32 = 5;
/// The ttl of a hold that is left to expire.
const SHORT: Duration = Duration::from_millis(100);

/// Runs the plan over these clients, a task on each in turn.
pub(crate) async fn run(clients: &[Client], recorder: &Recorder, plan: &Plan) {
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch_the_line(clients[0].clone(), recorder.clone(), plan.clone(), Arc::clone(&over)));
    let observing = (plan.shape == Shape::Election)
        .then(|| tokio::spawn(observe(clients[clients.len() - 1].clone(), recorder.clone(), plan.clone())));
    let owners: Vec<Vec<Owner>> = clients.iter().map(|client| vec![Owner::new(client), Owner::new(client)]).collect();
    let tasks: Vec<_> = (0..plan.tasks)
        .map(|task| {
            let which = task % clients.len();
            let owner = (task / clients.len()) % owners[which].len();
            let pen = recorder.task(&plan.name, kind(plan.shape));
            let worker = Worker {
                client: clients[which].clone(),
                owner: owners[which][owner].clone(),
                pen: match plan.shape {
                    Shape::ReentrantMutex => pen.owner((u64::from(std::process::id()) << 8) | (which * 2 + owner) as u64),
                    _ => pen,
                },
                plan: plan.clone(),
                rng: Rng::from_entropy(),
            };
            tokio::spawn(worker.work())
        })
        .collect();
    for task in tasks {
        timeout(LIMIT * 4, task).await.expect("everybody is served").expect("no task panics");
    }
    over.store(true, Ordering::Relaxed);
    watching.await.expect("no task panics");
    if let Some(observing) = observing {
        observing.abort();
    }
}

pub(crate) fn kind(shape: Shape) -> Kind {
    match shape {
        Shape::Mutex | Shape::Multi => Kind::Mutex,
        Shape::FairMutex => Kind::Fair,
        Shape::ReentrantMutex => Kind::Reentrant,
        Shape::RwLock => Kind::Rw,
        Shape::Semaphore => Kind::Semaphore,
        Shape::Election => Kind::Election,
    }
}

/// Writes down whom it sees in the line: every ask carries its number as a note.
async fn watch_the_line(client: Client, recorder: Recorder, plan: Plan, over: Arc<AtomicBool>) {
    let pen = recorder.task(&plan.name, kind(plan.shape));
    let mut seen = std::collections::HashSet::new();
    while !over.load(Ordering::Relaxed) {
        let view = client.view(&plan.name).await.expect("the store works");
        for waiter in view.line {
            let claim: u64 = waiter.note.as_str().parse().expect("every ask carries its number");
            if seen.insert(claim) {
                pen.saw(Op::Queue, Some(claim), None);
            }
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
}

async fn observe(client: Client, recorder: Recorder, plan: Plan) {
    let pen = recorder.task(&plan.name, kind(plan.shape));
    let mut observer =
        client.election(&plan.name).and_then(|election| election.observe()).expect("elections can be observed");
    let (mut last, mut vacant) = (None, false);
    loop {
        let term = observer.next().await.expect("the store can be asked").map(|leader| leader.term.get());
        // One that was thought to be gone is seen once.
        if term.is_some() && !(vacant && term == last) {
            pen.saw(Op::Observe, None, term);
        }
        (vacant, last) = (term.is_none(), term.or(last));
    }
}

struct Worker {
    client: Client,
    owner: Owner,
    pen: Task,
    plan: Plan,
    rng: Rng,
}

/// One ask, ready to be made.
pub(crate) enum Ask {
    Lock(Lock),
    Read(RwLock),
    Permits(Semaphore, u32),
    Enter(ReentrantMutex, Owner),
}

/// How one round's hold is to end.
enum End {
    Release,
    Drop,
    Expire,
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..self.plan.rounds {
            self.round().await.expect("the store works");
            if self.rng.one_in(3) {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn round(&mut self) -> Result<()> {
        let end = match self.rng.below(40) {
            // A hold that others have entered must not be left to die under them.
            0 if self.plan.shape != Shape::ReentrantMutex => End::Expire,
            1..10 => End::Drop,
            _ => End::Release,
        };
        let mode = match self.plan.shape {
            Shape::RwLock if !self.rng.one_in(4) => Mode::Shared,
            Shape::Semaphore => Mode::Permits { take: 1 + self.rng.below(PERMITS.into()) as u32, of: PERMITS },
            _ => Mode::Exclusive,
        };
        self.pen.stands(matches!(end, End::Expire).then_some(SHORT));
        let claim = self.pen.asks(mode);
        let ask = self.ask(mode, claim, matches!(end, End::Expire))?;
        let waits = self.rng.below(4);
        let patience = self.rng.up_to(Duration::from_millis(5));
        let asked = match waits {
            0 => ask.now().await,
            1 => ask.for_so_long(patience).await,
            2 => match timeout(patience, ask.for_ever()).await {
                Ok(granted) => granted.map(Some),
                Err(_) => {
                    self.pen.write(Op::Acquire, Phase::Unknown, None);
                    return Ok(());
                }
            },
            _ => ask.for_ever().await.map(Some),
        };
        let held = match asked {
            Ok(Some(held)) => held,
            Ok(None) => {
                self.pen.write(Op::Acquire, Phase::Fail, None);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.pen.write(Op::Acquire, Phase::Unknown, None);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.pen.granted(held.token().get(), held.valid_until());
        self.stay(&held).await;
        self.leave(held, end).await
    }

    fn ask(&self, mode: Mode, claim: u64, expires: bool) -> Result<Ask> {
        let ttl = if expires { SHORT } else { self.plan.ttl };
        Ask::new((&self.client, &self.owner), self.plan.shape, &self.plan.name, mode, claim, ttl, !expires)
    }

    async fn stay(&mut self, held: &Held) {
        for _ in 0..self.rng.below(3) {
            if self.rng.one_in(4) {
                tokio::time::sleep(self.rng.up_to(Duration::from_micros(300))).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.pen.checks(held);
        }
    }

    async fn leave(&mut self, held: Held, end: End) -> Result<()> {
        match end {
            End::Release => {
                self.pen.write(Op::Release, Phase::Invoke, Some(held.valid_until()));
                let released = held.release().await;
                self.pen.write(Op::Release, if released.is_ok() { Phase::Ok } else { Phase::Fail }, None);
                // A hold that the machine held up past its window says so, as it should.
                released.or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })
            }
            End::Drop => {
                self.pen.write(Op::Release, Phase::Invoke, Some(held.valid_until()));
                drop(held);
                self.pen.write(Op::Release, Phase::Ok, None);
                Ok(())
            }
            End::Expire => {
                held.lost().await;
                self.pen.write(Op::Lost, Phase::Ok, Some(held.valid_until()));
                self.pen.checks(&held);
                Ok(())
            }
        }
    }
}

impl Ask {
    /// Of this client, and of this owner where that matters, with its number as a note.
    pub(crate) fn new(
        (client, owner): (&Client, &Owner),
        shape: Shape,
        name: &str,
        mode: Mode,
        claim: u64,
        ttl: Duration,
        keep: bool,
    ) -> Result<Self> {
        let note = claim.to_string();
        Ok(match (shape, mode) {
            (Shape::RwLock, Mode::Shared) => Ask::Read(client.rw_lock(name)?.note(note)?.ttl(ttl)?.keep(keep)),
            (_, Mode::Permits { take, of }) => {
                Ask::Permits(client.semaphore(name, of)?.note(note)?.ttl(ttl)?.keep(keep), take)
            }
            (Shape::ReentrantMutex, _) => {
                Ask::Enter(client.reentrant_mutex(name)?.note(note)?.ttl(ttl)?.keep(keep), owner.clone())
            }
            (shape, _) => Ask::Lock(shape.make(client, name)?.note(&note)?.ttl(ttl)?.keep(keep)),
        })
    }

    pub(crate) async fn now(&self) -> Result<Option<Held>> {
        match self {
            Ask::Lock(lock) => lock.try_lock().await,
            Ask::Read(lock) => Ok(lock.try_read().await?.map(Held::One)),
            Ask::Permits(semaphore, take) => Ok(semaphore.try_acquire(*take).await?.map(Held::One)),
            Ask::Enter(mutex, owner) => Ok(mutex.try_lock(owner).await?.map(Held::One)),
        }
    }

    pub(crate) async fn for_so_long(&self, wait: Duration) -> Result<Option<Held>> {
        match self {
            Ask::Lock(lock) => lock.try_lock_for(wait).await,
            Ask::Read(lock) => Ok(lock.try_read_for(wait).await?.map(Held::One)),
            Ask::Permits(semaphore, take) => Ok(semaphore.try_acquire_for(*take, wait).await?.map(Held::One)),
            Ask::Enter(mutex, owner) => Ok(mutex.try_lock_for(owner, wait).await?.map(Held::One)),
        }
    }

    pub(crate) async fn for_ever(&self) -> Result<Held> {
        match self {
            Ask::Lock(lock) => lock.lock().await,
            Ask::Read(lock) => Ok(Held::One(lock.read().await?)),
            Ask::Permits(semaphore, take) => Ok(Held::One(semaphore.acquire(*take).await?)),
            Ask::Enter(mutex, owner) => Ok(Held::One(mutex.lock(owner).await?)),
        }
    }
}
