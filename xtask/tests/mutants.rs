//! The kept mutants still fit the sources: a list that nobody can run shows nothing.

use std::collections::HashSet;

use xtask::mutants;
use xtask::tree::Tree;

#[test]
fn every_mutant_can_still_be_planted() {
    let tree = Tree::here().unwrap();
    let mutants = mutants::all(&tree).unwrap();
    let complaints: Vec<_> = mutants.iter().flat_map(|mutant| mutant.complaints(&tree)).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    let names: HashSet<_> = mutants.iter().map(|mutant| &mutant.name).collect();
    assert_eq!(names.len(), mutants.len(), "two mutants have the same name");
}
