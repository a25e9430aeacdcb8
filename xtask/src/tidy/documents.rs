//! What the pages say is what the code does: the code map, the README's table, the listing of the public API.

use crate::tree::Tree;
use crate::{api, table};

/// ARCHITECTURE.md's code map mentions every crate.
pub(super) fn code_map(tree: &Tree) -> Vec<String> {
    let page = tree.text("ARCHITECTURE.md");
    let is_there = |name: &str| {
        page.split(|char: char| !char.is_alphanumeric() && !"/-_".contains(char))
            .any(|word| word.trim_start_matches("crates/").split('/').next() == Some(name) && word.contains('/'))
    };
    let missing = tree.crates().filter(|name| !is_there(name));
    missing.map(|name| format!("ARCHITECTURE.md: the code map does not mention crates/{name}")).collect()
}

/// README's table of kinds and stores is what the stores say of themselves.
pub(super) fn abilities(tree: &Tree) -> Vec<String> {
    compare_table(tree.text("README.md"), &table::table())
}

fn compare_table(readme: &str, table: &str) -> Vec<String> {
    match table::inside(readme) {
        None => vec![format!(
            "README.md: put the table between {} and {}: cargo run -p xtask -- table",
            table::BEGIN,
            table::END
        )],
        Some(inside) if inside.trim() == table.trim() => Vec::new(),
        Some(_) => {
            vec![format!("README.md: the table is not what abilities() says: cargo run -p xtask -- fix. It says:\n{table}")]
        }
    }
}

/// The public API is what was committed.
pub(super) fn api(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, now) in api::listings(tree) {
        let committed: Vec<&str> = tree.text(&path).lines().collect();
        let now: Vec<&str> = now.lines().collect();
        if committed.is_empty() && !now.is_empty() {
            complaints.push(format!("{path}: not there"));
            continue;
        }
        let gone =
            committed.iter().filter(|line| !now.contains(line)).map(|line| format!("{path}: no longer there: {line}"));
        let new = now.iter().filter(|line| !committed.contains(line)).map(|line| format!("{path}: new: {line}"));
        complaints.extend(gone.chain(new));
    }
    if !complaints.is_empty() {
        complaints.push("if this change to the public API is meant: cargo run -p xtask -- api, and commit api/".to_owned());
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_is_not_on_the_map_is_found() {
        let of = |page: &str| code_map(&Tree::of(&[("crates/core/Cargo.toml", ""), ("ARCHITECTURE.md", page)])).len();
        assert_eq!(of("the core/ crate"), 0);
        assert_eq!(of("see `crates/core`"), 0);
        assert_eq!(of("crates/core/src/lib.rs"), 0);
        assert_eq!(of("at the core of it; crates/sqlite; hardcore/"), 1);
    }

    #[test]
    fn a_table_that_promises_more_is_found() {
        let table = "| store |\n|---|\n| memory |\n";
        assert_eq!(compare_table(&format!("x\n{}\n{table}{}\ny", table::BEGIN, table::END), table), [""; 0]);
        assert_eq!(compare_table(&format!("{}| store |\n| paper |{}", table::BEGIN, table::END), table).len(), 1);
        assert_eq!(compare_table("no table", table).len(), 1);
    }

    #[test]
    fn a_change_to_the_api_is_found() {
        let source = ("crates/core/src/lib.rs", "//! Core.\npub fn one() {}\n");
        let of = |listing: &str| {
            let manifest = ("crates/core/Cargo.toml", "[package]\nname = \"tenure-core\"");
            api(&Tree::of(&[manifest, source, ("api/tenure-core.txt", listing)])).len()
        };
        assert_eq!(of("pub fn one()\n"), 0);
        assert_eq!(of(""), 2);
        assert_eq!(of("pub fn one()\npub fn two()\n"), 2);
    }
}
