//! `tenure bench`: what a lock costs on a store, as multiples of what the store itself costs.
//!
//! Microseconds say more about the machine than about the locks, so every figure is also given as a ratio to the store's raw
//! round trip ([`Client::probe`](tenure::Client::probe)) measured in the same repetition. Each repetition visits every line
//! once, so that a noisy neighbour hits all of them alike, and each line is shown as the median of the repetitions with
//! their spread.
//!
//! # Layout
//!
//! | file | idea |
//! |---|---|
//! | `lines` | what is measured: one row of the report each, with its unit, its base and its goal |
//! | `solo` | one task: the raw round trip, the raw pair, acquire + release |
//! | `many` | 64 tasks on 64 names, beside 64 tasks of raw pairs |
//! | `contended` | 16 tasks on one name: hand-overs, fairness, waits |
//! | `handover` | one name, several processes: release called → next holder running |
//! | `quiet` | while nothing happens: what 50 waiting processes cost, and holding 1,000 locks |
//! | `fence` | a fence beside a raw write of its store, alone: with `--fence` |
//! | `recovery` | kill -9 of a holder: until a waiter in another process holds |
//! | `window` | a crew of tasks that warms up, is counted for a while, and stops |
//! | `orders`, `helpers`, `child` | the other processes: what they are told, their handles here, and what they do |
//! | `place` | the store it runs on, a temporary one unless told |
//! | `machine`, `stats` | where it ran; medians and spreads |
//! | `results`, `words` | what was measured, and numbers as people read them |
//! | `report`, `json`, `plot` | for readers, for programs, as a picture |
//!
//! # What makes a figure wrong, and what is done about it
//!
//! - A lock that the same task takes again is no hand-over: only changes of holder are counted.
//! - A fast lock that lets two in is no lock: the contended lines check exclusion and rising tokens, and fail loudly.
//! - Reading a clock costs as much as a memory lock: one task is timed in batches, see `solo`.
//! - The caller's runtime is whatever it is: the measurements run on one of their own.

mod child;
mod contended;
mod fence;
mod handover;
mod helpers;
mod json;
mod lines;
mod machine;
mod many;
mod orders;
mod place;
mod plot;
mod quiet;
mod recovery;
mod report;
mod results;
mod solo;
mod stats;
mod window;
mod words;

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tenure::backend::Reach;
use tenure::{Client, Error, ErrorKind, Kind, Result};

use self::helpers::Helpers;
use self::lines::Measure;
use self::place::Place;
use self::results::{Results, Settings};
use crate::failure::Failure;
use crate::fence::FenceArgs;

pub(crate) use self::child::child;

/// What `tenure bench` is told.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Args {
    /// One JSON document with every repetition, instead of the table
    #[arg(long)]
    json: bool,

    /// Also draw the repetitions into this SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// How often each line is measured [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,

    /// Shorter and coarser: about ten seconds instead of a minute
    #[arg(long)]
    quick: bool,

    /// Measure only these (the raw round trip always belongs to it)
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    only: Vec<Measure>,

    /// Threads of the runtime that is measured on; 1 is a single-threaded one [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Measure this fence beside raw writes of its store, and nothing else: sqlite:///path, redis://host and so on
    #[arg(long, value_name = "URL", conflicts_with = "fence_file")]
    fence: Option<String>,

    /// A file whose first line is the fence's URL: the place for one with a password
    #[arg(long, value_name = "FILE")]
    fence_file: Option<PathBuf>,
}

impl Args {
    /// The fence that is to be measured, if one is.
    pub(crate) fn fence(&self) -> std::result::Result<Option<String>, Failure> {
        FenceArgs { fence: self.fence.clone(), fence_file: self.fence_file.clone() }.named()
    }
}

/// Measures and reports. Without a `store` it runs on a temporary SQLite file, never on the user's own.
///
/// With a `fence` it measures that, and no store.
///
/// The exit code is 130 or 143 when it was interrupted; then nothing is reported.
///
/// # Cancel safety
/// Dropped before it completes, the measurement goes on by itself to its end, and its report is lost.
pub(crate) async fn run(args: Args, store: Option<String>, fence: Option<String>) -> Result<ExitCode> {
    let threads = args.threads.map_or_else(machine::cores, usize::from);
    on_own_runtime(threads, move || async move {
        // The signals are caught so that helpers and the temporary store are gone before this process is.
        tokio::select! {
            biased;
            code = interrupted() => Ok(ExitCode::from(code)),
            done = measure_and_report(args, store, fence, threads) => done.map(|()| ExitCode::SUCCESS),
        }
    })
    .await?
}

/// Everything a measurement needs to know.
#[derive(Clone)]
struct Bench {
    client: Client,
    /// Where other processes connect to.
    url: String,
    /// What every name begins with: ours alone, so that nobody's lock is in the way and ours are in nobody's.
    prefix: String,
    pace: Pace,
}

impl Bench {
    fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.prefix)
    }

    /// Why a measurement makes no sense on this store, if so.
    fn refuses(&self, measure: Measure) -> Option<String> {
        let abilities = self.client.abilities();
        if measure.needs_processes() && abilities.reach < Reach::Host {
            return Some("not across processes".to_owned());
        }
        let kind = if measure == Measure::Fair { Kind::FairMutex } else { Kind::Mutex };
        (!abilities.kinds.contains(&kind)).then(|| format!("this store has no {kind}"))
    }
}

/// How long each measurement takes in one repetition.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Before counting begins, wherever tasks run in a crew.
    warm_up: Duration,
    /// Counted, wherever tasks of this process run.
    tasks: Duration,
    /// Counted, where processes hand over to each other.
    processes: Duration,
    /// Over which CPU time is read.
    quiet: Duration,
    /// The ttl of locks that are held or lost: renewal and recovery are a matter of seconds, not of the default's half minute.
    ttl: Duration,
}

impl Pace {
    const FULL: Pace = Pace {
        warm_up: Duration::from_millis(50),
        tasks: Duration::from_millis(400),
        processes: Duration::from_millis(700),
        quiet: Duration::from_millis(5000),
        ttl: Duration::from_millis(3000),
    };
    const QUICK: Pace = Pace {
        warm_up: Duration::from_millis(20),
        tasks: Duration::from_millis(120),
        processes: Duration::from_millis(200),
        quiet: Duration::from_millis(3500),
        ttl: Duration::from_millis(3000),
    };
}

async fn measure_and_report(args: Args, store: Option<String>, fence: Option<String>, threads: usize) -> Result<()> {
    // A picture that cannot be written should not cost a minute of measuring first.
    if let Some(path) = &args.plot {
        std::fs::write(path, "").map_err(|error| cannot_write(path, error))?;
    }
    let repetitions = args.repeat.unwrap_or(if args.quick { 3 } else { 5 });
    let settings = Settings { repetitions, quick: args.quick, threads, temporary_store: false };
    let results = match fence {
        Some(url) => measure_fence(&args, &url, settings).await?,
        None => {
            let place = Place::choose(store)?;
            let client = tenure::connect(place.url()).await?;
            let settings = Settings { temporary_store: place.is_temporary(), ..settings };
            let results = measure(&args, &place, client.clone(), settings).await?;
            client.close().await?;
            results
        }
    };

    let out = std::io::stdout();
    let text = if args.json { json::document(&results) } else { report::table(&results, wants_colour(&out)) };
    match out.lock().write_all(text.as_bytes()) {
        // Whoever closed the pipe has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(failed("standard output", error)),
        _ => {}
    }
    match &args.plot {
        Some(path) => std::fs::write(path, plot::svg(&results)).map_err(|error| cannot_write(path, error)),
        None => Ok(()),
    }
}

/// A fence and nothing else.
async fn measure_fence(args: &Args, url: &str, settings: Settings) -> Result<Results> {
    if args.plot.is_some() || !args.only.is_empty() {
        return Err(Error::new(ErrorKind::BadOption, "bench: --fence goes with neither --plot nor --only")
            .with_hint("It has four lines, which belong together"));
    }
    let scheme = url.parse::<tenure::StoreUrl>()?.scheme().to_owned();
    let fence = tenure::fence(url).await?;
    let mut results = Results::of_fence(if scheme == "memory" { "memory" } else { "fence" }, fence.describe(), settings);
    let pace = if args.quick { Pace::QUICK } else { Pace::FULL };
    let progress = progress_bar(args.json, u64::from(results.settings.repetitions));
    progress.set_message(Measure::Fence.title());
    let mut bench = fence::Bench::new(fence).await?;
    bench.measure(pace.warm_up).await?;
    for _ in 0..results.settings.repetitions {
        results.begin_repetition();
        // On a worker of the runtime, where users' tasks are, and not on the thread that blocks on it.
        let task = tokio::spawn(async move { bench.measure(pace.processes).await.map(|readings| (bench, readings)) });
        let readings;
        (bench, readings) = task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        results.add(readings);
        progress.inc(1);
    }
    progress.finish_and_clear();
    results.finish();
    Ok(results)
}

async fn measure(args: &Args, place: &Place, client: Client, settings: Settings) -> Result<Results> {
    let pace = if args.quick { Pace::QUICK } else { Pace::FULL };
    let prefix = format!("tenure-bench/{:016x}", place::random());
    let bench = Bench { client, url: place.url().to_owned(), prefix, pace };
    let mut results = Results::new(&bench.client, settings).await?;

    let mut chosen = Vec::new();
    for measure in Measure::ALL {
        if measure == Measure::Fence || measure != Measure::Pair && !args.only.is_empty() && !args.only.contains(&measure) {
            continue;
        }
        match bench.refuses(measure) {
            Some(why) => results.skip(measure, &why),
            None => chosen.push(measure),
        }
    }
    let progress = progress_bar(args.json, u64::from(results.settings.repetitions) * chosen.len() as u64);
    progress.set_message("starting");
    progress.tick();
    let wanted = chosen.iter().map(|measure| measure.helpers()).max().unwrap_or(0);
    let mut helpers = Helpers::start(wanted, &bench.url)?;

    // What is slow only the first time (pages, statements, code, branch predictors) is no part of any repetition.
    solo::measure(&Bench { pace: Pace { tasks: pace.tasks / 4, ..pace }, ..bench.clone() }).await?;
    for repetition in 0..results.settings.repetitions {
        results.begin_repetition();
        for measure in &chosen {
            progress.set_message(measure.title());
            progress.tick();
            let readings = match measure {
                Measure::Pair => solo::measure(&bench).await?,
                Measure::Many => many::measure(&bench).await?,
                Measure::Mutex => contended::measure(&bench, Kind::Mutex).await?,
                Measure::Fair => contended::measure(&bench, Kind::FairMutex).await?,
                Measure::Handover => handover::between_two(&bench, &mut helpers).await?,
                Measure::Crowd => handover::in_a_crowd(&bench, &mut helpers).await?,
                // Both in one silence; a short run keeps it only once.
                Measure::Waiting | Measure::Holding if repetition > 0 && args.quick => Vec::new(),
                Measure::Waiting if chosen.contains(&Measure::Holding) => Vec::new(),
                Measure::Waiting | Measure::Holding => quiet::measure(&bench, &mut helpers, &chosen).await?,
                Measure::Recovery => recovery::measure(&bench, &mut helpers).await?,
                Measure::Fence => unreachable!("a fence is measured alone"),
            };
            results.add(readings);
            progress.inc(1);
        }
    }
    drop(helpers);
    progress.finish_and_clear();
    results.finish();
    Ok(results)
}

/// Runs a future on a runtime of its own, on a thread of its own, so that nothing the caller's runtime is or does is measured.
async fn on_own_runtime<T, F>(threads: usize, work: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let no_runtime = |error| failed("a runtime to measure on", error);
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build().map_err(no_runtime)?;
    let (send, done) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("tenure-bench".to_owned())
        .spawn(move || drop(send.send(runtime.block_on(work()))))
        .map_err(no_runtime)?;
    match done.await {
        Ok(answer) => Ok(answer),
        // Its sender is gone without a word: it panicked, and so shall we.
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread ends with an answer or a panic"),
        },
    }
}

/// Completes with an exit code when this process is asked to stop.
async fn interrupted() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
        return std::future::pending().await; // the signals keep their default then, which also stops us
    };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

/// A bar on a terminal; nothing where somebody reads the output by machine.
fn progress_bar(json: bool, steps: u64) -> ProgressBar {
    if json || !std::io::stdout().is_terminal() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("  {bar:32} {pos:>3}/{len} {eta:>4}  {msg}").expect("the template is right");
    ProgressBar::new(steps).with_style(style.progress_chars("━╸─"))
}

fn wants_colour(out: &std::io::Stdout) -> bool {
    out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// The error for what the operating system refused.
fn failed(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, format!("bench: {what} failed")).with_source(error)
}

/// The error for a figure that must not be shown, since the locks it would praise did not work.
fn broken(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Backend, format!("bench: the lock is BROKEN: {}", what.into()))
        .with_hint("No figure is shown for a lock that does not exclude. Please report this with the store and its version")
}

fn cannot_write(path: &std::path::Path, error: std::io::Error) -> Error {
    failed(&format!("writing {}", path.display()), error)
}
