//! The suite every store must pass: write a [`Harness`] of a few lines, and [`conformance!`] makes one real test of every
//! promise for it.
//!
//! ```text
//! tenure_testkit::conformance!(sqlite => SqliteHarness);   // gives `sqlite::cancel::while_queued` and all the others
//! ```
//!
//! # Layout
//!
//! - [`Harness`]: what a store's author writes; [`MemoryHarness`] is the one to copy
//! - [`cases!`]: the list of all cases, which exists once; [`suite`]: the cases, a file for each promise
//! - [`history`]: what happened in a test, and whether it may have (pure; the simulation uses it too)
//! - [`histories`]: what random histories are made of, with which a server that repeats the entry rule is held to it
//! - [`mod@fences`]: the same for fences, with a list of its own
//! - [`Faulty`]: a store with faults at the flick of a switch; [`taker`]: a second process, to be killed and stopped
//! - [`servers`]: real ones, which end with the test; [`proxy`]: a network with faults in front of them; [`mod@faults`]: what
//!   happens to databases then
//! - [`attack`]: random histories of every store under every fault
//! - [`in_bound`]: bounds in time on a machine that may stand still
//! - [`tasks_in_turn`]: tasks of one client that are in a hurry, beside somebody else
//! - [`shops`]: selling the last item, in as many ways as there are locks
//! - [`names`]: names that look like something else; [`polls`]: a future that is dropped after so many polls
//! - [`Scene`], [`Lock`], [`claim()`], [`eventually`]: what the cases are written with
//!
//! Cases do not depend on how fast the machine is: they wait for conditions, with one generous limit, and where a
//! promise is about time they compare instants that cannot be in another order.

mod at_home;
pub mod attack;
mod bound;
mod cases;
mod claims;
pub mod faults;
pub mod faulty;
pub mod fenced;
pub mod fences;
mod harness;
pub mod histories;
pub mod history;
mod in_turn;
mod lock;
pub mod names;
pub mod polls;
pub mod proxy;
mod rng;
mod scene;
mod seen;
pub mod servers;
pub mod shops;
mod silence;
mod stopped;
mod stress;
pub mod suite;
pub mod taker;
mod wait;

pub use at_home::AtHome;
pub use bound::{Stall, in_bound, unless_stalled, unless_stalled_blocking};
pub use claims::claim;
pub use faulty::{Faults, Faulty};
pub use harness::{Harness, MemoryHarness, Sabotage};
pub use in_turn::tasks_in_turn;
pub use lock::{Held, Lock, Options, Shape};
pub use rng::Rng;
pub use scene::{Need, Scene, run, run_as, serve};
pub use seen::until_all_are_seen;
pub use silence::Silence;
pub use stopped::stop_between_writes;
#[doc(hidden)]
pub use tenure_core::Kind;
pub use wait::{LIMIT, eventually, eventually_async, in_time};
