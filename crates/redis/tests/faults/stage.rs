//! What the faults happen to: a server, perhaps behind a proxy, clients of it, and a crowd whose every step is on record.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::{Backend, Client, Environment, ErrorKind, Result};
use tenure_testkit::fenced::FencedFile;
use tenure_testkit::history::{
    History, Kind, Mode, Op, Phase, Recorder, Task, Violation, check, expect_sound, expect_sound_but_order,
};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{Harness, Held, Lock, Options as _, Shape, eventually, eventually_async, in_time};
use tokio::task::JoinHandle;

/// Longer than any test: whoever has it loses it by a fault, not by the machine's slowness.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How long a waiter keeps its place that nobody hears of.
pub(crate) const ALIVE: Duration = Duration::from_secs(4);

/// A client of the server at this URL, with a keeper of its own.
pub(crate) async fn client(url: &str) -> Client {
    let backend = tenure_redis::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// A server, and a proxy in front of it.
pub(crate) struct Stage {
    pub(crate) server: Redis,
    pub(crate) proxy: Proxy,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(RedisOptions::new())
    }

    pub(crate) fn with(options: RedisOptions) -> Self {
        let server = Redis::start(options);
        let proxy = Proxy::start(server.address());
        Stage { server, proxy }
    }

    /// A client that no fault of the network meets.
    pub(crate) async fn direct(&self) -> Client {
        client(&self.server.url()).await
    }

    /// A client behind the proxy, with nothing of its own under way. It has locked and released `beacon`, which nobody else
    /// ever names, so that `Which::sent("beacon")` is its connection for asks and no other.
    pub(crate) async fn proxied(&self) -> Client {
        self.proxied_with("").await
    }

    /// The same, with these parameters in its URL.
    pub(crate) async fn proxied_with(&self, parameters: &str) -> Client {
        let client = client(&format!("redis://{}{parameters}", self.proxy.address())).await;
        // With its first ask it also looks through the index in the background. A name is in it whose record is gone, so it
        // tidies that away, and then it is done; the answer to what is asked after that is the last one.
        self.server.command(&["ZADD", "tenure:{0}:names", "0", "gone"]);
        let looks = calls(&self.server, "exists");
        client.mutex("first").unwrap().lock().await.unwrap().release().await.unwrap();
        eventually("the index was looked at", || calls(&self.server, "exists") > looks).await;
        client.mutex("beacon").unwrap().lock().await.unwrap().release().await.unwrap();
        client
    }
}

/// How often a server has run a command.
pub(crate) fn calls(server: &Redis, command: &str) -> u64 {
    server.calls().get(command).copied().unwrap_or(0)
}

/// The keys of a server, without those that may outlive their locks for a while: the last token, marks, and what is remembered.
pub(crate) fn residue(server: &Redis) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).texts().into_iter();
    keys.filter(|key| !key.ends_with(":token") && !key.contains(":ended:") && !key.contains(":past:")).collect()
}

/// The marks of claims that were ended. Whatever was sent twice leaves one, and on a machine that stands still that may be anything.
pub(crate) fn marks(server: &Redis) -> HashSet<String> {
    server.command(&["KEYS", "*:ended:*"]).texts().into_iter().collect()
}

/// The only mark that was left since these were there.
pub(crate) fn new_mark(server: &Redis, before: &HashSet<String>) -> String {
    let new: Vec<String> = marks(server).difference(before).cloned().collect();
    let [mark] = <[String; 1]>::try_from(new).expect("one new mark");
    mark
}

/// The last token that a server gave.
pub(crate) fn last_token(server: &Redis) -> u64 {
    server.command(&["GET", "tenure:{0}:token"]).int() as u64
}

/// Waits until nothing is left but tokens and marks.
pub(crate) async fn leaves_nothing(server: &Redis, clients: impl IntoIterator<Item = Client>) {
    for client in clients {
        client.close().await.unwrap();
    }
    eventually("nothing is left", || residue(server).is_empty()).await;
}

/// Waits until so many wait for the name.
pub(crate) async fn line_is(client: &Client, name: &str, long: usize) {
    let what = format!("{long} wait for {name:?}");
    eventually_async(&what, async || client.view(name).await.is_ok_and(|view| view.line.len() == long)).await;
}

/// Waits until nobody holds the name and nobody waits for it.
pub(crate) async fn is_free(client: &Client, name: &str) {
    let what = format!("{name:?} is free");
    eventually_async(&what, async || client.view(name).await.is_ok_and(|view| view.is_free())).await;
}

/// What is on record: a history, and a resource that refuses lower tokens and records its writes too.
pub(crate) struct Record {
    pub(crate) recorder: Recorder,
    dir: TempDir,
}

impl Record {
    pub(crate) fn new() -> Self {
        Record { recorder: Recorder::in_memory(), dir: tempfile::tempdir().unwrap() }
    }

    /// What a lock of this name protects.
    pub(crate) fn fenced(&self, name: &str) -> FencedFile {
        FencedFile::at(self.dir.path().join(name)).recorded(&self.recorder, name)
    }

    /// Takes a lock by hand, on record.
    pub(crate) async fn lock(&self, lock: &Lock, name: &str) -> OnRecord {
        let mut pen = self.recorder.task(name, Kind::Mutex);
        pen.asks(Mode::Exclusive);
        let held = in_time("the lock", lock.lock()).await.unwrap();
        pen.granted(held.token().get(), held.valid_until());
        OnRecord { held, pen, fenced: self.fenced(name) }
    }

    /// Everything so far.
    pub(crate) fn history(&self) -> History {
        self.recorder.history()
    }

    /// All that is promised was kept, after nobody was heard for so long: whoever is not heard for [`ALIVE`] may lose its place
    /// in line, and nothing else.
    #[track_caller]
    pub(crate) fn expect_sound_after(&self, silence: Duration) {
        // Whoever waits was heard at some time in the second before, and a beat that nobody answered comes again within the next.
        if silence + Duration::from_secs(2) < ALIVE {
            expect_sound(&self.history());
        } else {
            expect_sound_but_order(&self.history());
        }
    }

    /// Exclusion was seen to break, as the documentation says it may; tokens and the fence were not.
    #[track_caller]
    pub(crate) fn expect_only_exclusion_broken(&self) {
        let violations = check(&self.history()).err().unwrap_or_default();
        assert!(violations.iter().any(|broken| broken.property == "P1"), "exclusion should have been seen to break");
        self.expect_fence_held();
    }

    /// Whatever became of exclusion: the resource never went back, and whoever asked when a token was known has a higher
    /// one. (Of two who hold at once, either may be the first to learn of it.)
    #[track_caller]
    pub(crate) fn expect_fence_held(&self) {
        let history = self.history();
        assert!(history.grants() > 0, "a history without a grant proves nothing");
        let violations = check(&history).err().unwrap_or_default();
        let fallen: Vec<String> =
            violations.iter().filter(|broken| broken.property == "P3").map(Violation::to_string).collect();
        assert!(fallen.is_empty(), "{fallen:#?}");
        for lock in history.locks() {
            let (known, mut asked) = (history.holds(lock), history.holds(lock));
            asked.sort_by_key(|hold| hold.invoked);
            let (mut known, mut highest) = (known.iter().peekable(), 0);
            for hold in asked {
                while let Some(earlier) = known.next_if(|earlier| earlier.from < hold.invoked) {
                    highest = highest.max(earlier.token);
                }
                assert!(hold.token > highest, "{lock:?}: token {} was given when {highest} was known", hold.token);
            }
        }
    }
}

/// A hold whose every step is recorded.
pub(crate) struct OnRecord {
    pub(crate) held: Held,
    pen: Task,
    fenced: FencedFile,
}

impl OnRecord {
    pub(crate) fn token(&self) -> u64 {
        self.held.token().get()
    }

    /// Writes to what the lock protects: whether that was accepted.
    pub(crate) fn writes(&self) -> bool {
        self.fenced.write(self.token()).unwrap()
    }

    /// Checks: whether it may be trusted.
    pub(crate) fn checks(&self) -> bool {
        self.pen.checks(&self.held);
        self.held.check().is_ok()
    }

    /// Waits until it is lost.
    pub(crate) async fn is_lost(&self) {
        in_time("the loss", self.held.lost()).await;
        self.pen.write(Op::Lost, Phase::Ok, Some(self.held.valid_until()));
    }

    pub(crate) async fn releases(self) -> Result<()> {
        self.pen.write(Op::Release, Phase::Invoke, Some(self.held.valid_until()));
        let released = self.held.release().await;
        record_release(&self.pen, &released);
        released
    }
}

/// An ending that nobody confirmed is none that anybody may rely on.
fn record_release(pen: &Task, released: &Result<()>) {
    match released {
        Ok(()) => pen.write(Op::Release, Phase::Ok, None),
        Err(error) if error.kind() == ErrorKind::Lost => pen.write(Op::Release, Phase::Fail, None),
        Err(_) => {}
    }
}

/// Tasks that lock, write to the fenced resource and release, again and again until told to stop, whatever goes wrong.
pub(crate) struct Crowd {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    watching: JoinHandle<()>,
}

impl Crowd {
    /// Starts so many tasks over these clients; `observer` sees who is in line.
    pub(crate) fn start(
        record: &Record,
        name: &str,
        shape: Shape,
        clients: &[Client],
        tasks: usize,
        observer: Client,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let kind = if shape == Shape::FairMutex { Kind::Fair } else { Kind::Mutex };
        let tasks = (0..tasks)
            .map(|task| {
                let lock = shape.make(&clients[task % clients.len()], name).unwrap().ttl(LONG).unwrap();
                let (pen, fenced) = (record.recorder.task(name, kind), record.fenced(name));
                tokio::spawn(member(lock, pen, fenced, Arc::clone(&over)))
            })
            .collect();
        let pen = record.recorder.task(name, kind);
        let watching = tokio::spawn(watch_the_line(observer, name.to_owned(), pen, Arc::clone(&over)));
        Crowd { over, tasks, watching }
    }

    /// Waits until they have had so many grants more.
    pub(crate) async fn has_had(&self, record: &Record, more: usize) {
        let wanted = record.history().grants() + more;
        eventually(&format!("{more} grants more"), || record.history().grants() >= wanted).await;
    }

    /// Stops them; everybody is served before.
    pub(crate) async fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            in_time("everybody is served", task).await.unwrap();
        }
        self.watching.await.unwrap();
    }
}

async fn member(lock: Lock, mut pen: Task, fenced: FencedFile, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let claim = pen.asks(Mode::Exclusive);
        let held = match lock.clone().note(&claim.to_string()).unwrap().lock().await {
            Ok(held) => held,
            Err(error) => {
                // Only what a fault excuses; a refusal or a panic of the store would be a bug.
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
                pen.write(Op::Acquire, Phase::Unknown, None);
                continue;
            }
        };
        pen.granted(held.token().get(), held.valid_until());
        if held.check().is_ok() {
            fenced.write(held.token().get()).unwrap();
        }
        tokio::task::yield_now().await;
        pen.checks(&held);
        pen.write(Op::Release, Phase::Invoke, Some(held.valid_until()));
        record_release(&pen, &held.release().await);
    }
}

/// Writes down whom it sees in the line: every ask carries its number as a note. Sees nothing while the server is away.
async fn watch_the_line(observer: Client, name: String, pen: Task, over: Arc<AtomicBool>) {
    let mut seen = HashSet::new();
    while !over.load(Ordering::Relaxed) {
        if let Ok(view) = observer.view(&name).await {
            for claim in view.line.iter().filter_map(|waiter| waiter.note.as_str().parse().ok()) {
                if seen.insert(claim) {
                    pen.saw(Op::Queue, Some(claim), None);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A server's URL as a store of the suite: what a second process opens.
pub(crate) struct Store;

impl Harness for Store {
    async fn start() -> Self {
        Store
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("it is only opened by its URL")
    }

    async fn residue(&self) -> usize {
        0
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_redis::connect(&url.parse()?).await
    }
}
