//! One file a command: its arguments, its help, and what it does.

pub(crate) mod ask;
pub(crate) mod break_holds;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod fence;
#[cfg(target_os = "linux")]
pub(crate) mod hold;
pub(crate) mod ls;
pub(crate) mod man;
#[cfg(target_os = "linux")]
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sequencer;
pub(crate) mod show;
pub(crate) mod wait;
pub(crate) mod watch;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::guarded;
use crate::print::Printer;
use crate::quit::until_quit;
use crate::store::StoreArgs;

/// Does what the command line says; gives the exit code.
pub(crate) async fn dispatch(cli: Cli, printer: &Printer) -> Result<ExitCode, Failure> {
    let Cli { store, command, .. } = cli;
    let code = match command {
        Command::Run(args) => args.run(&store, printer).await,
        #[cfg(target_os = "linux")]
        Command::Hold(args) => args.run(&store, printer).await,
        Command::Elect(args) if !args.observe => args.run(&store, printer).await,
        Command::Fence(args) => args.run(printer).await,
        Command::Doctor(_) => doctor::run(&store, printer).await,
        Command::Schema(_) => schema::print(&store, printer),
        Command::Migrate(_) => schema::migrate(&store, printer).await,
        Command::Bench(args) => {
            let fence = args.fence()?;
            return Ok(crate::bench::run(args, store.named(printer)?.url().map(str::to_owned), fence).await?);
        }
        Command::BenchChild => return Ok(crate::bench::child().await?),
        Command::Sequencer(args) => args.run(&store, printer).await,
        Command::Completions(args) => args.run(printer),
        Command::Man(args) => args.run(printer),
        look => look_at(look, &store, printer).await,
    };
    code.map(ExitCode::from)
}

/// The commands that look at a store and go. It is closed on every way out.
async fn look_at(command: Command, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
    let wait = if let Command::Wait(args) = &command { args.limit() } else { tenure::Wait::Forever };
    let client = store.connect(wait, printer).await?;
    let code = match command {
        Command::Ls(args) => args.run(&client, printer).await,
        Command::Show(args) => args.run(&client, printer).await,
        Command::Watch(args) => until_quit(&client, args.run(&client, printer)).await,
        Command::Wait(args) => until_quit(&client, args.run(&client, printer)).await,
        #[cfg(target_os = "linux")]
        Command::Release(args) => until_quit(&client, args.run(&client, printer)).await,
        Command::Ask(args) => until_quit(&client, args.run(&client, printer)).await,
        Command::Break(args) => args.run(&client, printer).await,
        Command::Elect(args) => until_quit(&client, args.observe(&client, printer)).await,
        _ => unreachable!("dispatch does the others"),
    };
    guarded::close(&client).await;
    code
}
