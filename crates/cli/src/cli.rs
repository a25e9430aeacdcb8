//! The command line, as data.

use clap::builder::styling::{AnsiColor, Style, Styles};
use clap::{Parser, Subcommand};

use crate::bench;
use crate::commands::{
    ask, break_holds, completions, doctor, elect, fence, ls, man, run, schema, sequencer, show, wait, watch,
};
#[cfg(target_os = "linux")]
use crate::commands::{hold, release};
use crate::store::StoreArgs;

/// Run a program under a lock, and see who holds what
///
/// A lock here is a lease on a name. While the program runs, tenure renews it; if that fails, tenure stops the program
/// before anybody else is let in. Without --store, all processes of your user on this host meet in one file, with no server.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    styles = STYLES,
    max_term_width = 100,
    after_help = EXAMPLES,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Write JSON lines: results to stdout, events and errors to stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Args>),
    Elect(Box<elect::Args>),
    #[cfg(target_os = "linux")]
    Hold(Box<hold::Args>),
    #[cfg(target_os = "linux")]
    Release(release::Args),
    Ls(ls::Args),
    Show(show::Args),
    Watch(watch::Args),
    Wait(wait::Args),
    Ask(ask::Args),
    Break(break_holds::Args),
    Sequencer(sequencer::Args),
    Fence(fence::Args),
    Doctor(doctor::Args),
    Schema(schema::SchemaArgs),
    Migrate(schema::MigrateArgs),
    /// Measure what a lock costs here, beside the store's own raw speed
    ///
    /// Without --store it measures a temporary SQLite file. Every figure is also given as a ratio to the store's raw round
    /// trip of the same run, since microseconds say more about the machine than about the locks. With --fence it measures that fence
    /// beside raw writes of its store and nothing else, and leaves the name tenure-bench in it.
    Bench(bench::Args),
    /// The bench's second process
    #[command(name = "__bench-child", hide = true)]
    BenchChild,
    Completions(completions::Args),
    Man(man::Args),
}

const EXAMPLES: &str = "\
Examples:
  tenure run nightly-report -- ./report.sh      one at a time; the others wait
  tenure run -n deploy -- make deploy           or exit with 1 if somebody is at it
  tenure ls                                     who holds what, since when, who waits

Every command has --help.";

const STYLES: Styles = Styles::styled()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Green.on_default());

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// What readers are told to type, in the README and in our own help, is understood.
    #[test]
    fn every_command_line_we_show_is_understood() {
        let readme = include_str!("../../../README.md");
        let inline = readme.split('`').filter(|words| words.starts_with("tenure ") && words.contains("--help"));
        let lines = readme.lines().chain(EXAMPLES.lines()).map(str::trim).filter(|line| line.starts_with("tenure "));
        let shown: Vec<&str> = lines.chain(inline).collect();
        assert!(shown.len() > 9, "{shown:?}");
        for line in shown {
            // A comment, or what the line does, stands behind it, some blanks away.
            let typed = line.split("  ").next().unwrap_or_default();
            match Cli::try_parse_from(typed.split_whitespace()) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp, "{typed}: {error}"),
            }
        }
    }
}
