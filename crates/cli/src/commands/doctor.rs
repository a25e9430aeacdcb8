//! `tenure doctor`

use serde::Serialize;
use tenure::backend::{Finding, Level};

use crate::failure::{Failure, NO};
use crate::guarded;
use crate::print::{BAD, BOLD, DIM, GOOD, Printer, WARNING, clean};
use crate::store::{Source, StoreArgs};

/// Look at the store and say what could hurt
///
/// Exits with 1 if something is bad: it will not work, or not safely.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

pub(crate) async fn run(store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
    let source = store.named(printer)?;
    let client = match source.connect().await {
        Ok(client) => client,
        Err(failure) => {
            // That it cannot be reached is what a doctor is called for.
            let hint = failure.hint.map(|hint| format!(". {hint}")).unwrap_or_default();
            let says = format!("{}{hint}", failure.message);
            print(&Finding { level: Level::Bad, what: "connection".to_owned(), says }, 0, printer)?;
            return Ok(NO);
        }
    };
    if !printer.json {
        let version = env!("CARGO_PKG_VERSION");
        printer.line(format!("tenure {version}  {}", printer.paint(BOLD, client.describe())))?;
    }
    let findings = client.examine().await;
    guarded::close(&client).await;
    let mut findings = findings?;
    let whose = if let Source::Default = source { ", the default: all processes of this user meet there" } else { "" };
    findings
        .insert(0, Finding { level: Level::Good, what: "store".to_owned(), says: format!("{}{whose}", client.describe()) });
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    for finding in &findings {
        print(finding, width, printer)?;
    }
    let worst = findings.iter().map(|finding| finding.level).max();
    Ok(if worst == Some(Level::Bad) { NO } else { 0 })
}

/// `width` is that of the widest `what`.
fn print(finding: &Finding, width: usize, printer: &Printer) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line<'a> {
        level: &'static str,
        what: &'a str,
        says: &'a str,
    }
    let (level, style, mark) = match finding.level {
        Level::Good => ("good", GOOD, "✓"),
        Level::Warning => ("warning", WARNING, "!"),
        Level::Bad => ("bad", BAD, "✗"),
    };
    let Finding { what, says, .. } = finding;
    if printer.json {
        printer.object(&Line { level, what, says })?;
    } else if printer.terminal {
        let (mark, what) = (printer.paint(style, mark), clean(what));
        printer.line(format!("{mark} {what:width$}  {}", printer.paint(DIM, clean(says))))?;
    } else {
        printer.line(format!("{level}\t{}\t{}", clean(what), clean(says)))?;
    }
    Ok(())
}
