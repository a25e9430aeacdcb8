//! A late write, made and refused: `cargo run -p tenure-examples --bin late-writer`.
//!
//! Two worker processes take turns under one lock and write to a small HTTP store. The first one is stopped past its lease, between
//! the moment it has looked whether it still holds the lock and the write that follows. The second one takes over and writes.
//! Then the first one goes on, and writes. Without a fence the work of the second is overwritten; with one, the late write is refused.
//!
//! - `conductor`: who does what when, and what came of it; `worker`: the program that is stopped
//! - `store`: the HTTP store, with and without the fence
//! - `history`: what happened; `picture`: drawn from it
//!
//! `--store URL` is where the lock is (a temporary SQLite file if nothing is said; memory does not reach across processes), `--svg FILE`
//! where the picture goes, and with `--break` an operator breaks the lock of the stopped worker instead of waiting for the lease's end.

mod conductor;
mod history;
mod picture;
mod store;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use conductor::{Scene, Takeover};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1).peekable();
    if args.peek().is_some_and(|first| first == "worker") {
        worker::work().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let dir = tempfile::tempdir()?;
    let mut scene = Scene::new(dir.path());
    let mut svg = None;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--store" => scene.url = args.next().ok_or("--store needs a URL")?,
            "--svg" => svg = Some(PathBuf::from(args.next().ok_or("--svg needs a file")?)),
            "--break" => scene.takeover = Takeover::Break,
            _ => return Err(format!("{arg}? usage: late-writer [--store URL] [--svg FILE] [--break]").into()),
        }
    }
    if scene.url.starts_with("memory") {
        return Err("the workers are processes, and locks in memory do not reach from one to the other".into());
    }
    let both = async { Result::<_>::Ok((scene.run(false).await?, scene.run(true).await?)) };
    let (overwritten, refused) = tokio::time::timeout(Duration::from_secs(120), both).await.map_err(|_| "it hangs")??;
    for run in [&overwritten, &refused] {
        println!("{run}");
    }
    if let Some(svg) = svg {
        std::fs::write(&svg, picture::svg(&[&overwritten, &refused]))?;
    }
    let as_promised = overwritten.is_overwritten() && !refused.is_overwritten();
    println!(
        "{}",
        if as_promised { "The lock could not prevent it. The fence did." } else { "That is not what was expected." }
    );
    Ok(if as_promised { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
