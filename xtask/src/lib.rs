//! Chores of this repository, in the language of the rest of it.
//!
//! # Layout
//!
//! - [`tidy`]: what the sources must look like where no compiler checks it; `tests/tidy.rs` runs each check as a test
//! - [`table`]: the README's table of kinds and stores, made from what each store says of itself
//! - [`api`]: every public name with its signature, committed in `api/`, so that a change to it is a diff someone reads
//! - [`attack`]: random histories of every store under every fault, and what came of them
//! - [`runner`]: the workspace's test programs, side by side
//! - [`mutants`]: bugs planted on purpose, each with the test that must fail
//! - [`tree`], [`manifest`]: how they see the repository

pub mod api;
pub mod attack;
pub mod manifest;
pub mod mutants;
pub mod runner;
pub mod table;
pub mod tidy;
pub mod tree;
