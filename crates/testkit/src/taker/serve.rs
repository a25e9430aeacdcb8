//! The taker's side: takes orders until there are none.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::{Backend, Client, ErrorKind, Instant, Result};
use tokio::task::JoinHandle;

use super::{MARK, Order, Reply, Slot, TAKER, Wanted};
use crate::attack;
use crate::fenced::FencedFile;
use crate::harness::client_of;
use crate::history::Recorder;
use crate::lock::Options as _;
use crate::scene::ON_ITS_WAY;
use crate::stress::{self, Plan};
use crate::{Held, Lock};

/// What the `taker` test does: nothing, unless it was started to be one.
pub(crate) fn serve(open: impl Fn(&str) -> BoxFuture<'_, Result<Arc<dyn Backend>>>) {
    serve_client(async |url| client_of(open(url).await.expect("the store can be opened")));
}

/// The same for whoever makes whole clients.
pub(crate) fn serve_client(connect: impl AsyncFn(&str) -> Client) {
    let Ok(url) = std::env::var(TAKER) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built");
    let client = runtime.block_on(connect(&url));
    let mut taker = Serving { client, held: HashMap::new(), asking: HashMap::new(), passing: HashMap::new() };
    reply(&Reply::Ready);
    for line in std::io::stdin().lock().lines() {
        let Ok(order) = line.map_err(|_| ()).and_then(|line| serde_json::from_str(&line).map_err(|_| ())) else { break };
        if matches!(order, Order::Exit) {
            break;
        }
        let answer = runtime.block_on(taker.obey(order));
        reply(&answer.unwrap_or_else(|error| Reply::Error(error.to_string())));
    }
    // As a program that just ends: no destructors, no good-byes.
    std::process::exit(0);
}

fn reply(reply: &Reply) {
    let line = format!("{MARK}{}\n", serde_json::to_string(reply).expect("replies are plain"));
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("somebody listens");
}

struct Serving {
    client: Client,
    held: HashMap<Slot, Held>,
    asking: HashMap<Slot, JoinHandle<Result<Held>>>,
    passing: HashMap<Slot, JoinHandle<Result<Reply>>>,
}

impl Serving {
    async fn obey(&mut self, order: Order) -> Result<Reply> {
        Ok(match order {
            Order::Lock(slot, wanted) => {
                let held = self.make(&wanted)?.lock().await?;
                self.keep(slot, held)
            }
            Order::Try(slot, wanted) => match self.make(&wanted)?.try_lock().await? {
                Some(held) => self.keep(slot, held),
                None => Reply::Busy,
            },
            Order::Begin(slot, wanted) => {
                let lock = self.make(&wanted)?;
                self.asking.insert(slot, tokio::spawn(async move { lock.lock().await }));
                Reply::Done
            }
            Order::Await(slot) => {
                let asking = self.asking.remove(&slot).expect("begun before");
                let held = asking.await.expect("it does not panic")?;
                self.keep(slot, held)
            }
            Order::Pass(slot, wanted) => {
                let lock = self.make(&wanted)?;
                let pass = async move {
                    let held = lock.lock().await?;
                    let granted = granted(&held);
                    held.release().await.map(|()| granted)
                };
                self.passing.insert(slot, tokio::spawn(pass));
                Reply::Done
            }
            Order::Passed(slot) => {
                let passing = self.passing.remove(&slot).expect("begun before");
                passing.await.expect("it does not panic")?
            }
            Order::Permits(slot, wanted, take, of) => {
                let semaphore = self.client.semaphore(&wanted.name, of)?.ttl(wanted.ttl)?;
                let guard = semaphore.acquire(take).await?;
                self.keep(slot, Held::One(guard))
            }
            Order::Check(slot) => match self.held[&slot].check() {
                Ok(()) => Reply::Held,
                Err(_) => Reply::Lost,
            },
            Order::Release(slot) => match self.held.remove(&slot).expect("held").release().await {
                Ok(()) => Reply::Done,
                Err(error) if error.kind() == ErrorKind::Lost => Reply::Lost,
                Err(error) => return Err(error),
            },
            Order::Write(slot, file) => {
                let token = self.held[&slot].token().get();
                let accepted = FencedFile::at(file).write(token).expect("the file can be written");
                if accepted { Reply::Accepted } else { Reply::Refused }
            }
            Order::Count(wanted, file, rounds) => {
                let lock = self.make(&wanted)?;
                for _ in 0..rounds {
                    let held = lock.lock().await?;
                    add_one(&file);
                    held.release().await?;
                }
                self.was_told().await
            }
            Order::Stress { wanted, tasks, rounds, history } => {
                let recorder = Recorder::to_file(history).expect("the history can be written");
                let plan = Plan { shape: wanted.shape, name: wanted.name, tasks, rounds, ttl: wanted.ttl };
                stress::run(std::slice::from_ref(&self.client), &recorder, &plan).await;
                self.was_told().await
            }
            Order::Attack(plans, dir) => {
                attack::take_part(&self.client, &plans, &dir).await?;
                Reply::Done
            }
            Order::Exit => Reply::Done,
        })
    }

    fn make(&self, wanted: &Wanted) -> Result<Lock> {
        Ok(wanted.shape.make(&self.client, &wanted.name)?.ttl(wanted.ttl)?.keep(wanted.keep))
    }

    /// Every grant so far came by message, or its message is about to.
    async fn was_told(&self) -> Reply {
        let told = async {
            while self.client.grants_by_poll() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        match tokio::time::timeout(ON_ITS_WAY, told).await {
            Ok(()) => Reply::Done,
            Err(_) => Reply::Error(format!("{} grants were found by a look", self.client.grants_by_poll())),
        }
    }

    fn keep(&mut self, slot: Slot, held: Held) -> Reply {
        let granted = granted(&held);
        self.held.insert(slot, held);
        granted
    }
}

fn granted(held: &Held) -> Reply {
    Reply::Granted { token: held.token().get(), at: Instant::now().as_nanos() }
}

/// Reads a number and writes one more, with nothing but the lock to make that safe.
fn add_one(file: &Path) {
    let count: u64 = std::fs::read_to_string(file).expect("the counter can be read").trim().parse().expect("a number");
    std::fs::write(file, (count + 1).to_string()).expect("the counter can be written");
}
