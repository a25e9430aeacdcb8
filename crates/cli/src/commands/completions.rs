//! `tenure completions SHELL`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print::Printer;

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

impl Args {
    pub(crate) fn run(&self, printer: &Printer) -> Result<u8, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tenure", &mut script);
        printer.raw(&script)?;
        Ok(0)
    }
}

const AFTER: &str = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish
  tenure completions zsh  > \"${fpath[1]}/_tenure\"";
