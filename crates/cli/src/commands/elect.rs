//! `tenure elect NAME -- COMMAND…`, and `--observe`

use std::ffi::OsString;

use serde::Serialize;
use tenure::Client;

use crate::failure::Failure;
use crate::guarded::{CommandArgs, HoldArgs, Job, Shape};
use crate::print::{Printer, clean, clock, origin, wall_ms};
use crate::reader::while_read;
use crate::store::StoreArgs;

/// Run a command while leading an election, or watch who leads
///
/// Like `tenure run`, but the name is an election: the leader runs COMMAND, the others stand by, and the next one takes
/// over when the leader ends or dies. The --note is what observers see: an address, for example. TENURE_TOKEN is the term;
/// every leader has a higher one than the last.
#[derive(clap::Args, Debug)]
#[command(override_usage = USAGE, after_help = AFTER)]
pub(crate) struct Args {
    /// The election's name
    name: String,

    /// The command the leader runs, and its arguments
    #[arg(required_unless_present = "observe", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Do not stand for election: print who leads now, and every change, also that nobody leads
    #[arg(long, conflicts_with = "command")]
    pub(crate) observe: bool,

    #[command(flatten)]
    hold: HoldArgs,

    #[command(flatten)]
    runs: CommandArgs,
}

impl Args {
    pub(crate) async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        let (shape, hold, runs) = (Shape::Election, &self.hold, &self.runs);
        let job = Job { name: &self.name, and: &[], shape, hold, runs, once_per: None, command: &self.command };
        job.run(store, printer).await
    }

    pub(crate) async fn observe(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            name: &'a str,
            /// All of these are null where nobody leads.
            term: Option<u64>,
            note: Option<&'a str>,
            host: Option<&'a str>,
            pid: Option<u32>,
            at_ms: u64,
        }
        let mut leaders = client.election(&self.name)?.observe()?;
        while_read(async {
            loop {
                let leader = leaders.next().await?;
                let (leader, at_ms) = (leader.as_ref(), wall_ms());
                if printer.json {
                    printer.object(&Line {
                        event: "leader",
                        name: &self.name,
                        term: leader.map(|leader| leader.term.get()),
                        note: leader.map(|leader| leader.note.as_str()),
                        host: leader.map(|leader| &*leader.origin.host),
                        pid: leader.map(|leader| leader.origin.pid),
                        at_ms,
                    })?;
                } else {
                    let (term, who, note) = match leader {
                        Some(leader) => (leader.term.to_string(), origin(&leader.origin), clean(leader.note.as_str())),
                        None => ("-".to_owned(), "no leader".to_owned(), "".into()),
                    };
                    printer.line(format!("{}\t{term}\t{who}\t{note}", clock(at_ms)))?;
                }
            }
        })
        .await
    }
}

const USAGE: &str = "tenure elect [OPTIONS] NAME [--] COMMAND [ARGUMENT]...\n       tenure elect --observe NAME";

const AFTER: &str = "\
Exit codes and COMMAND's environment are those of `tenure run`; see its --help.

Examples:
  tenure elect scheduler --note 10.0.0.7:8080 -- ./scheduler
  tenure elect scheduler --observe        time, term, leader and note, one line a change;
                                          without a leader the term is -, or null with --json";
