//! The second process: this program started again by the bench, told what to do over its standard input.
//!
//! It ends when its standard input does, wherever it stands: a bench that was killed leaves nobody behind.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard, Instant, Result};
use tokio::sync::mpsc;

use super::orders::{Answer, Order, Round};
use super::{failed, on_own_runtime};

/// Follows the bench's orders until they end.
///
/// # Cancel safety
/// Dropped before it completes, the work goes on by itself until the orders end.
pub(crate) async fn child() -> Result<ExitCode> {
    // One thread: a process that waits for a lock is measured here, not a runtime with a thread a core.
    on_own_runtime(1, || async {
        let mut orders = orders()?;
        let mut worker = Worker::default();
        while let Some(order) = orders.recv().await {
            let answer = worker.follow(order).await.unwrap_or_else(|error| Answer::Failed(error.to_string()));
            say(&answer)?;
        }
        Ok(ExitCode::SUCCESS)
    })
    .await?
}

/// Reads orders on a thread, so that the end of them is noticed also while this process waits for a lock.
fn orders() -> Result<mpsc::UnboundedReceiver<Order>> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("tenure-bench-ear".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(|line| line.ok()) {
                match serde_json::from_str(&line) {
                    Ok(order) => drop(sender.send(order)),
                    Err(error) => drop(say(&Answer::Failed(format!("not an order: {error}")))),
                }
            }
            std::process::exit(0);
        })
        .map_err(|error| failed("starting a thread", error))?;
    Ok(orders)
}

fn say(answer: &Answer) -> Result<()> {
    let line = serde_json::to_string(answer).expect("answers are plain data") + "\n";
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| failed("answering", error))
}

/// A helper's state between orders.
#[derive(Default)]
struct Worker {
    client: Option<Client>,
    held: Option<Guard>,
}

impl Worker {
    async fn follow(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Open { store } => {
                self.client = Some(tenure::connect(store).await?);
                Ok(Answer::Done)
            }
            Order::Contend { name, hold_ns, from_ns, until_ns } => {
                let (from, until) = (Instant::from_nanos(from_ns), Instant::from_nanos(until_ns));
                contend(self.client()?, &name, Duration::from_nanos(hold_ns), from, until).await
            }
            Order::Wait { name } => {
                let guard = self.client()?.mutex(name)?.lock().await?;
                let at_ns = Instant::now().as_nanos();
                guard.release().await?;
                Ok(Answer::Got { at_ns })
            }
            Order::Hold { name, ttl_ms } => {
                let mutex = self.client()?.mutex(name)?.ttl(Duration::from_millis(ttl_ms))?;
                self.held = Some(mutex.lock().await?);
                Ok(Answer::Got { at_ns: Instant::now().as_nanos() })
            }
            Order::Close => {
                if let Some(guard) = self.held.take() {
                    guard.release().await?;
                }
                if let Some(client) = self.client.take() {
                    client.close().await?;
                }
                Ok(Answer::Done)
            }
        }
    }

    fn client(&self) -> Result<&Client> {
        self.client.as_ref().ok_or_else(|| Error::new(ErrorKind::BadOption, "told to lock before it was told where"))
    }
}

async fn contend(client: &Client, name: &str, hold: Duration, from: Instant, until: Instant) -> Result<Answer> {
    let mutex = client.mutex(name)?;
    let mut rounds = Vec::new();
    tokio::time::sleep(from.since(Instant::now())).await;
    loop {
        let asked = Instant::now();
        if asked >= until {
            return Ok(Answer::Rounds(rounds));
        }
        let guard = mutex.lock().await?;
        let got = Instant::now();
        // Whoever is still in line at the end passes it on at once, so that the end does not take a hold for each of them.
        if got < until {
            tokio::time::sleep(hold).await;
        }
        let token = guard.token().get();
        let released = Instant::now();
        guard.release().await?;
        let [asked, got, released] = [asked, got, released].map(Instant::as_nanos);
        rounds.push(Round { token, asked, got, released });
    }
}
