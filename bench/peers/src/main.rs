//! tenure beside its peers on Redis, PostgreSQL, MariaDB, etcd and ZooKeeper, each in one run: `bench/peers/run` builds this and
//! starts it.
//!
//! # Layout
//!
//! | file | idea |
//! |---|---|
//! | `catalogue` | who takes part: what each is, what it does and does not do, how it waits |
//! | `lines` | what is measured: the figures of each line, their units and their base |
//! | `run` | repetition by repetition, every line, every contender, each in processes of its own |
//! | `handover` | two processes pass one lock to and fro |
//! | `process`, `orders` | a contender's process, and the little language it is spoken to in |
//! | `store`, `server` | the servers, each shared by all contenders, and what they count |
//! | `child`, `room` | the other end, for contenders in Rust; `scripts/` has it in Python, JavaScript, Java and Go |
//! | `contenders` | one file a library, used as its README says |
//! | `results`, `verdict`, `report`, `words`, `stats` | what came of it |

mod catalogue;
mod child;
mod contenders;
mod handover;
mod lines;
mod orders;
mod process;
mod report;
mod results;
mod room;
mod run;
mod server;
mod stats;
mod store;
mod verdict;
mod words;

use std::process::ExitCode;

const USAGE: &str = "\
tenure beside its peers on one Redis, one PostgreSQL, one MariaDB, three etcd, three ZooKeeper; on each interleaved, in one run

usage: bench/peers/run [--server SERVER,…] [--quick] [--repeat N] [--only CONTENDER,…] [--lines LINE,…] [--json FILE]

  --server   these servers, one after the other: redis, postgres, mariadb, etcd, zookeeper [all]
  --quick    short windows: shows that everything works, its figures are coarse
  --repeat   how often every contender is visited on every line [5, with --quick 3]
  --only     these contenders, and the bases
  --lines    these lines: solo, many, handover, contended, crowd
  --json     every figure of every repetition into this file";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // A contender's own process: started by `run`, never by people.
        ["child", store, key, url, index] => child::serve(store, key, url, index),
        _ => match run::Settings::parse(&arguments) {
            Ok(Some(settings)) => run::run(&settings),
            Ok(None) => {
                println!("{USAGE}");
                Ok(())
            }
            Err(why) => Err(format!("{why}\n\n{USAGE}")),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("peers: {why}");
            ExitCode::FAILURE
        }
    }
}
