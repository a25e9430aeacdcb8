//! `tenure show NAME`

use serde::Serialize;
use tenure::{Client, Holder, View};

use crate::duration;
use crate::failure::Failure;
use crate::guarded::LastRun;
use crate::print::{BOLD, DIM, GOOD, Printer, Table, ViewJson, WARNING, clean, mode, origin};

/// Show who holds a lock and who waits for it, in order, and when `tenure run --once-per` last ran
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock's name
    name: String,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Shown {
            #[serde(flatten)]
            view: ViewJson,
            last_run: Option<LastRun>,
        }
        let view = client.view(&self.name).await?;
        let last_run = LastRun::read(client, &self.name).await;
        if printer.json {
            printer.object(&Shown { view: (&view).into(), last_run })?;
        } else {
            print(&view, printer)?;
            if let Some(last_run) = last_run {
                printer.line(format!("  {} {}", printer.paint(DIM, "last run"), last_run.describe()))?;
            }
        }
        Ok(0)
    }
}

fn print(view: &View, printer: &Printer) -> Result<(), Failure> {
    let name = printer.paint(BOLD, clean(view.name.as_str()));
    let Some(kind) = view.kind.filter(|_| !view.is_free()) else {
        printer.line(format!("{name}  {}", printer.paint(GOOD, "free")))?;
        return Ok(());
    };
    printer.line(format!("{name}  {kind}, {}", count(view.holders.len(), "holder")))?;
    for holder in &view.holders {
        printer.line(describe(holder, printer))?;
    }
    if view.line.is_empty() {
        return Ok(());
    }
    printer.line(format!("{} in line", view.line.len()))?;
    let mut table = Table::new(&["  #", "MODE", "WHO", "WAITS", "NOTE"]);
    let plain = anstyle::Style::new();
    for (place, waiter) in view.line.iter().enumerate() {
        table.row(vec![
            (format!("  {}", place + 1), plain),
            (mode(waiter.mode), plain),
            (waiter.origin.to_string(), plain),
            (duration::show(waiter.waiting_for), plain),
            (waiter.note.as_str().to_owned(), plain),
        ]);
    }
    table.print(printer)?;
    Ok(())
}

/// One holder, a fact a line.
fn describe(holder: &Holder, printer: &Printer) -> String {
    let mut text = String::new();
    let mut fact = |label: &str, value: String| {
        let label = printer.paint(DIM, format!("{label:<8}"));
        text.push_str(&format!("{}  {label} {value}", if text.is_empty() { "" } else { "\n" }));
    };
    fact("holder", origin(&holder.origin));
    if !holder.note.as_str().is_empty() {
        fact("note", clean(holder.note.as_str()).into_owned());
    }
    fact("mode", mode(holder.mode));
    fact("token", holder.token.to_string());
    fact("held", format!("for {}", duration::show(holder.held_for)));
    if holder.closing {
        let says = format!("released; the name stays closed for {}", duration::show(holder.expires_in));
        fact("state", printer.paint(WARNING, says));
    } else {
        fact("expires", format!("in {}, unless renewed", duration::show(holder.expires_in)));
    }
    if let Some(ask) = &holder.asked {
        let says = format!("to let go, by {}: {}", origin(&ask.by), clean(ask.reason.as_str()));
        fact("asked", printer.paint(WARNING, says));
    }
    text
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
