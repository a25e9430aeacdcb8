//! `tenure man [COMMAND]`

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print::Printer;

/// Print the man page, with a page for every command
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  tenure man | man -l -\n  tenure man run > ~/.local/share/man/man1/tenure-run.1")]
pub(crate) struct Args {
    /// Only the page of this command
    command: Option<String>,
}

impl Args {
    pub(crate) fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        let mut whole = Cli::command();
        whole.build();
        let mut pages = Vec::new();
        match &self.command {
            None => {
                render(&whole, &mut pages)?;
                for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
                    render(command, &mut pages)?;
                }
            }
            Some(name) => {
                let command = whole.find_subcommand(name);
                let unknown = || Failure::new(format!("there is no command {name:?}")).with_hint("tenure --help lists them");
                render(command.ok_or_else(unknown)?, &mut pages)?;
            }
        }
        printer.raw(&pages)?;
        Ok(0)
    }
}

fn render(command: &Command, pages: &mut Vec<u8>) -> Result<(), Failure> {
    // Built, every command knows its whole name, `tenure-run`.
    Ok(Man::new(command.clone()).render(pages)?)
}
