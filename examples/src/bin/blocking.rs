//! The same locks without async: `tenure::blocking`, for threads, scripts and tests.
//!
//! Eight threads number invoices from one file. Renewal goes on in the background, so a thread may compute for as long as
//! it likes; it only has to `check` before it does what may not be done twice.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use tenure::{Result, blocking};
use tenure_examples::Store;

/// Draws the next number. `None` if the others did not let it in within ten seconds.
fn next_number(client: &blocking::Client, file: &Path) -> Result<Option<u32>> {
    let Some(guard) = client.mutex("invoice-numbers")?.try_lock_for(Duration::from_secs(10))? else { return Ok(None) };
    let last: u32 = fs::read_to_string(file).expect("there is a last number").parse().expect("it is a number");
    guard.check()?; // still ours: a thread can stand still for longer than a lease
    fs::write(file, (last + 1).to_string()).expect("the new number is kept");
    guard.release()?;
    Ok(Some(last + 1))
}

fn main() -> Result<()> {
    let store = Store::from_args();
    let file = store.dir.path().join("last-number");
    fs::write(&file, "0").expect("the first number is kept");

    let draw = || -> Result<Vec<u32>> {
        let client = blocking::connect(&store.url)?;
        let numbers = (0..25).map(|_| next_number(&client, &file));
        numbers.filter_map(Result::transpose).collect()
    };
    let mut numbers: Vec<u32> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(draw)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect::<Result<Vec<_>>>()
    })?
    .concat();

    numbers.sort();
    numbers.dedup();
    println!("{} different numbers, the last one is {}", numbers.len(), fs::read_to_string(&file).expect("it is there"));
    Ok(())
}
