//! tenure in a deterministic simulation: one seed, one thread, paused time.
//!
//! A run draws a world from its seed (clients, names, what may go wrong), lets tasks take locks of every kind through
//! core's own client, keeper and guards over a store that loses, delays, repeats and reorders messages, and then checks
//! the whole history. The same seed gives the same history to the letter; a failing one prints the line that shows it
//! again.
//!
//! # Layout
//!
//! - `plan`: what a seed decides; `run`: one run from its seed to its verdict; [`sweep`]: many of them
//! - `world`: the network and everything else that changes; `store`: the server, made of core's record; `backend`: a
//!   client's end of it
//! - `workload`: what tasks do; `history`: what happened; `check`: whether it may have
//! - `quorum`: a quorum over a slow network, and whether its tokens rise
//! - [`Mutant`]: planted bugs, which the checker must catch
//!
//! `tests/models` has the exhaustive half: core's record and the keeper's rule in every interleaving of a small world.

mod backend;
mod check;
mod history;
mod mutant;
mod plan;
mod quorum;
mod rng;
mod run;
mod store;
mod sweep;
mod workload;
mod world;

pub use mutant::Mutant;
pub use quorum::tokens_of_a_quorum;
pub use run::{Run, run};
pub use sweep::{Swept, sweep};
