//! `tenure ls [PREFIX]`

use anstyle::Style;
use tenure::{Client, Holder, View};

use crate::duration;
use crate::failure::Failure;
use crate::print::{BOLD, DIM, Printer, Table, ViewJson, WARNING, clean, mode};

/// List the locks in use: who holds them, since when, and how many wait
#[derive(clap::Args, Debug)]
#[command(
    after_help = "On a terminal this is a table, in a pipe its columns are separated by tabs, with --json it is one object a name."
)]
pub(crate) struct Args {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        let mut table = Table::new(&["NAME", "KIND", "MODE", "HOLDER", "HELD", "EXPIRES", "WAITING", "NOTE"]);
        let mut last = None;
        loop {
            let page = client.list(&self.prefix, last.as_ref(), PAGE).await?;
            let full = page.len() == PAGE;
            last = page.last().map(|view| view.name.clone());
            for view in &page {
                if printer.json {
                    printer.object(&ViewJson::from(view))?;
                } else {
                    add(&mut table, view, printer.terminal);
                }
            }
            if !full {
                break;
            }
        }
        if printer.json {
        } else if !table.is_empty() {
            table.print(printer)?;
        } else if printer.terminal {
            let which =
                if self.prefix.is_empty() { String::new() } else { format!(" that begins with {}", clean(&self.prefix)) };
            printer.line(printer.paint(DIM, format!("no lock{which} is in use in {}", client.describe())))?;
        }
        Ok(0)
    }
}

/// A row for each holder. A terminal shows what they share once; in a pipe every row must stand alone.
fn add(table: &mut Table, view: &View, terminal: bool) {
    let plain = Style::new();
    let kind = view.kind.map(|kind| kind.to_string()).unwrap_or_default();
    let waiting = (view.line.len().to_string(), if view.line.is_empty() { plain } else { WARNING });
    if view.holders.is_empty() {
        let none = || ("-".to_owned(), DIM);
        let (name, kind) = ((view.name.to_string(), BOLD), (kind.clone(), plain));
        table.row(vec![name, kind, none(), none(), none(), none(), waiting.clone(), none()]);
    }
    for (place, holder) in view.holders.iter().enumerate() {
        let repeated = place > 0 && terminal;
        let once = |cell: (String, Style)| if repeated { (String::new(), plain) } else { cell };
        table.row(vec![
            once((view.name.to_string(), BOLD)),
            once((kind.clone(), plain)),
            (mode(holder.mode), plain),
            (holder.origin.to_string(), plain),
            (duration::show(holder.held_for), plain),
            (duration::show(holder.expires_in), DIM),
            once(waiting.clone()),
            (note(holder), plain),
        ]);
    }
}

fn note(holder: &Holder) -> String {
    let state = if holder.closing {
        "(released, closed for its minimum hold) "
    } else if holder.asked.is_some() {
        "(asked to let go) "
    } else {
        ""
    };
    format!("{state}{}", holder.note.as_str())
}

/// How many names are asked for at a time.
const PAGE: usize = 500;
