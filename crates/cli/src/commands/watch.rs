//! `tenure watch NAME`

use serde::Serialize;
use tenure::{Client, View};

use crate::failure::Failure;
use crate::print::{BOLD, DIM, GOOD, Printer, ViewJson, clean, clock, holder, origin, wall_ms};
use crate::reader::while_read;

/// Print a line whenever a lock's holders or its line change
///
/// The first line is how things stand now. It goes on until it is interrupted, or nobody reads it any more.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock's name
    name: String,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line {
            at_ms: u64,
            #[serde(flatten)]
            view: ViewJson,
        }
        let mut watch = client.watch(&self.name)?;
        while_read(async {
            loop {
                let view = watch.next().await?;
                let at_ms = wall_ms();
                if printer.json {
                    printer.object(&Line { at_ms, view: (&view).into() })?;
                } else {
                    printer.line(format!("{}  {}", printer.paint(DIM, clock(at_ms)), describe(&view, printer)))?;
                }
            }
        })
        .await
    }
}

/// A view in one line.
fn describe(view: &View, printer: &Printer) -> String {
    let name = printer.paint(BOLD, clean(view.name.as_str()));
    if view.is_free() {
        return format!("{name}  {}", printer.paint(GOOD, "free"));
    }
    let holders: Vec<String> = view
        .holders
        .iter()
        .map(|held| {
            let state = match (&held.asked, held.closing) {
                (_, true) => ", released but closed".to_owned(),
                (Some(ask), _) => format!(", asked to let go by {}", origin(&ask.by)),
                _ => String::new(),
            };
            format!("{} {}, token {}{state}", holder(held), held.mode, held.token)
        })
        .collect();
    let held = if holders.is_empty() { "held by nobody".to_owned() } else { format!("held by {}", holders.join("; ")) };
    format!("{name}  {held}; {} waiting", view.line.len())
}
