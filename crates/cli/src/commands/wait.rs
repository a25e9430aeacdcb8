//! `tenure wait NAME`, and waiting until holders are gone for every command that does.

use std::time::Duration;

use serde::Serialize;
use tenure::{Client, Result, View, Wait};

use crate::duration;
use crate::failure::Failure;
use crate::print::{Printer, clean, holder};

/// Wait until a lock has no holder, without taking it
///
/// Somebody else may get the lock at any time after that: to do something while the name is free, use `tenure run`. A name
/// that is kept closed by --min-hold has no holder.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// The lock's name
    name: String,

    /// Do not wait: if there is a holder, exit with the conflict code
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,

    /// Wait at most this long, then exit with the conflict code [default: for ever]
    #[arg(short, long, visible_alias = "timeout", allow_hyphen_values = true, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// The exit code when there is still a holder
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    conflict_exit_code: u8,

    /// Say nothing, only errors
    #[arg(short, long)]
    quiet: bool,
}

impl Args {
    /// How long to wait, connecting included.
    pub(crate) fn limit(&self) -> Wait {
        match (self.nonblock, self.wait) {
            (true, _) | (_, Some(Duration::ZERO)) => Wait::No,
            (false, Some(wait)) => Wait::For(wait),
            (false, None) => Wait::Forever,
        }
    }

    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            held: bool,
        }
        let left = gone(client, &self.name, self.limit(), |_| true).await?;
        if printer.json {
            printer.object(&Line { name: &self.name, held: left.is_some() })?;
        } else if let Some(left) = left.as_ref().filter(|_| !self.quiet) {
            printer.note(still_held(left));
        }
        Ok(if left.is_some() { self.conflict_exit_code } else { 0 })
    }
}

/// Waits until the holders of a name are gone that are meant; if they are not gone in time, the view in which they still hold.
///
/// # Cancel safety
/// Only reads.
pub(super) async fn gone(
    client: &Client,
    name: &str,
    limit: Wait,
    is_meant: impl Fn(&tenure::Holder) -> bool,
) -> Result<Option<View>> {
    let mut watch = client.watch(name)?;
    let mut view = watch.next().await?;
    let changes = async {
        while view.holders.iter().any(|held| !held.closing && is_meant(held)) {
            if limit == Wait::No {
                return Ok(false);
            }
            view = watch.next().await?;
        }
        Ok::<_, tenure::Error>(true)
    };
    let is_gone = match limit {
        Wait::For(limit) => tokio::time::timeout(limit, changes).await.unwrap_or(Ok(false))?,
        Wait::No | Wait::Forever => changes.await?,
    };
    Ok(if is_gone { None } else { Some(view) })
}

/// Who holds it, in a line.
pub(super) fn still_held(view: &View) -> String {
    let who: Vec<String> = view.holders.iter().filter(|held| !held.closing).map(holder).collect();
    format!("{} is still held by {}", clean(view.name.as_str()), who.join(", "))
}

const AFTER: &str = "\
Exit codes: 0 there is no holder; 1 (or -E) there still is one; 125 tenure failed;
128+n signal n came while waiting.

Examples:
  tenure wait migration && ./start-server
  tenure wait -w 10m backup || echo 'the backup still runs'";
