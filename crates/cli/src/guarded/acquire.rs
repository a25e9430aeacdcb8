//! Acquires everything that a command is to hold, or nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::{Client, Instant, LockName, Note, Wait};

use super::events::{Event, Teller};
use super::holds::{Hold, Holds};
use super::lock::{self, Lock, Shape};
use super::permit::Numbers;
use super::wait::{self, Waited};
use super::{End, Job};
use crate::child::Signals;
use crate::failure::Failure;
use crate::print::Printer;
use crate::quit;

/// What came of asking for everything.
pub(super) enum Acquired<'a> {
    All(Holds<'a>),
    Not(End),
}

impl Job<'_> {
    /// Acquires every name, in one order for all commands. Waiting ends for all of them together.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and releases what was acquired.
    pub(super) async fn acquire<'a>(
        &self,
        client: &Client,
        patience: Wait,
        signals: &mut Signals,
        printer: &'a Printer,
    ) -> Result<Acquired<'a>, Failure> {
        let names: BTreeSet<LockName> = self.names().map(LockName::new).collect::<tenure::Result<_>>()?;
        let request = Request { job: self, client, note: &self.hold.note_for(self.command)?, printer };
        let deadline = patience.deadline(Instant::now());
        loop {
            let mut holds = Holds::default();
            for name in &names {
                match request.acquire(name, patience, deadline, signals).await {
                    Ok(Acquired::All(more)) => holds.0.extend(more.0),
                    not => {
                        holds.release(false).await;
                        return not;
                    }
                }
            }
            // Waiting for the last may have outlasted the first.
            if holds.0.len() == 1 || holds.check().is_ok() {
                return Ok(Acquired::All(holds));
            }
            holds.release(false).await;
        }
    }

    /// The names, as they stand on the command line.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name).chain(self.and.iter().map(String::as_str))
    }
}

/// How each name is asked for.
struct Request<'r, 'a> {
    job: &'r Job<'r>,
    client: &'r Client,
    note: &'r Note,
    printer: &'a Printer,
}

impl<'a> Request<'_, 'a> {
    /// Acquires one name, and the numbers of its permits.
    async fn acquire(
        &self,
        name: &LockName,
        patience: Wait,
        deadline: Instant,
        signals: &mut Signals,
    ) -> Result<Acquired<'a>, Failure> {
        let lock = Lock::new(self.client, name, self.job.shape, self.job.hold, self.note)?;
        let teller = self.teller(name);
        let left = patience.left(deadline, Instant::now());
        let holds = match wait::wait(self.client, &lock, left, self.job.hold.ttl(), signals, &teller).await {
            Ok(Waited::Held(guard)) => Holds(vec![Hold { guard, teller, number: None }]),
            Ok(Waited::Busy) => return Ok(self.busy(name).await),
            Ok(Waited::Nested(outer)) => return Err(wait::held_by_outer(name, outer)),
            Ok(Waited::Quit(signal)) => return Ok(Acquired::Not(End::Command(quit::outcome(signal)))),
            Err(error) => return Err(lock::explain(self.client, error).await),
        };
        match self.job.shape {
            Shape::Permits { take, of } => self.number(holds, name, (take, of), (patience, deadline), signals).await,
            _ => Ok(Acquired::All(holds)),
        }
    }

    /// Acquires the numbers of permits that are held.
    async fn number(
        &self,
        mut holds: Holds<'a>,
        name: &LockName,
        (take, of): (u32, u32),
        (patience, deadline): (Wait, Instant),
        signals: &mut Signals,
    ) -> Result<Acquired<'a>, Failure> {
        let numbers = Numbers { client: self.client, name, hold: self.job.hold, note: self.note };
        let numbered = tokio::select! {
            biased;
            signal = signals.quit() => Ok(Err(signal)),
            numbered = numbers.acquire(take, of, patience, deadline) => numbered.map(Ok),
        };
        if let Ok(Ok(Some(numbered))) = numbered {
            holds.0.extend(numbered.into_iter().map(|(number, guard)| {
                let teller = self.teller(guard.name());
                teller.tell(Event::held(&guard, Duration::ZERO));
                Hold { guard, teller, number: Some(number) }
            }));
            return Ok(Acquired::All(holds));
        }
        holds.release(false).await;
        match numbered {
            Ok(Err(signal)) => Ok(Acquired::Not(End::Command(quit::outcome(signal)))),
            Ok(Ok(_)) => Ok(self.busy(name).await),
            Err(error) => Err(lock::explain(self.client, error).await),
        }
    }

    /// It was not free, or not in time.
    async fn busy(&self, name: &LockName) -> Acquired<'a> {
        let view = self.client.view(name.as_str()).await.ok();
        self.teller(name).tell(Event::Busy { wait_ms: self.job.hold.wait_ms(), view: view.as_ref() });
        Acquired::Not(End::Code(self.job.hold.conflict_exit_code))
    }

    fn teller(&self, name: &LockName) -> Teller<'a> {
        Teller::new(name.clone(), self.printer, self.job.hold.quiet)
    }
}
