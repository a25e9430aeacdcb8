#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings, URLs, the default path; `schema`: how the file is found to be ours, made and opened
//! - `backend`: the verbs; `transaction`: what they run in; `batch`: many of them in one
//! - `ear`: waiting, and being woken by other processes; `death`: which processes are alive; `renew`: renewals
//! - `store`: what a client's tasks and threads share; `tidy`: nothing is left
//! - `in_transaction`: the lock that ends with the user's own commit; `fence`: writes that the database refuses when late
//! - `codec`: records as bytes; `error`: what SQLite's errors mean; `examine`: what `doctor` sees

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("the SQLite store needs Linux: boot ids, pidfds, abstract sockets and CLOCK_BOOTTIME");

mod backend;
mod batch;
mod codec;
mod config;
mod death;
mod ear;
mod error;
mod examine;
mod fence;
mod in_transaction;
mod renew;
mod schema;
mod store;
mod tidy;
mod transaction;

pub use backend::{ABILITIES, Sqlite};
pub use config::{PARAMETERS, SCHEMES, Settings, connect, default_path, open_default};
pub use fence::{Fence, fence, open_fence};
pub use in_transaction::{Begin, InTransaction, attach, begin, in_transaction, is_conflict};
