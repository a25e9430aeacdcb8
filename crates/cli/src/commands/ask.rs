//! `tenure ask NAME --reason TEXT`

use std::time::Duration;

use serde::Serialize;
use tenure::{Client, Wait};

use super::wait;
use crate::duration;
use crate::failure::{Failure, NO};
use crate::print::{Printer, clean};

/// Ask whoever holds a lock to let go
///
/// The holders are told who asks and why: a program through the library, `tenure run` by a line on stderr. Letting go
/// remains their choice (`tenure run --on-ask SIGNAL` makes it the command's); `tenure break` leaves them none. Exits with 1 if the lock
/// has no holder, or with --wait if a holder that was asked still has it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock's name
    name: String,

    /// Why, in a few words
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Wait until the holders that were asked have released the lock, at most this long
    #[arg(short, long, visible_alias = "timeout", allow_hyphen_values = true, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            asked: usize,
            #[serde(skip_serializing_if = "Option::is_none")]
            released: Option<bool>,
        }
        let asked = client.ask(&self.name, &self.reason).await?;
        let left = match self.wait {
            Some(limit) if asked > 0 => {
                let view = client.view(&self.name).await?;
                let asked: Vec<_> = view.holders.iter().filter(|held| held.asked.is_some()).map(|held| held.claim).collect();
                wait::gone(client, &self.name, Wait::For(limit), |held| asked.contains(&held.claim)).await?
            }
            _ => None,
        };
        if printer.json {
            let released = self.wait.map(|_| left.is_none());
            printer.object(&Line { name: &self.name, asked, released })?;
        } else {
            let name = clean(&self.name);
            printer.line(match asked {
                0 => format!("nobody holds {name}"),
                1 => format!("asked the holder of {name}"),
                many => format!("asked the {many} holders of {name}"),
            })?;
            if let Some(left) = &left {
                printer.note(wait::still_held(left));
            }
        }
        Ok(if asked == 0 || left.is_some() { NO } else { 0 })
    }
}
