//! A crowd whose every step is on record, and holds that are taken by hand on the same record.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::lease::ALIVE;
use tenure_core::{Client, ErrorKind, Instant, Result};
use tokio::task::JoinHandle;

use super::LONG;
use crate::fenced::FencedFile;
use crate::history::{
    History, Kind, Mode, Op, Phase, Recorder, Task, Violation, check, expect_sound, expect_sound_but_order,
};
use crate::{Held, LIMIT, Lock, Options as _, Shape, in_time};

/// What is on record: a history, and a resource that refuses lower tokens and records its writes too.
pub struct Record {
    recorder: Recorder,
    dir: TempDir,
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl Record {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Record { recorder: Recorder::in_memory(), dir: tempfile::tempdir().expect("there is room for a directory") }
    }

    /// What a lock of this name protects.
    pub fn fenced(&self, name: &str) -> FencedFile {
        FencedFile::at(self.dir.path().join(name)).recorded(&self.recorder, name)
    }

    /// Takes a lock by hand, on record.
    pub async fn lock(&self, lock: &Lock, name: &str) -> OnRecord {
        let mut pen = self.recorder.task(name, Kind::Mutex);
        pen.asks(Mode::Exclusive);
        let held = in_time("the lock", lock.lock()).await.expect("it is granted");
        pen.granted(held.token().get(), held.valid_until());
        OnRecord { held, pen, fenced: self.fenced(name) }
    }

    /// Everything so far.
    pub fn history(&self) -> History {
        self.recorder.history()
    }

    /// All that is promised was kept, after nobody was heard for so long: whoever is not heard for [`ALIVE`] may lose its place
    /// in line, and nothing else.
    #[track_caller]
    pub fn expect_sound_after(&self, silence: Duration) {
        self.expect_sound_after_kills(&[], silence);
    }

    /// The same where the server was killed at these times, and was away for so long at most.
    #[track_caller]
    pub fn expect_sound_after_kills(&self, kills: &[Instant], silence: Duration) {
        let history = self.history().on_disk(kills);
        // Whoever waits was heard at some time in the second before.
        if silence + Duration::from_secs(1) < ALIVE {
            expect_sound(&history);
        } else {
            expect_sound_but_order(&history);
        }
    }

    /// Exclusion was seen to break, as the documentation says it may; tokens and the fence were not.
    #[track_caller]
    pub fn expect_only_exclusion_broken(&self) {
        let violations = check(&self.history()).err().unwrap_or_default();
        assert!(violations.iter().any(|broken| broken.property == "P1"), "exclusion should have been seen to break");
        self.expect_fence_held();
    }

    /// Whatever became of exclusion: the resource never went back, and whoever asked when a token was known has a higher one.
    #[track_caller]
    pub fn expect_fence_held(&self) {
        let history = self.history();
        assert!(history.grants() > 0, "a history without a grant proves nothing");
        let violations = check(&history).err().unwrap_or_default();
        let fallen: Vec<String> =
            violations.iter().filter(|broken| broken.property == "P3").map(Violation::to_string).collect();
        assert!(fallen.is_empty(), "{fallen:#?}");
        for lock in history.locks() {
            assert_eq!(history.stale_tokens(lock), [""; 0]);
        }
    }
}

/// A hold whose every step is recorded.
pub struct OnRecord {
    /// The hold.
    pub held: Held,
    pen: Task,
    fenced: FencedFile,
}

impl OnRecord {
    /// Its fencing number.
    pub fn token(&self) -> u64 {
        self.held.token().get()
    }

    /// Writes to what the lock protects: whether that was accepted.
    pub fn writes(&self) -> bool {
        self.fenced.write(self.token()).expect("the file can be written")
    }

    /// Checks: whether it may be trusted.
    pub fn checks(&self) -> bool {
        self.pen.checks(&self.held);
        self.held.check().is_ok()
    }

    /// Waits until it is lost.
    pub async fn is_lost(&self) {
        in_time("the loss", self.held.lost()).await;
        self.pen.write(Op::Lost, Phase::Ok, Some(self.held.valid_until()));
    }

    /// Lets go.
    pub async fn releases(self) -> Result<()> {
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
pub struct Crowd {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    watching: JoinHandle<()>,
}

impl Crowd {
    /// Starts so many tasks over these clients; `observer` sees who is in line.
    pub fn start(record: &Record, name: &str, shape: Shape, clients: &[Client], tasks: usize, observer: Client) -> Self {
        Self::start_with(record, name, shape, LONG, clients, tasks, observer)
    }

    /// The same with this ttl, where a store does not treat all of them alike.
    pub fn start_with(
        record: &Record,
        name: &str,
        shape: Shape,
        ttl: Duration,
        clients: &[Client],
        tasks: usize,
        observer: Client,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let kind = if shape == Shape::FairMutex { Kind::Fair } else { Kind::Mutex };
        let tasks = (0..tasks)
            .map(|task| {
                let lock = shape.make(&clients[task % clients.len()], name).and_then(|lock| lock.ttl(ttl));
                let (pen, fenced) = (record.recorder.task(name, kind), record.fenced(name));
                tokio::spawn(member(lock.expect("the store offers it"), pen, fenced, Arc::clone(&over)))
            })
            .collect();
        let pen = record.recorder.task(name, kind);
        let watching = tokio::spawn(watch_the_line(observer, name.to_owned(), pen, Arc::clone(&over)));
        Crowd { over, tasks, watching }
    }

    /// Waits until they have had so many grants more. However slow a disk is, the next one comes in the end.
    pub async fn has_had(&self, record: &Record, more: usize) {
        let (mut had, mut at) = (record.history().grants(), Instant::now());
        let wanted = had + more;
        while had < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = record.history().grants();
            if now > had {
                (had, at) = (now, Instant::now());
            }
            assert!(Instant::now().since(at) < LIMIT, "{} grants more: not one within {LIMIT:?}", wanted - had);
        }
    }

    /// Stops them; everybody is served before.
    pub async fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            in_time("everybody is served", task).await.expect("nobody panics");
        }
        self.watching.await.expect("nobody panics");
    }
}

async fn member(lock: Lock, mut pen: Task, fenced: FencedFile, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let claim = pen.asks(Mode::Exclusive);
        let held = match lock.clone().note(&claim.to_string()).expect("a number is a note").lock().await {
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
            fenced.write(held.token().get()).expect("the file can be written");
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
