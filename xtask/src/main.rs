//! `cargo run -p xtask -- CHORE`

#![expect(clippy::print_stdout, reason = "a chore's result is what it prints")]

use std::error::Error;
use std::process::ExitCode;

use xtask::runner::{self, Options, Schedule};
use xtask::tree::Tree;
use xtask::{api, attack, mutants, table, tidy};

const USAGE: &str = "\
usage: cargo run -p xtask -- CHORE

  tidy    check the sources; changes nothing (cargo test runs the same checks)
  table   print the README's table of kinds and stores, from what each store says of itself
  api     write the public API of each library into api/
  fix     write both: the README's table, and api/
  test [--width N] [--fast] [PART…]
          build the test programs and run them, N at a time (3); with --fast without the slow ones;
          with PARTs only those whose PACKAGE/TARGET contains one
  attack --minutes N [--histories N] [--store NAME …] [--fault NAME …] [--seed S] [--out DIR] [--width N]
          run random histories of stores under faults and check them, adding to those in DIR
          (target/attack), each pair until it has so many; with all pairs in DIR, write docs/attack.md
  mutants [--list] [PART…]
          plant each bug of xtask/mutants/ in a copy of the tree and see that its test fails; with
          PARTs only those whose name, or the PACKAGE/TARGET of its test, contains one";

/// How many programs run at a time on two cores; CONTRIBUTING.md has the measurement.
const WIDTH: usize = 3;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if attack::is_second_process() {
        attack::serve();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("tidy") => return Ok(tidy()?),
        Some("table") => print!("{}", table::table()),
        Some("api") => api::write(&Tree::here()?, &Tree::root())?,
        Some("fix") => {
            api::write(&Tree::here()?, &Tree::root())?;
            table::write(&Tree::root())?;
        }
        Some("test") => {
            if let Some(options) = test_options(&arguments[1..]) {
                let schedule = Schedule::parse(include_str!("../schedule.txt"));
                let passed = runner::run(&Tree::root(), &schedule, &options)?;
                return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            return Ok(usage());
        }
        Some("attack") => match attack::options(&arguments[1..]) {
            Some(options) if attack::run(&options)? => {}
            Some(_) => return Ok(ExitCode::FAILURE),
            None => return Ok(usage()),
        },
        Some("mutants") => return mutants(&arguments[1..]),
        _ => return Ok(usage()),
    }
    Ok(ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    println!("{USAGE}");
    ExitCode::from(2)
}

fn test_options(arguments: &[String]) -> Option<Options> {
    let mut options = Options { width: WIDTH, fast: false, only: Vec::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--width" => options.width = arguments.next()?.parse().ok().filter(|width| *width > 0)?,
            "--fast" => options.fast = true,
            flag if flag.starts_with('-') => return None,
            part => options.only.push(part.to_owned()),
        }
    }
    Some(options)
}

fn mutants(arguments: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let (flags, parts): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    let list = match flags[..] {
        [] => false,
        [flag] if flag == "--list" => true,
        _ => return Ok(usage()),
    };
    let mut mutants = mutants::all(&Tree::here()?)?;
    mutants.retain(|mutant| parts.is_empty() || parts.iter().any(|part| mutant.is_meant_by(part)));
    if list {
        mutants.iter().for_each(|mutant| println!("{mutant}"));
        return Ok(ExitCode::SUCCESS);
    }
    let caught = mutants::run(&Tree::root(), &mutants)?;
    Ok(if caught { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tidy() -> std::io::Result<ExitCode> {
    let tree = Tree::here()?;
    let mut clean = true;
    for (name, check) in tidy::CHECKS {
        let complaints = check(&tree);
        println!(
            "{name}: {}",
            if complaints.is_empty() { "good".to_owned() } else { format!("{} to mend", complaints.len()) }
        );
        complaints.iter().for_each(|complaint| println!("  {complaint}"));
        clean &= complaints.is_empty();
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
