//! A command under a lock: what `run` and `elect` share.
//!
//! 1. `acquire`: ask for the locks; `wait`: show why one takes so long; any signal gives up at once and leaves nothing in line.
//! 2. `child`: run the command, with the hold in its environment.
//! 3. `lease`: stop it before the hold can be anybody else's.
//! 4. Let go, wait until the store has confirmed it, and hand on the command's exit code.
//!
//! `holds` are all the locks that one command holds, `permit` the numbers of its permits, `once` when it was run last. `nested`
//! finds out that a wait would never end. `keep` holds a lock in the background instead, for a script. `args` are the options the
//! commands have, `lock` is any kind of lock as one type, `events` is what is said about it.

mod acquire;
mod args;
mod events;
mod holds;
#[cfg(target_os = "linux")]
mod keep;
mod lease;
mod lock;
mod nested;
mod once;
mod permit;
mod wait;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use rustix::process::Pid;
use tenure::{Client, Instant, LockName, Wait};

pub(crate) use self::args::{CommandArgs, HoldArgs};
#[cfg(target_os = "linux")]
pub(crate) use self::keep::{KEEPER, Keeper};
pub(crate) use self::lock::{KindArgs, Shape};
pub(crate) use self::once::LastRun;

use self::acquire::Acquired;
use self::args::Ends;
use self::events::{Event, Teller};
use self::holds::{Hold, Holds, first};
use self::lease::{Cause, Lease};
use self::once::{OncePer, Turn};
use crate::child::{self, Child, Ending, Line, OnLost, Order, Outcome, Signals, Start, signal_group};
use crate::failure::{Failure, LOST};
use crate::limits;
use crate::print::{self, Printer, wall_ms};
use crate::quit;
use crate::store::{Opened, Source, StoreArgs};

/// A command to run under a lock.
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    /// Names to hold as well.
    pub(crate) and: &'a [String],
    pub(crate) shape: Shape,
    pub(crate) hold: &'a HoldArgs,
    pub(crate) runs: &'a CommandArgs,
    /// Not again within this time.
    pub(crate) once_per: Option<Duration>,
    /// The program and its arguments.
    pub(crate) command: &'a [OsString],
}

impl Job<'_> {
    /// Does it all. Gives the exit code, except where the command's own end must be passed on in another way.
    pub(crate) async fn run(self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        // From here on no signal is missed: before the command starts it means "give up", afterwards it is the command's.
        let mut signals = Signals::new()?;
        limits::check(self.hold)?;
        if let Some(events) = &self.hold.events {
            print::events_to(events.try_clone()?);
        }
        let keys = self.hold.keys.read()?;
        let (source, mut client, wait) =
            match store.open(self.hold.patience(), self.hold.quiet, &mut signals, printer).await? {
                Opened::Client(source, client, wait) => (source, client, wait),
                Opened::Quit(signal) => child::leave(quit::outcome(signal)),
            };
        if let Some(keys) = keys {
            client = client.signed_with(keys);
        }
        let code = self.run_on(&client, &source, wait, &mut signals, printer).await;
        close(&client).await;
        match code? {
            End::Code(code) => Ok(code),
            End::Command(outcome) | End::NotStarted(outcome) => child::leave(outcome),
        }
    }

    async fn run_on(
        &self,
        client: &Client,
        source: &Source,
        wait: Wait,
        signals: &mut Signals,
        printer: &Printer,
    ) -> Result<End, Failure> {
        let once = self.once_per.map(|period| OncePer::new(client, &LockName::new(self.name)?, period)).transpose()?;
        let holds = match self.acquire(client, wait, signals, printer).await? {
            Acquired::All(holds) => holds,
            Acquired::Not(end) => return Ok(end),
        };
        let teller = Teller::new(LockName::new(self.name)?, printer, self.hold.quiet);
        let run = match &once {
            None => None,
            Some(once) => match once.turn().await {
                Ok(Turn::Due(run)) => Some((once, run)),
                due => {
                    holds.release(false).await;
                    if let Turn::Ran(last_run, left) = due? {
                        teller.tell(Event::Skipped { last_run, left });
                    }
                    return Ok(End::Code(0));
                }
            },
        };
        let ended = self.supervise(&holds, source, signals, &teller).await;
        let outcome = if let Ok(End::Command(outcome)) = &ended { Some(outcome) } else { None };
        if let (Some((once, run)), Some(outcome)) = (run, outcome)
            && let Err(error) = once.record(run, outcome.code(), &holds).await
        {
            teller.tell(Event::Unrecorded { error });
        }
        let has_succeeded = outcome.is_some_and(|outcome| outcome.code() == 0);
        // The command and all it started are gone. Whatever went wrong, the locks go too.
        holds.release(has_succeeded || self.runs.min_hold_on == Ends::Any).await;
        ended
    }

    /// Runs the command for as long as all of the holds may be trusted.
    async fn supervise(
        &self,
        holds: &Holds<'_>,
        source: &Source,
        signals: &mut Signals,
        teller: &Teller<'_>,
    ) -> Result<End, Failure> {
        let policy = OnLost::from(self.hold.on_lost);
        let leases: Vec<_> = holds.0.iter().map(|hold| (Lease::new(&hold.guard, self.hold), hold)).collect();
        let (program, args) = self.command.split_first().ok_or_else(|| Failure::new("there is no command to run"))?;
        let env = [self.environment(holds, source)?, self.hold.keys.environment()?].concat();
        let (args, grace, leftovers) = (args.to_vec(), self.hold.grace, self.runs.leftovers);
        let order = Order { program: program.clone(), args, env, grace, leftovers };
        // What was said so far comes before the command's own output.
        print::flush(SOON);
        let (child, mut start) = Child::start(&order)?;
        let line = if policy == OnLost::Ignore { None } else { Some(child.line()) };
        let stop = async {
            let ((stop, cause), hold) = first(leases.iter().map(async |(lease, hold)| (lease.end().await, hold))).await;
            if cause == Cause::Lost {
                hold.teller.tell(Event::lost(&hold.guard));
            }
            hold.teller.tell(Event::stopping(stop.policy, cause, &hold.guard));
            stop
        };
        let group = child.group();
        let leftovers = |ending, pids: &[Pid]| {
            teller.tell(Event::Leftovers { policy: self.runs.leftovers, ending, pids: pids.to_vec() })
        };
        let mut is_started = None;
        let outcome = tokio::select! {
            biased;
            outcome = child.supervise(signals, stop, leftovers) => outcome?,
            never = async {
                is_started = Some(tell_start(&mut start, program, teller).await);
                std::future::pending::<Infallible>().await
            } => match never {},
            never = first(holds.0.iter().map(|hold| self.tell_all(hold, group))) => match never {},
            never = tell_the_watchdog(holds, line) => match never {},
        };
        let is_started = match is_started {
            Some(is_started) => is_started,
            None => tell_start(&mut start, program, teller).await,
        };
        let by_watchdog = policy != OnLost::Ignore && outcome.ending == KILLED && holds.check().is_err();
        let stopped_for_loss = outcome.stopped_for_loss || by_watchdog;
        if is_started {
            teller.tell(Event::exited(outcome.ending, stopped_for_loss));
        }
        Ok(match (stopped_for_loss, is_started) {
            (true, _) => End::Code(LOST),
            (false, true) => End::Command(outcome),
            (false, false) => End::NotStarted(outcome),
        })
    }

    /// Tells everything that happens to a hold, for ever; and hands on what an operator asks.
    async fn tell_all(&self, hold: &Hold<'_>, group: Pid) -> Infallible {
        let mut events = hold.guard.events();
        while let Some(event) = events.next().await {
            if let (tenure::Event::Asked(_), Some(signal)) = (&event, self.runs.on_ask) {
                signal_group(group, signal);
            }
            // A number is late when its permit is, which says so.
            if hold.number.is_none() || !matches!(event, tenure::Event::Jeopardy { .. } | tenure::Event::Safe) {
                hold.teller.tell_of(&event, &hold.guard);
            }
        }
        std::future::pending().await
    }

    /// What the command is told about what it holds.
    fn environment(&self, holds: &Holds<'_>, source: &Source) -> Result<Vec<(OsString, OsString)>, Failure> {
        let valid_until = wall_ms() + holds.valid_until().since(Instant::now()).as_millis() as u64;
        let mut environment = source.environment();
        let mut set = |variable: String, value: String| environment.push((variable.into(), value.into()));
        set("TENURE_VALID_UNTIL".to_owned(), valid_until.to_string());
        for (index, name) in self.names().enumerate() {
            let suffix = if index == 0 { String::new() } else { format!("_{}", index + 1) };
            let Some(guard) = holds.of(&LockName::new(name)?) else { continue };
            set(format!("TENURE_NAME{suffix}"), guard.name().to_string());
            set(format!("TENURE_TOKEN{suffix}"), guard.token().to_string());
            set(format!("TENURE_SEQUENCER{suffix}"), guard.sequencer().to_string());
        }
        let numbers = holds.numbers();
        if !numbers.is_empty() {
            set("TENURE_PERMIT".to_owned(), numbers.join(","));
        }
        Ok(environment)
    }
}

/// How `tenure` itself is to end.
enum End {
    Code(u8),
    /// As the command did.
    Command(Outcome),
    /// As a shell does that cannot start a command.
    NotStarted(Outcome),
}

/// Tells that the command has started, or why it has not. Says whether it has.
async fn tell_start(start: &mut Start, program: &OsStr, teller: &Teller<'_>) -> bool {
    let outcome = start.outcome().await;
    let is_started = !matches!(outcome, Some(Err(_)));
    match outcome {
        Some(Ok(())) => teller.tell(Event::Started { program }),
        Some(Err(failed)) => teller.tell(Event::NotStarted { program, failed }),
        None => {}
    }
    is_started
}

/// Tells the watchdog until when the holds are safe, often enough that only a stopped or starved `tenure` falls behind.
async fn tell_the_watchdog(holds: &Holds<'_>, line: Option<Line>) -> Infallible {
    let Some(mut line) = line else { return std::future::pending().await };
    loop {
        let until = holds.valid_until();
        line.safe_until(until);
        tokio::time::sleep((until.since(Instant::now()) / 8).max(Duration::from_millis(5))).await;
    }
}

/// How a command ends that the watchdog killed.
const KILLED: Ending = Ending::Signaled(9);

/// Waits until nothing of ours is left in the store. Bounded: if the store is gone, the ttl does the rest.
pub(crate) async fn close(client: &Client) {
    let _ = tokio::time::timeout(PATIENCE, client.close()).await;
}

/// How long a reader may keep the command from its start.
const SOON: Duration = Duration::from_millis(200);

/// How long a store may take to confirm an end before we leave it to the ttl.
const PATIENCE: Duration = Duration::from_secs(5);
