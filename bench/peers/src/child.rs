//! A contender's own process, for those in Rust: reads orders, carries them out on a runtime, answers.
//!
//! The main thread is no worker: it keeps the time, reads and writes, and the tasks have the runtime to themselves.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Instant;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::contenders::{self, Contender, Failure, Lock, Visitor};
use crate::orders::{Answer, Order};
use crate::room::Room;
use crate::stats;
use crate::store::Store;

pub(crate) fn serve(store: &str, key: &str, url: &str, index: &str) -> Result<(), String> {
    let index: usize = index.parse().map_err(|error| format!("the index {index:?}: {error}"))?;
    contenders::visit(Store::parse(store)?, key, Serve { url, index })
}

struct Serve<'a> {
    url: &'a str,
    index: usize,
}

impl Visitor for Serve<'_> {
    fn visit<C: Contender>(self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("starting a runtime: {error}"))?;
        let contender = match runtime.block_on(C::connect(self.url, self.index)) {
            Ok(contender) => contender,
            Err(why) => {
                say(&Answer::Failed { why: format!("connecting: {why}") });
                return Ok(());
            }
        };
        say(&Answer::Ready);
        let mut child = Child { runtime, contender, index: self.index, pair: None };
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| format!("reading an order: {error}"))?;
            let order: Order = serde_json::from_str(&line).map_err(|error| format!("the order {line}: {error}"))?;
            let answer = child.obey(order).unwrap_or_else(|why| Answer::Failed { why: why.to_string() });
            say(&answer);
        }
        // Tasks may still wait for locks, and the server is thrown away: nothing to tidy.
        std::process::exit(0)
    }
}

struct Child<C: Contender> {
    runtime: Runtime,
    contender: C,
    index: usize,
    pair: Option<Pair<C::Lock>>,
}

/// The lock of `Prepare`, and how to end the hold it is in.
struct Pair<L> {
    lock: L,
    held: Option<Held>,
}

struct Held {
    release: oneshot::Sender<()>,
    /// First when it held, then when it called release.
    tell: mpsc::UnboundedReceiver<Result<u64, Failure>>,
}

impl<C: Contender> Child<C> {
    fn obey(&mut self, order: Order) -> Result<Answer, Failure> {
        match order {
            Order::Solo { name, warm_ms, ms } => self.solo(&name, millis(warm_ms), millis(ms)),
            Order::Many { name, tasks, warm_ms, ms } => self.many(&name, tasks, millis(warm_ms), millis(ms)),
            Order::Contend { name, tasks, hold_ms, warm_ms, ms } => {
                self.contend(&name, tasks, millis(hold_ms), millis(warm_ms), millis(ms))
            }
            Order::Prepare { name } => {
                let lock = self.lock(&name)?;
                if self.index == 0 {
                    self.runtime.block_on(self.contender.prime(&lock))?;
                }
                self.pair = Some(Pair { lock, held: None });
                Ok(Answer::Prepared)
            }
            Order::Lock => self.pair_lock(),
            Order::Unlock => self.pair_unlock(),
        }
    }

    fn lock(&self, name: &str) -> Result<C::Lock, Failure> {
        self.runtime.block_on(self.contender.lock(name))
    }

    fn solo(&self, name: &str, warm: Duration, length: Duration) -> Result<Answer, Failure> {
        let lock = self.lock(name)?;
        let counting_from = Instant::now() + warm;
        let until = counting_from + length;
        // On a worker of the runtime, where users' tasks are, and not on the thread that blocks on it.
        let task = self.runtime.spawn(async move {
            let mut pairs = Vec::new();
            loop {
                let began = Instant::now();
                if began >= until {
                    return Ok::<_, Failure>(pairs);
                }
                lock.with(async {}).await?;
                if began >= counting_from {
                    pairs.push(Instant::now().since(began).as_nanos() as u64);
                }
            }
        });
        let mut pairs = self.runtime.block_on(task).map_err(Failure::broken)??;
        let nothing = || Failure::Broken("not one pair in time".to_owned());
        let p50_ns = stats::percentile(&mut pairs, 0.5).ok_or_else(nothing)?;
        let p99_ns = stats::percentile(&mut pairs, 0.99).ok_or_else(nothing)?;
        Ok(Answer::Solo { p50_ns, p99_ns, pairs: pairs.len() as u64 })
    }

    fn many(&self, name: &str, tasks: usize, warm: Duration, length: Duration) -> Result<Answer, Failure> {
        let pairs = Arc::new(AtomicU64::new(0));
        let trouble = Arc::new(Mutex::new(None));
        for number in 0..tasks {
            let lock = self.lock(&format!("{name}/{number}"))?;
            let (pairs, trouble) = (Arc::clone(&pairs), Arc::clone(&trouble));
            self.runtime.spawn(async move {
                loop {
                    if let Err(why) = lock.with(async {}).await {
                        *trouble.lock().expect("nobody panics with it") = Some(why);
                        return;
                    }
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(warm);
        let (began, before) = (Instant::now(), pairs.load(Ordering::Relaxed));
        std::thread::sleep(length);
        let (seconds, after) = (Instant::now().since(began).as_secs_f64(), pairs.load(Ordering::Relaxed));
        match trouble.lock().expect("nobody panics with it").take() {
            Some(why) => Err(why),
            None => Ok(Answer::Many { pairs: after - before, seconds }),
        }
    }

    fn contend(
        &self,
        name: &str,
        tasks: usize,
        hold: Duration,
        warm: Duration,
        length: Duration,
    ) -> Result<Answer, Failure> {
        let room = Arc::new(Mutex::new(Room::new(tasks)));
        let broken = Arc::new(AtomicBool::new(false));
        let locks = (0..tasks).map(|_| self.lock(name)).collect::<Result<Vec<_>, _>>()?;
        self.runtime.block_on(self.contender.prime(&locks[0]))?;
        for (me, lock) in locks.into_iter().enumerate() {
            let (room, broken) = (Arc::clone(&room), Arc::clone(&broken));
            self.runtime.spawn(async move {
                loop {
                    match lock.with(stay(me, Arc::clone(&room), hold)).await {
                        Ok(()) => {}
                        Err(Failure::GaveUp) => room.lock().expect("nobody panics in it").gave_up(),
                        Err(Failure::Lost) => room.lock().expect("nobody panics in it").lost(),
                        Err(Failure::Broken(why)) => {
                            eprintln!("peers: a contending task: {why}");
                            broken.store(true, Ordering::Relaxed);
                            return;
                        }
                    }
                }
            });
        }
        std::thread::sleep(warm);
        room.lock().expect("nobody panics in it").start_counting();
        let began = Instant::now();
        say(&Answer::Counting);
        std::thread::sleep(length);
        let seen = room.lock().expect("nobody panics in it").sum_up(Instant::now().since(began).as_secs_f64());
        match broken.load(Ordering::Relaxed) {
            true => Err(Failure::Broken("a task failed, see standard error".to_owned())),
            false => Ok(Answer::Contend(seen)),
        }
    }

    fn pair_lock(&mut self) -> Result<Answer, Failure> {
        let pair = self.pair.as_mut().ok_or_else(|| Failure::broken("nothing is prepared"))?;
        let (release, released) = oneshot::channel();
        let (told, mut tell) = mpsc::unbounded_channel();
        let (asked, lock) = (Instant::now(), pair.lock.clone());
        // A library that gives up is asked again at once: the hold's end is only used up by a hold.
        let released = Arc::new(Mutex::new(Some(released)));
        self.runtime.spawn(async move {
            loop {
                let (inside_told, inside_released) = (told.clone(), Arc::clone(&released));
                let done = lock
                    .with(async move {
                        let _ = inside_told.send(Ok(Instant::now().as_nanos()));
                        let released = inside_released.lock().expect("nobody panics with it").take();
                        if let Some(released) = released {
                            let _ = released.await;
                        }
                        Instant::now().as_nanos()
                    })
                    .await;
                if !matches!(done, Err(Failure::GaveUp)) {
                    let _ = told.send(done);
                    return;
                }
            }
        });
        let at_ns = tell.blocking_recv().ok_or_else(|| Failure::broken("the task is gone"))??;
        pair.held = Some(Held { release, tell });
        Ok(Answer::Held { asked_ns: asked.as_nanos(), at_ns })
    }

    fn pair_unlock(&mut self) -> Result<Answer, Failure> {
        let held = self.pair.as_mut().and_then(|pair| pair.held.take());
        let Held { release, mut tell } = held.ok_or_else(|| Failure::broken("nothing is held"))?;
        let _ = release.send(());
        let at_ns = tell.blocking_recv().ok_or_else(|| Failure::broken("the task is gone"))??;
        Ok(Answer::Released { at_ns })
    }
}

async fn stay(me: usize, room: Arc<Mutex<Room>>, hold: Duration) {
    room.lock().expect("nobody panics in it").enter(me, Instant::now().as_nanos());
    if !hold.is_zero() {
        // A thread's sleep: tokio's timers have millisecond steps, and 2 ms would be 3 where Python's and Node's are 2.
        let _ = tokio::task::spawn_blocking(move || std::thread::sleep(hold)).await;
    }
    room.lock().expect("nobody panics in it").leave(Instant::now().as_nanos());
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn say(answer: &Answer) {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(answer).expect("answers are plain data");
    // Nobody listens any more: then the run has ended, and so shall we.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
