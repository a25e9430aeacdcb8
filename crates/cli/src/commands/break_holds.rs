//! `tenure break NAME`

use std::io::{self, IsTerminal};

use serde::Serialize;
use tenure::{Client, ErrorKind, Holder, Token};

use crate::duration;
use crate::failure::{Failure, NO};
use crate::print::{BOLD, Printer, clean, holder};

/// End a hold by force
///
/// The next in line gets the lock at once, with a higher token. The old holder learns of it as a loss, with your --reason
/// (`tenure run` then stops its command), but not before others may be in: use it when the holder is known to be dead or stuck, and
/// `tenure ask` otherwise. Exits with 1 if there was nothing to break.
#[derive(clap::Args, Debug)]
#[command(name = "break")]
pub(crate) struct Args {
    /// The lock's name
    name: String,

    /// Only the hold with this token, and none that came after it
    #[arg(long)]
    token: Option<u64>,

    /// Why, in a few words: the holder says so when it loses the lock
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        let only = self.token.map(Token::new);
        let view = client.view(&self.name).await?;
        let holders: Vec<&Holder> = view.holders.iter().filter(|held| only.is_none_or(|only| only == held.token)).collect();
        if holders.is_empty() {
            return self.report(printer, 0);
        }
        if !self.yes && !self.confirmed(&holders, printer)? {
            printer.note("nothing was broken");
            return Ok(NO);
        }
        // Who breaks it and why travels ahead; a store that cannot carry that breaks it all the same.
        if holders.len() == view.holders.len()
            && let Err(error) = client.announce_break(&self.name, &self.reason).await
            && error.kind() == ErrorKind::BadOption
        {
            return Err(error.into());
        }
        // What was confirmed is broken, and nobody who got it meanwhile: each by its own token.
        let mut broken = 0;
        for held in &holders {
            broken += client.break_holds(&self.name, Some(held.token)).await?;
        }
        self.report(printer, broken)
    }

    fn confirmed(&self, holders: &[&Holder], printer: &Printer) -> Result<bool, Failure> {
        if !io::stdin().is_terminal() || printer.json {
            let hint = "Add --yes, and --token to be sure that it is the hold you mean";
            return Err(
                Failure::new("breaking a lock needs confirmation, and there is no terminal to ask on").with_hint(hint)
            );
        }
        for held in holders {
            let (who, since) = (holder(held), duration::show(held.held_for));
            printer.note(format!("{} is held by {who} for {since}, token {}", clean(&self.name), held.token));
        }
        let question = printer.on_stderr(BOLD, "Break it? If its holder is alive, two may work at once. [y/N]");
        Ok(matches!(printer.question(question)?.trim(), "y" | "Y" | "yes" | "Yes"))
    }

    fn report(&self, printer: &Printer, broken: usize) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            broken: usize,
        }
        if printer.json {
            printer.object(&Line { name: &self.name, broken })?;
        } else {
            let name = clean(&self.name);
            printer.line(match (broken, self.token) {
                (0, None) => format!("nobody holds {name}"),
                (0, Some(token)) => format!("nobody holds {name} with token {token}"),
                (1, _) => format!("broke the hold on {name}"),
                (many, _) => format!("broke {many} holds on {name}"),
            })?;
        }
        Ok(if broken == 0 { NO } else { 0 })
    }
}
