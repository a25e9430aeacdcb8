//! A command under a lock: what `run` and `elect` share.
//!
//! 1. `wait`: ask for the lock, and show why it takes so long; any signal gives up at once and leaves nothing in line.
//! 2. `child`: run the command, with the hold in its environment.
//! 3. `lease`: stop it before the hold can be anybody else's.
//! 4. Let go, wait until the store has confirmed it, and hand on the command's exit code.
//!
//! `keep` holds a lock in the background instead, for a script. `args` are the options the commands have, `lock` is any kind of lock as one type, `events` is what is said about it.

mod args;
mod events;
#[cfg(target_os = "linux")]
mod keep;
mod lease;
mod lock;
mod wait;

use std::ffi::OsString;
use std::time::Duration;

use tenure::{Client, ErrorKind, Guard, Instant, LockName, Wait};

pub(crate) use self::args::HoldArgs;
#[cfg(target_os = "linux")]
pub(crate) use self::keep::{KEEPER, Keeper};
pub(crate) use self::lock::{KindArgs, Shape};

use self::events::{Event, Teller};
use self::lease::Lease;
use self::lock::Lock;
use self::wait::Waited;
use crate::child::{self, Child, Ending, Line, OnLost, Order, Outcome, Signals};
use crate::failure::{Failure, LOST};
use crate::limits;
use crate::print::{Printer, wall_ms};
use crate::quit;
use crate::store::{Opened, Source, StoreArgs};

/// A command to run under a lock.
pub(crate) struct Job<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: Shape,
    pub(crate) hold: &'a HoldArgs,
    /// The program and its arguments.
    pub(crate) command: &'a [OsString],
}

impl Job<'_> {
    /// Does it all. Gives the exit code, except where the command's own end must be passed on in another way.
    pub(crate) async fn run(self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        // From here on no signal is missed: before the command starts it means "give up", afterwards it is the command's.
        let mut signals = Signals::new()?;
        limits::check(self.hold)?;
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
            End::Command(outcome) => child::leave(outcome),
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
        let name = LockName::new(self.name)?;
        let teller = Teller::new(name.clone(), printer, self.hold.quiet);
        let lock = Lock::new(client, &name, self.shape, self.hold, &self.hold.note_for(self.command)?)?;
        let waited = wait::wait(client, &lock, wait, signals, &teller).await;
        let guard = match waited {
            Ok(Waited::Held(guard)) => guard,
            Ok(Waited::Busy) => {
                let view = client.view(name.as_str()).await.ok();
                teller.tell(Event::Busy { wait_ms: self.hold.wait_ms(), view: view.as_ref() });
                return Ok(End::Code(self.hold.conflict_exit_code));
            }
            Ok(Waited::Quit(signal)) => return Ok(End::Command(quit::outcome(signal))),
            Err(error) => return Err(lock::explain(client, error).await),
        };
        let ended = self.supervise(&guard, client, source, signals, &teller).await;
        // The command and all it started are gone. Whatever went wrong, the lock goes too.
        let unconfirmed = "the store did not confirm the release; it frees the lock after its ttl";
        teller.tell(match tokio::time::timeout(PATIENCE, guard.release()).await {
            Ok(Ok(())) => Event::Released { error: None },
            Ok(Err(error)) if error.kind() == ErrorKind::Lost => Event::Lost,
            Ok(Err(error)) => Event::Released { error: Some(format!("{unconfirmed}: {error}")) },
            Err(_) => Event::Released { error: Some(unconfirmed.to_owned()) },
        });
        ended
    }

    /// Runs the command for as long as the guard may be trusted.
    async fn supervise(
        &self,
        guard: &Guard,
        client: &Client,
        source: &Source,
        signals: &mut Signals,
        teller: &Teller<'_>,
    ) -> Result<End, Failure> {
        let policy = OnLost::from(self.hold.on_lost);
        let lease = Lease::new(guard, policy, self.hold, client.abilities().shortest_ttl);
        let (program, args) = self.command.split_first().ok_or_else(|| Failure::new("there is no command to run"))?;
        let env = [environment(guard, source), self.hold.keys.environment()?].concat();
        let order = Order { program: program.clone(), args: args.to_vec(), env, grace: self.hold.grace };
        let child = Child::start(&order)?;
        let line = if policy == OnLost::Ignore { None } else { child.line()? };
        teller.tell(Event::started(program));
        let stop = async {
            let stop = lease.end().await;
            teller.tell(Event::stopping(stop.policy, guard));
            stop
        };
        let outcome = tokio::select! {
            biased;
            outcome = child.supervise(signals, stop) => outcome?,
            never = tell_all(guard, teller) => match never {},
            never = tell_the_warden(guard, line) => match never {},
        };
        let by_warden = policy != OnLost::Ignore && outcome.ending == KILLED && guard.check().is_err();
        let stopped_for_loss = outcome.stopped_for_loss || by_warden;
        teller.tell(Event::exited(outcome.ending, stopped_for_loss));
        Ok(if stopped_for_loss { End::Code(LOST) } else { End::Command(outcome) })
    }
}

/// How `tenure` itself is to end.
enum End {
    Code(u8),
    /// As the command did.
    Command(Outcome),
}

/// Tells everything that happens to the hold, for ever.
async fn tell_all(guard: &Guard, teller: &Teller<'_>) -> std::convert::Infallible {
    let mut events = guard.events();
    while let Some(event) = events.next().await {
        teller.tell_of(&event, guard);
    }
    std::future::pending().await
}

/// Tells the warden until when the hold is safe, often enough that only a stopped or starved `tenure` falls behind.
async fn tell_the_warden(guard: &Guard, line: Option<Line>) -> std::convert::Infallible {
    let Some(mut line) = line else { return std::future::pending().await };
    loop {
        let until = guard.valid_until();
        line.safe_until(until);
        tokio::time::sleep((until.since(Instant::now()) / 8).max(Duration::from_millis(5))).await;
    }
}

/// How a command ends that the warden killed.
const KILLED: Ending = Ending::Signaled(9);

/// What the command is told about its hold.
fn environment(guard: &Guard, source: &Source) -> Vec<(OsString, OsString)> {
    let valid_until = wall_ms() + guard.remaining().as_millis() as u64;
    let mut environment = source.environment();
    for (name, value) in [
        ("TENURE_NAME", guard.name().to_string()),
        ("TENURE_TOKEN", guard.token().to_string()),
        ("TENURE_SEQUENCER", guard.sequencer().to_string()),
        ("TENURE_VALID_UNTIL", valid_until.to_string()),
    ] {
        environment.push((name.into(), value.into()));
    }
    environment
}

/// Waits until nothing of ours is left in the store. Bounded: if the store is gone, the ttl does the rest.
pub(crate) async fn close(client: &Client) {
    let _ = tokio::time::timeout(PATIENCE, client.close()).await;
}

/// How long a store may take to confirm an end before we leave it to the ttl.
const PATIENCE: Duration = Duration::from_secs(5);
