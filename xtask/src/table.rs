//! The README's table of kinds and stores: not written by hand, so that it cannot promise what a store does not do.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use tenure::Kind;
use tenure::backend::Abilities;

/// Where the table stands in the README.
pub const BEGIN: &str = "<!-- abilities -->";
/// Where it ends.
pub const END: &str = "<!-- /abilities -->";

/// The table, one row for each store of this build.
pub fn table() -> String {
    render(&tenure::abilities())
}

/// Writes the table into the README, between its two markers.
pub fn write(root: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = root.join("README.md");
    let filled = filled(&fs::read_to_string(&path)?, &table()).ok_or_else(|| format!("README.md has no {BEGIN} … {END}"))?;
    Ok(fs::write(&path, filled)?)
}

/// What stands between the markers.
pub fn inside(readme: &str) -> Option<&str> {
    let (_, rest) = readme.split_once(BEGIN)?;
    Some(rest.split_once(END)?.0)
}

/// The page with this table between its markers.
fn filled(readme: &str, table: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

/// The kinds as users know them, each with the kind that a store must have for it.
const KINDS: &[(&str, Kind)] = &[
    ("mutex", Kind::Mutex),
    ("fair mutex", Kind::FairMutex),
    ("reentrant mutex", Kind::Mutex),
    ("rw lock", Kind::RwLock),
    ("semaphore", Kind::Semaphore),
    ("multi-lock", Kind::Mutex),
    ("election", Kind::Election),
];

fn render(stores: &[Abilities]) -> String {
    let kinds = KINDS.iter().map(|(kind, _)| (*kind).to_owned());
    let facts = ["cell", "fencing", "waiting", "liveness", "reach"].map(str::to_owned);
    let head: Vec<String> = ["store".to_owned()].into_iter().chain(kinds).chain(facts).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    row(&head) + &rule + &stores.iter().map(|store| row(&cells(store))).collect::<String>()
}

fn cells(store: &Abilities) -> Vec<String> {
    let tick = |there: bool| if there { "✓" } else { "–" }.to_owned();
    let mut cells = vec![store.store.to_owned()];
    cells.extend(KINDS.iter().map(|(_, kind)| tick(store.kinds.contains(kind))));
    cells.push(tick(store.cells));
    cells.extend([words(store.fencing), words(store.waiting), words(store.liveness), words(store.reach)]);
    cells
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// `DataOrClock` as "data or clock": the names in the code are the words.
fn words(name: impl Debug) -> String {
    let mut words = String::new();
    for char in format!("{name:?}").chars() {
        if char.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(char.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::backend::{Fencing, Liveness, Reach, Waiting};

    use super::*;

    #[test]
    fn a_row_says_what_the_store_says() {
        let store = Abilities {
            store: "paper",
            kinds: &[Kind::Mutex, Kind::Election],
            fencing: Fencing::DataOrClock,
            waiting: Waiting::Polled,
            liveness: Liveness::LeaseAndProcess,
            reach: Reach::Host,
            cells: false,
            delays: true,
            downgrade: true,
            shortest_ttl: Duration::from_secs(1),
        };
        let table = render(&[store]);
        let last = table.lines().last().unwrap();
        assert_eq!(last, "| paper | ✓ | – | ✓ | – | – | ✓ | ✓ | – | data or clock | polled | lease and process | host |");
        assert!(table.lines().all(|line| line.matches('|').count() == last.matches('|').count()));
    }

    #[test]
    fn the_markers_are_found() {
        assert_eq!(inside(&format!("a {BEGIN}b{END} c")), Some("b"));
        assert_eq!(inside(&format!("a {END}b{BEGIN} c")), None);
    }

    #[test]
    fn the_table_is_put_between_them() {
        let readme = format!("a\n\n{BEGIN}\n{END}\n\nb\n");
        let filled = filled(&readme, "| x |\n").unwrap();
        assert_eq!(filled, format!("a\n\n{BEGIN}\n| x |\n{END}\n\nb\n"));
        assert_eq!(super::filled(&filled, "| x |\n").unwrap(), filled);
        assert_eq!(super::filled("a", ""), None);
    }
}
