//! A nightly job that must not run twice, although cron starts it on every host.
//!
//! Shows `try_lock` (somebody else's turn is no error), `min_hold` (a host whose clock is late must not run it again),
//! `run` (work stops where it stands when the lock is lost), and what to do then.

use std::future::pending;
use std::time::Duration;

use tenure::{Client, Result, Token};
use tenure_examples::Store;
use tokio::sync::Notify;

/// What cron starts on every host.
async fn nightly(host: &str, client: &Client, job: &str, work: impl AsyncFnOnce(Token)) -> Result<()> {
    // Clocks differ: whoever starts within an hour means the same night, even if the job took a second.
    let lock = client.mutex(job)?.min_hold(Duration::from_secs(60 * 60))?.note(host)?;
    let Some(guard) = lock.try_lock().await? else {
        println!("{host}: {job} is somebody else's tonight");
        return Ok(());
    };
    match guard.run(work(guard.token())).await {
        Ok(()) => {
            println!("{host}: {job} done");
            guard.release().await
        }
        // Another host may be at it by now. Do not start again and do not tidy up: tell a person, and let the next run,
        // with its higher token, find what is half done.
        Err(lost) => {
            println!("{host}: {job} stopped half-way: {lost}");
            Ok(())
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = Store::from_args();
    let (a, b, c) = (store.connect().await?, store.connect().await?, store.connect().await?);

    // Two hosts start it in the same second, a third one's clock is behind. One of them runs it.
    let report = async |token| println!("writing the report, fenced by {token}");
    tokio::try_join!(nightly("host A", &a, "report", report), nightly("host B", &b, "report", report))?;
    nightly("host C", &c, "report", report).await?;

    // A lock can be lost: the network, a stopped process, or, as here, an operator who ends it by force.
    let started = Notify::new();
    let backup = async |_| {
        started.notify_one();
        pending().await // a long job
    };
    let operator = async {
        started.notified().await;
        b.break_holds("backup", None).await
    };
    tokio::try_join!(nightly("host A", &a, "backup", backup), operator)?;
    Ok(())
}
