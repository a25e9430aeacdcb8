//! One round: a batch of histories on one store, hit by one fault at the same time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::memory::Memory;
use tenure_core::{Client, ErrorKind, Instant, Kind};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use super::Connect;
use super::fault::{Fault, Target};
use super::site::Site;
use super::verdict::{Conditions, QUIET, Verdict, judge};
use super::work::{CLIENTS, Plan, watch_the_line};
use crate::history::{History, Kind as RecordedKind, Op, Phase, Recorder, Violation};
use crate::proxy::Proxy;
use crate::taker::{Order, Reply, Taker};
use crate::{LIMIT, Rng, Shape, Silence};

/// What a round needs to know.
pub(super) struct Round {
    pub(super) site: Arc<Site>,
    pub(super) fault: Fault,
    pub(super) seed: u64,
    pub(super) dir: PathBuf,
    pub(super) connect: Connect,
    pub(super) taker: &'static str,
}

/// One history, and what came of it.
pub(super) struct Judged {
    pub(super) file: PathBuf,
    pub(super) seed: u64,
    pub(super) verdict: Verdict,
}

/// New asks are made for so long; whoever asked then is served after it.
const WORK: Duration = Duration::from_millis(1800);

const SHAPES: [Shape; 5] = [Shape::Mutex, Shape::FairMutex, Shape::RwLock, Shape::Semaphore, Shape::ReentrantMutex];

/// The clients of a round, on a runtime that faults may block.
struct Crew {
    runtime: Option<Runtime>,
    clients: Vec<Client>,
    taker: Option<Taker>,
    proxies: Arc<Vec<Proxy>>,
}

impl Crew {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the end")
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Round {
    /// Runs it to its end, and judges every history.
    pub(super) async fn run(&self) -> Vec<Judged> {
        let mut rng = Rng::new(self.seed);
        let observer = reach(self.connect, self.direct()).await;
        let mut crew = self.gather().await;
        let plans = self.plans(&observer, &mut rng);
        for plan in &plans {
            // A run that was ended left them, and its store's tokens were others.
            for which in ["fenced", "second"] {
                let _ = std::fs::remove_file(plan.file(&self.dir, which));
            }
        }
        let machine = Client::new(Memory::new().backend()).expect("memory needs nothing");
        // The clients have threads of their own, which may stand still while ours run; unless it is the fault that blocks them.
        let mut silences = vec![Silence::watched_by(&machine)];
        if self.fault != Fault::RuntimeBlocked {
            let _inside = crew.runtime().enter();
            silences.push(Silence::watched_by(&machine));
        }
        // A server that has no time for anybody is a machine that stands still, too. Only somebody whom the fault did not meet can tell.
        let (finished, recorders, answers) = self.work(&plans, &mut crew, &observer, &mut rng).await;
        let (mut complaints, mut unclosed) = (Vec::new(), None);
        if !finished {
            complaints.push(("in time", format!("not everybody came to an end within {LIMIT:?}")));
        }
        for client in crew.clients.drain(..) {
            match timeout(LIMIT, client.close()).await {
                Ok(closed) => unclosed = unclosed.or(closed.err()),
                Err(late) => complaints.push(("residue", format!("a client could not be closed: {late}"))),
            }
        }
        silences.push(answers);
        let mut stall = Duration::ZERO;
        for silence in silences {
            stall = stall.max(silence.longest().await);
        }
        if let Some(error) = unclosed.filter(|_| stall <= QUIET) {
            complaints.push(("in time", format!("a client could not be closed: {error:?}")));
        }
        if let Some(left) = self.left(&observer).await {
            complaints.push(("residue", left));
        }
        let _ = observer.close().await;
        drop(crew);
        let ttl = plans.iter().map(|plan| plan.ttl).max().unwrap_or_default();
        let conditions = Conditions { store: self.site.store, fault: self.fault, stall, ttl };
        let judged = plans.iter().zip(recorders).map(|(plan, recorder)| self.judge(plan, &recorder, &conditions));
        let mut judged: Vec<Judged> = judged.collect();
        for violation in judged.iter_mut().flat_map(|judged| &mut judged.verdict.broken) {
            violation.says += &format!("; the machine stood still for {stall:?} at most");
        }
        for (property, says) in complaints {
            // What concerns a whole round is said of its first history.
            judged[0].verdict.broken.push(Violation { property, lock: self.prefix(), says });
        }
        judged
    }

    fn direct(&self) -> String {
        self.site.url(&self.site.addresses())
    }

    /// What the names of this round begin with.
    fn prefix(&self) -> String {
        format!("{}-{}-{}-", self.site.store.words().0, self.fault.words().0, self.seed)
    }

    async fn gather(&self) -> Crew {
        let addresses = self.site.addresses().into_iter();
        let proxies: Vec<Proxy> = match self.fault.hits_network() {
            true => addresses.map(|address| Proxy::seeded(address, self.seed)).collect(),
            false => vec![],
        };
        let through = if proxies.is_empty() {
            self.direct()
        } else {
            self.site.url(&proxies.iter().map(Proxy::address).collect::<Vec<_>>())
        };
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built");
        let here = CLIENTS - u64::from(self.fault.hits_process());
        let mut clients = Vec::new();
        for which in 0..here {
            let (connect, url) = (self.connect, if which == 0 { self.direct() } else { through.clone() });
            clients.push(runtime.spawn(reach(connect, url)).await.expect("the store is there"));
        }
        let taker = match self.fault.hits_process() {
            true => Some(Taker::start(self.taker, &self.direct()).await),
            false => None,
        };
        Crew { runtime: Some(runtime), clients, taker, proxies: Arc::new(proxies) }
    }

    fn plans(&self, client: &Client, rng: &mut Rng) -> Vec<Plan> {
        let abilities = client.abilities();
        let offered: Vec<Shape> = SHAPES.into_iter().filter(|shape| abilities.kinds.contains(&shape.kind())).collect();
        let until = Instant::now() + WORK;
        let name = |number| format!("{}{number}", self.prefix());
        let plan = |number| Plan::new(rng.next_u64(), name(number), &offered, until, abilities.downgrade);
        (0..self.site.store.batch()).map(plan).collect()
    }

    /// Whether everybody came to an end, what was recorded, and how the server answered to who came after the fault.
    async fn work(
        &self,
        plans: &[Plan],
        crew: &mut Crew,
        observer: &Client,
        rng: &mut Rng,
    ) -> (bool, Vec<Recorder>, Silence) {
        let recorders: Vec<Recorder> = plans.iter().map(|_| Recorder::in_memory()).collect();
        let runtime = crew.runtime().handle().clone();
        let mut tasks = Vec::new();
        for (plan, recorder) in plans.iter().zip(&recorders) {
            let _inside = runtime.enter();
            for (which, client) in (0..).zip(&crew.clients) {
                tasks.extend(plan.start(client, which, recorder, &self.dir));
            }
            if self.fault.keeps_order() && plan.shape.kind() == Kind::FairMutex {
                tasks.push(tokio::spawn(watch_the_line(observer.clone(), plan.clone(), recorder.clone())));
            }
        }
        if let Some(taker) = &mut crew.taker {
            taker.send(Order::Attack(plans.to_vec(), self.dir.clone()));
        }
        let taker = crew.taker.take();
        let ttl = plans[0].ttl;
        let mut target =
            Target { site: Arc::clone(&self.site), proxies: Arc::clone(&crew.proxies), taker, clients: runtime, ttl };
        sleep(rng.up_to(Duration::from_millis(400)) + Duration::from_millis(100)).await;
        let mark = |phase| {
            for (plan, recorder) in plans.iter().zip(&recorders) {
                recorder.task(&plan.name, RecordedKind::Mutex).write(Op::Fault, phase, None);
            }
        };
        let mut answers = None;
        match self.fault {
            Fault::None => answers = Some(Silence::asked_by(observer, self.to_string())),
            _ => mark(Phase::Invoke),
        }
        target.suffer(self.fault, rng).await;
        if self.fault != Fault::None {
            mark(Phase::Ok);
        }
        let answers = match answers {
            Some(answers) => answers,
            None => Silence::asked_by(&reach(self.connect, self.direct()).await, self.to_string()),
        };
        let ending = async {
            for task in tasks {
                task.await.expect("no task panics");
            }
            if let Some(taker) = target.taker.as_mut().filter(|_| self.fault != Fault::ClientKilled) {
                assert_eq!(taker.finished().await, Reply::Done);
            }
        };
        (timeout(LIMIT, ending).await.is_ok(), recorders, answers)
    }

    /// What stays in the store though every client is closed or dead. Somebody comes by now and then, as where there is no
    /// server it is users who clean up.
    async fn left(&self, observer: &Client) -> Option<String> {
        let began = Instant::now();
        loop {
            let left = match observer.list(&self.prefix(), None, 100).await {
                Ok(names) if names.is_empty() => return None,
                Ok(names) => format!("{} names are in use after the end, such as {:?}", names.len(), names[0]),
                Err(error) => format!("the names could not be listed: {error}"),
            };
            if Instant::now().since(began) > LIMIT {
                return Some(left);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Brings what several processes wrote into one file, and reads it as anybody would.
    fn judge(&self, plan: &Plan, recorder: &Recorder, conditions: &Conditions) -> Judged {
        let second = plan.file(&self.dir, "second");
        let mut history = recorder.history();
        if second.exists() {
            history = history.merge(History::read([&second]).expect("a second process writes whole lines"));
            std::fs::remove_file(&second).expect("it is ours");
        }
        let file = plan.file(&self.dir, "jsonl");
        history.write(&file).expect("there is room for a history");
        let _ = std::fs::remove_file(plan.file(&self.dir, "fenced"));
        Judged { file, seed: self.seed, verdict: judge(history, conditions) }
    }
}

/// A client, from when the store answers: no fault is active now, but the machine may be busy.
async fn reach(connect: Connect, url: String) -> Client {
    let began = Instant::now();
    loop {
        match connect(&url).await {
            Ok(client) => return client,
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now().since(began) < LIMIT => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("the store cannot be reached: {error:?}"),
        }
    }
}

/// Waits until a store without clients has nothing left; says what is.
pub(super) async fn left_in(site: Arc<Site>, connect: Connect) -> Option<String> {
    let began = Instant::now();
    loop {
        // Whoever comes cleans up behind those who died.
        if let Ok(visitor) = connect(&site.url(&site.addresses())).await {
            if let Ok(Some(held)) = visitor.mutex("visitor").expect("every store has one").try_lock().await {
                let _ = held.release().await;
            }
            let _ = visitor.close().await;
        }
        let its = Arc::clone(&site);
        let left = tokio::task::spawn_blocking(move || its.residue()).await.expect("a server says what it has");
        if left == 0 {
            return None;
        }
        if Instant::now().since(began) > LIMIT {
            return Some(format!("{}: {left} things are left though every client is gone", site.store.words().0));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// For errors that say where a round is.
impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under {}, seed {}", self.site.store.words().0, self.fault.words().0, self.seed)
    }
}
