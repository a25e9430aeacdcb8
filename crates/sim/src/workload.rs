//! What the tasks of a client do: take locks of every kind in every way, work under them, and let go in every way.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backoff, Client, Guard, Instant, Kind, Mode, MultiGuard, Owner, Result, Token, Wait};
use tokio::time::timeout;

use crate::history::{Ending, Event, HoldIx, NameIx, Who};
use crate::plan::{LONGEST_TTL_MS, Name};
use crate::rng::Rng;
use crate::world::World;

/// One task of one client.
pub(crate) struct Worker {
    pub(crate) world: Arc<World>,
    pub(crate) client: Client,
    pub(crate) who: Who,
    /// How far this client's clock is ahead of the world's.
    pub(crate) ahead: Duration,
    pub(crate) rng: Rng,
}

/// How one lock is asked for and held.
struct Choice {
    ttl: Duration,
    keep: bool,
    lock_delay: Duration,
    min_hold: Duration,
    max_hold: Option<Duration>,
    spin: bool,
    wait: Wait,
    shared: bool,
    permits: u32,
}

/// What a task got.
enum Taken {
    One(Guard),
    /// A re-entered mutex.
    Twice(Guard, Guard),
    Many(MultiGuard),
}

impl Taken {
    fn guards(&self) -> &[Guard] {
        match self {
            Taken::One(guard) | Taken::Twice(guard, _) => std::slice::from_ref(guard),
            Taken::Many(guard) => guard.guards(),
        }
    }

    fn is_trusted(&self) -> bool {
        self.guards().iter().all(|guard| guard.check().is_ok())
    }

    async fn lost(&self) {
        match self {
            Taken::One(guard) | Taken::Twice(guard, _) => guard.lost().await,
            Taken::Many(guard) => guard.lost().await,
        }
    }

    async fn asked(&self) {
        match self {
            Taken::One(guard) | Taken::Twice(guard, _) => drop(guard.asked().await),
            Taken::Many(guard) => drop(guard.asked().await),
        }
    }

    async fn release(self) -> Result<()> {
        match self {
            Taken::One(guard) => guard.release().await,
            Taken::Twice(guard, inner) => {
                inner.release().await?;
                guard.release().await
            }
            Taken::Many(guard) => guard.release().await,
        }
    }
}

/// What a task holds. However it ends, the end is written down before the guard goes.
struct Held {
    world: Arc<World>,
    ahead: Duration,
    taken: Option<Taken>,
    holds: Vec<(HoldIx, NameIx)>,
}

impl Held {
    fn taken(&self) -> &Taken {
        self.taken.as_ref().expect("until it ends")
    }

    fn untils(&self) -> impl Iterator<Item = (HoldIx, Instant)> {
        let guards = self.taken.iter().flat_map(Taken::guards);
        self.holds.iter().zip(guards).map(|((hold, _), guard)| (*hold, guard.valid_until() - self.ahead))
    }

    fn end(&mut self, how: Ending) -> Option<Taken> {
        for (hold, until) in self.untils() {
            self.world.write(Event::Ended { hold, how, until });
        }
        self.taken.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.end(Ending::Dropped));
    }
}

/// Asks through a kind's own three ways, with all options set.
macro_rules! ask {
    ($lock:expr, $choice:expr, $at_once:ident, $within:ident, $whenever:ident $(, $argument:expr)*) => {{
        let mut lock = $lock?.ttl($choice.ttl)?.keep($choice.keep).lock_delay($choice.lock_delay)?.min_hold($choice.min_hold)?;
        if let Some(max_hold) = $choice.max_hold {
            lock = lock.max_hold(max_hold)?;
        }
        if $choice.spin {
            lock = lock.spin(Backoff::new(Duration::from_millis(5), Duration::from_millis(80))?);
        }
        match $choice.wait {
            Wait::No => lock.$at_once($($argument),*).await,
            Wait::For(wait) => lock.$within($($argument,)* wait).await,
            Wait::Forever => lock.$whenever($($argument),*).await.map(Some),
        }
    }};
}

impl Worker {
    /// Takes its locks, one after another.
    pub(crate) async fn work(mut self) {
        for _ in 0..self.world.plan.rounds {
            let pause = self.rng.millis(0, 600);
            tokio::time::sleep(pause).await;
            let names = self.targets();
            let choice = self.choose(self.name(names[0]).kind);
            let reentrant = self.name(names[0]).kind == Kind::Mutex && self.rng.chance(200);
            if let Some(held) = self.take(&names, &choice, reentrant).await {
                self.hold(held, &choice).await;
            }
            if self.rng.chance(50) {
                let name = self.name(names[0]).name.clone();
                let _ = timeout(Duration::from_secs(1), self.client.ask(name.as_str(), "somebody else wants it")).await;
            }
        }
    }

    /// One name, or all mutexes as one.
    fn targets(&mut self) -> Vec<NameIx> {
        let names = &self.world.plan.names;
        let one = self.rng.range(0, names.len() as u64 - 1) as usize;
        let mutexes = || (0..names.len()).filter(|name| names[*name].kind == Kind::Mutex);
        if names[one].kind == Kind::Mutex && mutexes().count() > 1 && self.rng.chance(400) {
            mutexes().collect()
        } else {
            vec![one]
        }
    }

    fn name(&self, name: NameIx) -> &Name {
        &self.world.plan.names[name]
    }

    fn choose(&mut self, kind: Kind) -> Choice {
        let rng = &mut self.rng;
        let ttl = rng.pick(&[200, 500, 1_000, 3_000, LONGEST_TTL_MS]);
        let seldom = |rng: &mut Rng, most: u64| if rng.chance(150) { rng.millis(1, most) } else { Duration::ZERO };
        Choice {
            ttl: Duration::from_millis(ttl),
            keep: rng.chance(850),
            lock_delay: seldom(rng, 1_500),
            min_hold: seldom(rng, 700),
            max_hold: rng.chance(100).then(|| rng.millis(100, 2_000)),
            spin: rng.chance(100),
            wait: match rng.range(0, 9) {
                0..=1 => Wait::No,
                2..=4 => Wait::For(rng.millis(1, 4_000)),
                _ => Wait::Forever,
            },
            shared: kind == Kind::RwLock && rng.chance(600),
            permits: rng.range(1, 4) as u32,
        }
    }

    async fn take(&mut self, names: &[NameIx], choice: &Choice, reentrant: bool) -> Option<Held> {
        let (world, who, asked) = (Arc::clone(&self.world), self.who, self.world.now());
        let first = names[0];
        let mode = self.mode(first, choice);
        names.iter().for_each(|name| world.write(Event::Asks { who, name: *name, mode }));
        // Some lose patience: the future is dropped wherever it stands.
        let patience = if self.rng.chance(200) { self.rng.millis(0, 1_500) } else { Duration::from_secs(600) };
        let answer = match timeout(patience, self.ask(names, choice, reentrant)).await {
            Ok(answer) => answer,
            Err(_) => {
                world.write(Event::GaveUp { who, name: first });
                return None;
            }
        };
        match answer {
            Ok(Some(taken)) => Some(self.write_down(taken, names, asked)),
            Ok(None) => {
                world.write(Event::NotInTime { who, name: first });
                None
            }
            Err(error) => {
                world.write(Event::Failed { who, name: first, kind: error.kind() });
                None
            }
        }
    }

    fn mode(&self, name: NameIx, choice: &Choice) -> Mode {
        let Name { kind, permits, .. } = *self.name(name);
        match kind {
            Kind::Semaphore => {
                let of = NonZeroU32::new(permits).expect("at least two");
                Mode::Permits { take: NonZeroU32::new(choice.permits.min(permits)).expect("at least one"), of }
            }
            Kind::RwLock if choice.shared => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }

    async fn ask(&self, names: &[NameIx], choice: &Choice, reentrant: bool) -> Result<Option<Taken>> {
        let (client, Name { name, kind, permits }) = (&self.client, self.name(names[0]));
        let name = name.as_str();
        if names.len() > 1 {
            let names = names.iter().map(|name| self.name(*name).name.as_str());
            let taken: Option<MultiGuard> = ask!(client.multi(names), choice, try_lock, try_lock_for, lock)?;
            return Ok(taken.map(Taken::Many));
        }
        if reentrant {
            let owner = Owner::new(client);
            let Some(guard) = ask!(client.reentrant_mutex(name), choice, try_lock, try_lock_for, lock, &owner)? else {
                return Ok(None);
            };
            let inner = client.reentrant_mutex(name)?.try_lock(&owner).await?;
            return match inner {
                Some(inner) => {
                    if inner.token() != guard.token() {
                        self.violation("P11", "an owner that entered again has another token");
                    }
                    Ok(Some(Taken::Twice(guard, inner)))
                }
                None => {
                    self.violation("P11", "an owner was kept out of what it holds");
                    Ok(Some(Taken::One(guard)))
                }
            };
        }
        let guard: Option<Guard> = match kind {
            Kind::FairMutex => ask!(client.fair_mutex(name), choice, try_lock, try_lock_for, lock),
            Kind::RwLock if choice.shared => ask!(client.rw_lock(name), choice, try_read, try_read_for, read),
            Kind::RwLock => ask!(client.rw_lock(name), choice, try_write, try_write_for, write),
            Kind::Semaphore => {
                let take = choice.permits.min(*permits);
                ask!(client.semaphore(name, *permits), choice, try_acquire, try_acquire_for, acquire, take)
            }
            Kind::Election => ask!(client.election(name), choice, try_campaign, try_campaign_for, campaign),
            _ => ask!(client.mutex(name), choice, try_lock, try_lock_for, lock),
        }?;
        Ok(guard.map(Taken::One))
    }

    fn violation(&self, property: &str, what: &str) {
        self.world.lock().violations.push(format!("{property}: {what}"));
    }

    fn write_down(&self, taken: Taken, names: &[NameIx], asked: Instant) -> Held {
        let mut holds = Vec::new();
        for guard in taken.guards() {
            let name = names.iter().copied().find(|name| self.name(*name).name == *guard.name()).expect("it was asked for");
            let hold = self.world.lock().history.next_hold();
            let until = guard.valid_until() - self.ahead;
            let (mode, token) = (guard.mode(), guard.token());
            self.world.write(Event::Has { who: self.who, hold, name, mode, token, until, asked });
            holds.push((hold, name));
        }
        Held { world: Arc::clone(&self.world), ahead: self.ahead, taken: Some(taken), holds }
    }

    /// Works under the lock, and lets go.
    async fn hold(&mut self, mut held: Held, choice: &Choice) {
        let ttl = choice.ttl.as_millis() as u64;
        let work = if self.rng.chance(250) { self.rng.range(0, 2 * ttl) } else { self.rng.range(0, 300) };
        let end = self.world.now() + Duration::from_millis(work);
        let polite = self.rng.chance(500);
        while self.world.now() < end {
            if !self.work_a_little(&mut held).await {
                return; // a downgrade of unknown outcome: let go at once
            }
            let step = Duration::from_millis(self.rng.range(1, 200)).min(end.since(self.world.now()));
            let listened = self.world.now();
            let lost = tokio::select! {
                biased;
                () = held.taken().lost() => true,
                () = held.taken().asked(), if polite => break,
                () = tokio::time::sleep(step) => false,
            };
            if lost {
                if held.taken().is_trusted() {
                    self.violation("P12", "a guard that said it was lost says that it is not");
                }
                // Of several guards, only those that are lost: the others' windows may go on.
                let lost = held.taken().guards().iter().map(|guard| guard.check().is_err());
                for ((hold, until), _) in held.untils().zip(lost).filter(|(_, lost)| *lost) {
                    self.world.write(Event::SawLoss { hold, until, listened });
                }
                drop(held.end(Ending::Lost));
                return;
            }
        }
        if self.rng.chance(300) {
            return; // dropped
        }
        let taken = held.end(Ending::Released).expect("it has not ended");
        let patience = if self.rng.chance(150) { self.rng.millis(0, 50) } else { Duration::from_secs(600) };
        let _ = timeout(patience, taken.release()).await;
    }

    /// A write to the fenced resource, or a downgrade. `false` if the hold must go.
    async fn work_a_little(&mut self, held: &mut Held) -> bool {
        let is_writer = |guard: &Guard| guard.kind() == Kind::RwLock && guard.mode() == Mode::Exclusive;
        let steps_down = matches!(&held.taken, Some(Taken::One(guard)) if is_writer(guard)) && self.rng.chance(350);
        if steps_down && !self.downgrade(held).await {
            return false;
        }
        if !held.taken().is_trusted() {
            return true; // the next step tells that it is lost
        }
        for (guard, (hold, name)) in held.taken().guards().iter().zip(&held.holds) {
            if guard.mode() == Mode::Exclusive {
                let takes = if self.rng.chance(150) { self.rng.millis(1, 4_000) } else { self.rng.millis(1, 10) };
                self.write(*hold, *name, guard.token(), takes);
            }
        }
        true
    }

    /// Sends a write to the fenced resource: it may arrive long after the lock is gone.
    fn write(&self, hold: HoldIx, name: NameIx, token: Token, takes: Duration) {
        let world = Arc::clone(&self.world);
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            world.fence(hold, name, token);
        });
    }

    async fn downgrade(&mut self, held: &mut Held) -> bool {
        let (hold, _) = held.holds[0];
        let patience = if self.rng.chance(100) { self.rng.millis(0, 30) } else { Duration::from_secs(600) };
        let Some(Taken::One(guard)) = &mut held.taken else { return true };
        self.world.write(Event::StepsDown { hold });
        // Without a yes it is a reader all the same, and may let go, or go on while the request is
        // still under way.
        matches!(timeout(patience, guard.downgrade()).await, Ok(Ok(()))) || self.rng.chance(500)
    }
}

/// Writes down every leader it sees.
pub(crate) async fn observe(world: Arc<World>, client: Client, who: Who, name: NameIx) {
    let election = client.election(world.plan.names[name].name.as_str()).expect("the store has elections");
    let mut observer = election.observe().expect("it is a good name");
    let (mut last, mut vacant) = (None, false);
    loop {
        match observer.next().await.map(|leader| leader.map(|leader| leader.term)) {
            Ok(term) => {
                // One that was thought to be gone is seen once.
                if let Some(term) = term.filter(|_| !(vacant && term == last)) {
                    world.write(Event::Observed { who, name, term });
                }
                (vacant, last) = (term.is_none(), term.or(last));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
