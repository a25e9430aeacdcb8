//! `tenure ask NAME --reason TEXT`

use serde::Serialize;
use tenure::Client;

use crate::failure::{Failure, NO};
use crate::print::{Printer, clean};

/// Ask whoever holds a lock to let go
///
/// The holders are told who asks and why: a program through the library, `tenure run` by a line on stderr. Letting go
/// remains their choice; `tenure break` leaves them none. Exits with 1 if nobody holds the lock.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock's name
    name: String,

    /// Why, in a few words
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            asked: usize,
        }
        let asked = client.ask(&self.name, &self.reason).await?;
        if printer.json {
            printer.object(&Line { name: &self.name, asked })?;
        } else {
            let name = clean(&self.name);
            printer.line(match asked {
                0 => format!("nobody holds {name}"),
                1 => format!("asked the holder of {name}"),
                many => format!("asked the {many} holders of {name}"),
            })?;
        }
        Ok(if asked == 0 { NO } else { 0 })
    }
}
