//! `tenure-sim`: runs many seeds, or shows one.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use tenure_sim::{Mutant, run, sweep};

const USAGE: &str = "\
usage: tenure-sim run [--seeds N] [--from SEED] [--mutant NAME]
       tenure-sim replay SEED [--verbose] [--mutant NAME]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match act(&arguments, &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            let _ = writeln!(io::stderr(), "{what}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Does what was asked for. Says whether all was as promised.
fn act(arguments: &[String], out: &mut impl Write) -> Result<bool, String> {
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(place + 1).cloned().unwrap_or_default())
    };
    let number = |name: &str, default: u64| {
        option(name).map_or(Ok(default), |text| text.parse().map_err(|_| format!("{name} needs a number")))
    };
    let mutant = match option("--mutant") {
        Some(name) => Some(Mutant::named(&name).ok_or_else(|| format!("there is no mutant {name:?}: {:?}", Mutant::ALL))?),
        None => None,
    };
    match arguments.first().map(String::as_str) {
        Some("run") => {
            let (from, seeds) = (number("--from", 0)?, number("--seeds", 10_000)?);
            Ok(run_many(from, seeds, mutant, out))
        }
        Some("replay") => {
            let seed = arguments.get(1).and_then(|seed| seed.parse().ok()).ok_or("replay needs a seed")?;
            Ok(replay(seed, arguments.iter().any(|argument| argument == "--verbose"), mutant, out))
        }
        _ => Err("say run or replay".to_owned()),
    }
}

fn run_many(from: u64, seeds: u64, mutant: Option<Mutant>, out: &mut impl Write) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let swept = sweep(from..from + seeds, mutant, threads, 10);
    for run in &swept.failed {
        let _ = writeln!(out, "{}", run.complaint().expect("it failed"));
    }
    let took = began.elapsed();
    let rate = swept.runs as f64 / took.as_secs_f64();
    let (runs, holds, events, failed) = (swept.runs, swept.holds, swept.events, swept.failed.len());
    let _ = writeln!(out, "{runs} seeds, {holds} holds, {events} events, {failed} failed, {took:.1?} ({rate:.0} seeds/s)");
    swept.failed.is_empty()
}

fn replay(seed: u64, verbose: bool, mutant: Option<Mutant>, out: &mut impl Write) -> bool {
    let run = run(seed, mutant);
    if verbose || !run.violations.is_empty() {
        let _ = writeln!(out, "{}", run.story());
    }
    for violation in &run.violations {
        let _ = writeln!(out, "{violation}");
    }
    let _ = writeln!(out, "seed {seed}: {} events, {} holds, hash {:016x}", run.events, run.holds, run.hash);
    run.violations.is_empty()
}
