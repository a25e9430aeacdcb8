//! The words of `xtask attack`: the attack itself is in the testkit.

#![expect(clippy::print_stdout, reason = "a chore's result is what it prints")]

use std::error::Error;
use std::fs;
use std::time::Duration;

use tenure_testkit::attack::{self, Fault, Options, Store, Summary, Tally};

use crate::tree::Tree;

/// Where the summary's table begins in its page.
const BEGIN: &str = "<!-- attack -->";
/// Where it ends.
const END: &str = "<!-- /attack -->";
/// The summary.
const PAGE: &str = "docs/attack.md";

/// Rounds at a time; most of them wait.
const WIDTH: usize = 16;

/// What the arguments ask for; nothing if they ask for something else.
pub fn options(arguments: &[String]) -> Option<Options> {
    let dir = Tree::root().join("target/attack");
    let (mut stores, mut faults) = (Vec::new(), Vec::new());
    let mut options = Options {
        stores: vec![],
        faults: vec![],
        lasts: Duration::ZERO,
        enough: usize::MAX,
        seed: 1,
        dir,
        width: WIDTH,
        taker: "attack",
    };
    let mut minutes = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next()?;
        match argument.as_str() {
            "--minutes" => minutes = Some(value.parse::<f64>().ok().filter(|minutes| *minutes >= 0.0)?),
            "--histories" => options.enough = value.parse().ok()?,
            "--store" => stores.push(*Store::ALL.iter().find(|store| store.words().0 == value)?),
            "--fault" => faults.push(*Fault::ALL.iter().find(|fault| fault.words().0 == value)?),
            "--seed" => options.seed = value.parse().ok()?,
            "--out" => options.dir = value.into(),
            "--width" => options.width = value.parse().ok().filter(|width| *width > 0)?,
            _ => return None,
        }
    }
    options.lasts = Duration::from_secs_f64(minutes? * 60.0);
    options.stores = if stores.is_empty() { Store::ALL.to_vec() } else { stores };
    options.faults = if faults.is_empty() { Fault::ALL.to_vec() } else { faults };
    Some(options)
}

/// What a second process does.
pub fn serve() {
    attack::serve(|url| Box::pin(tenure::connect(url)));
}

/// Whether this process is a second one.
pub use tenure_testkit::attack::is_second_process;

/// Runs it; whether everything that is promised was kept.
pub fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let summary = attack::run(options, |url| Box::pin(tenure::connect(url)), |violation| println!("{violation}"))?;
    let total = summary.total();
    let text = format!("{}\n\n{}", sentence(&summary), summary.table(&Store::ALL, &Fault::ALL));
    println!("{text}\nhistories: {}", options.dir.display());
    if summary.fewest() > 0 {
        write(&text)?;
    }
    Ok(total.broken == 0 && total.grants > 0)
}

fn sentence(summary: &Summary) -> String {
    let (Tally { histories, timed, grants, broken, .. }, fewest) = (summary.total(), summary.fewest());
    format!(
        "{histories} histories with {grants} grants, at least {fewest} for each pair, {timed} of them on a machine \
         quiet enough to judge bounds in time: {broken} violations."
    )
}

/// Writes the table into its page, between its two markers.
fn write(text: &str) -> Result<(), Box<dyn Error>> {
    let path = Tree::root().join(PAGE);
    let page = fs::read_to_string(&path)?;
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{PAGE} has no {BEGIN} … {END}"))?;
    Ok(fs::write(&path, format!("{before}{BEGIN}\n{text}\n{END}{after}"))?)
}
