//! One file a command: its arguments, its help, and what it does.

pub(crate) mod ask;
pub(crate) mod break_holds;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod watch;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::guarded;
use crate::print::Printer;

/// Does what the command line says; gives the exit code.
pub(crate) async fn dispatch(cli: Cli, printer: &Printer) -> Result<i32, Failure> {
    let Cli { store, command, .. } = cli;
    match command {
        Command::Run(args) => return args.run(&store, printer).await,
        Command::Elect(args) if !args.observe => return args.run(&store, printer).await,
        Command::Doctor(_) => return doctor::run(&store, printer).await,
        Command::Completions(args) => return args.run(printer),
        Command::Man(args) => return args.run(printer),
        _ => {}
    }
    // What is left looks at a store and goes. It is closed on every way out.
    let client = store.connect().await?;
    let code = match command {
        Command::Ls(args) => args.run(&client, printer).await,
        Command::Show(args) => args.run(&client, printer).await,
        Command::Watch(args) => args.run(&client, printer).await,
        Command::Ask(args) => args.run(&client, printer).await,
        Command::Break(args) => args.run(&client, printer).await,
        Command::Elect(args) => args.observe(&client, printer).await,
        _ => Ok(0),
    };
    guarded::close(&client).await;
    code
}
