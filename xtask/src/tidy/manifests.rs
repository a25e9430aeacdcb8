//! Which crate may build on which, and that every crate has the workspace's lints.

use crate::manifest::Manifest;
use crate::tree::Tree;

/// All that core may be built from. A driver would arrive here first, so what is not in this list has to be argued for.
/// The last four sign sequencers; `async-trait` runs in the compiler only, and spares each of a store's methods a box by hand.
const CORE_IS_BUILT_FROM: &[&str] =
    &["tokio", "rustix", "getrandom", "futures-core", "async-trait", "hmac", "sha2", "base64", "zeroize"];

/// The crates that are neither core nor a store, and the crates of this workspace each may name; `*` is every store.
/// Whatever is not here is a store, and a store names core alone.
const ARROWS: &[(&str, &[&str])] = &[
    ("tenure", &["tenure-core", "tenure-http", "*"]),
    ("tenure-http", &["tenure-core"]),
    ("tenure-cli", &["tenure"]),
    ("tenure-tls", &["tenure-core"]),
    ("tenure-testkit", &["tenure-core"]),
    ("tenure-sim", &["tenure-core", "tenure-testkit"]),
    ("tenure-examples", &["tenure"]),
    ("xtask", &["tenure", "tenure-testkit"]),
    ("tenure-peers", &["tenure", "tenure-testkit"]),
];

/// Arrows go downward only: core names no store and no driver, a store names no other store, and the command has no
/// private door. Dev-dependencies are free.
pub(super) fn arrows(tree: &Tree) -> Vec<String> {
    let manifests = manifests(tree);
    let ours: Vec<&str> = manifests.iter().map(|(_, manifest)| manifest.name.as_str()).collect();
    let is_store = |name: &str| name != "tenure-core" && !ARROWS.iter().any(|(known, _)| *known == name);
    let mut complaints = Vec::new();
    for (path, Manifest { name, dependencies, .. }) in &manifests {
        let allowed = match ARROWS.iter().find(|(known, _)| known == name) {
            Some((_, allowed)) => *allowed,
            None if name == "tenure-core" => &[],
            None => &["tenure-core", "tenure-tls"],
        };
        for dependency in dependencies {
            let inside = ours.contains(&dependency.as_str());
            let allowed = match inside {
                true => allowed.contains(&dependency.as_str()) || (allowed.contains(&"*") && is_store(dependency)),
                false => name != "tenure-core" || CORE_IS_BUILT_FROM.contains(&dependency.as_str()),
            };
            if !allowed {
                complaints.push(format!("{path}: {name} may not depend on {dependency} (ARCHITECTURE.md, invariant 1)"));
            }
        }
    }
    complaints
}

/// Every crate has the workspace's lints, and those forbid unsafe code.
pub(super) fn lints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    if !Manifest::parse(tree.text("Cargo.toml")).forbids_unsafe {
        complaints.push("Cargo.toml: [workspace.lints.rust] must say unsafe_code = \"forbid\"".to_owned());
    }
    for (path, manifest) in manifests(tree) {
        // Examples print, as a reader's program would, so they have lints of their own.
        let has_its_own = path.starts_with("examples/") && manifest.forbids_unsafe;
        if !manifest.inherits_lints && !has_its_own {
            complaints.push(format!("{path}: add [lints] workspace = true"));
        }
    }
    complaints
}

/// The manifests of all members.
fn manifests(tree: &Tree) -> Vec<(&str, Manifest)> {
    let members = tree.files().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    members.map(|(path, text)| (path, Manifest::parse(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complaints about a workspace of (package, dependencies).
    fn arrows_of(members: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> = members
            .iter()
            .map(|(name, dependencies)| {
                let lines: String = dependencies.split_whitespace().map(|name| format!("{name} = \"1\"\n")).collect();
                (format!("crates/{name}/Cargo.toml"), format!("[package]\nname = \"{name}\"\n[dependencies]\n{lines}"))
            })
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        arrows(&Tree::of(&files))
    }

    #[test]
    fn arrows_that_go_downward_are_good() {
        let good = [
            ("tenure-core", "tokio rustix"),
            ("tenure-sqlite", "tenure-core rusqlite"),
            ("tenure-redis", "tenure-core redis"),
            ("tenure", "tenure-core tenure-sqlite tenure-redis"),
            ("tenure-cli", "tenure clap"),
            ("tenure-testkit", "tenure-core"),
            ("tenure-sim", "tenure-core tenure-testkit"),
        ];
        assert_eq!(arrows_of(&good), [""; 0]);
    }

    #[test]
    fn arrows_that_go_elsewhere_are_found() {
        let neighbours = [("tenure-core", ""), ("tenure-sqlite", ""), ("tenure", ""), ("tenure-testkit", "")];
        for (name, dependency) in [
            ("tenure-core", "tenure-sqlite"),
            ("tenure-core", "rusqlite"),
            ("tenure-redis", "tenure-sqlite"),
            ("tenure-redis", "tenure"),
            ("tenure-redis", "tenure-testkit"),
            ("tenure", "tenure-testkit"),
            ("tenure-cli", "tenure-core"),
            ("tenure-cli", "tenure-sqlite"),
            ("tenure-testkit", "tenure-sqlite"),
            ("tenure-sim", "tenure"),
        ] {
            let others = neighbours.into_iter().filter(|(other, _)| *other != name);
            let complaints = arrows_of(&others.chain([(name, dependency)]).collect::<Vec<_>>());
            assert_eq!(complaints.len(), 1, "{name} → {dependency}: {complaints:?}");
        }
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let root = ("Cargo.toml", "[workspace.lints.rust]\nunsafe_code = \"forbid\"");
        let member = ("crates/x/Cargo.toml", "[lints]\nworkspace = true");
        assert_eq!(lints(&Tree::of(&[root, member])), [""; 0]);
        assert_eq!(lints(&Tree::of(&[root, ("crates/x/Cargo.toml", "[package]")])).len(), 1);
        assert_eq!(lints(&Tree::of(&[("Cargo.toml", ""), member])).len(), 1);
        let own = "[lints.rust]\nunsafe_code = \"forbid\"";
        assert_eq!(lints(&Tree::of(&[root, ("examples/Cargo.toml", own)])), [""; 0]);
        assert_eq!(lints(&Tree::of(&[root, ("crates/x/Cargo.toml", own)])).len(), 1);
    }
}
