//! `cargo run -p xtask -- CHORE`

#![expect(clippy::print_stdout, reason = "a chore's result is what it prints")]

use std::error::Error;
use std::process::ExitCode;

use xtask::tree::Tree;
use xtask::{api, table, tidy};

const USAGE: &str = "\
usage: cargo run -p xtask -- CHORE

  tidy    check the sources; changes nothing (cargo test runs the same checks)
  table   print the README's table of kinds and stores, from what each store says of itself
  api     write the public API of each library into api/
  fix     write both: the README's table, and api/";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let chore = std::env::args().nth(1);
    match chore.as_deref() {
        Some("tidy") => return Ok(tidy()?),
        Some("table") => print!("{}", table::table()),
        Some("api") => api::write(&Tree::here()?, &Tree::root())?,
        Some("fix") => {
            api::write(&Tree::here()?, &Tree::root())?;
            table::write(&Tree::root())?;
        }
        _ => {
            println!("{USAGE}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
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
