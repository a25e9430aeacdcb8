//! The `tenure` command: run a program under a lock, see who holds what, measure.
//!
//! # Layout
//!
//! - `cli`: the command line as data; `commands`: one file a command, its arguments, its help and what it does
//! - `guarded`: what `run` and `elect` share: wait for the lock, run the command under it, stop it inside the lease
//! - `child`: the process that runs under the lock; `bench`: what a lock costs
//! - `store`: from options to a client, `fence`: to a fence; `keys`: what sequencers are signed with; `failure`: how things go wrong,
//!   and the exit codes; `quit`: a signal ends us; `reader`: whether anybody reads us
//! - `print`: everything that is written to a terminal, a pipe or a log; `duration`: `1h30m`; `signal_name`: `USR1`; `limits`: what
//!   options may say

#![forbid(unsafe_code)]

mod bench;
mod child;
mod cli;
mod commands;
mod duration;
mod failure;
mod fence;
mod guarded;
mod keys;
mod limits;
mod print;
mod quit;
mod reader;
mod signal_name;
mod store;

use std::process::{ExitCode, exit};

use clap::Parser;

use crate::cli::Cli;
use crate::failure::OWN_FAILURE;
use crate::print::Printer;

fn main() -> ExitCode {
    child::unblock();
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == child::ENTRY) {
        child::shim(args);
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| misread(&error));
    let printer = Printer::new(cli.json);
    // One thread is enough, and starts fast; it must be this one, since the command dies with the thread that starts it.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return printer.failure(&error.into()),
    };
    let code = runtime.block_on(commands::dispatch(cli, &printer)).unwrap_or_else(|failure| printer.failure(&failure));
    print::flush(print::PATIENCE);
    // Whatever still runs in the background has been closed already, and is not worth waiting for.
    runtime.shutdown_background();
    code
}

/// Says what is wrong with the command line, or prints the help that was asked for.
fn misread(error: &clap::Error) -> ! {
    if error.use_stderr() {
        // One number for every failure of our own, so that it cannot be taken for the command's.
        print::usage(error);
        exit(OWN_FAILURE.into());
    }
    let _ = error.print();
    exit(0);
}
