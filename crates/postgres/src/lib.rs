#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend, and the tables it needs
//! - `schema`: what is in the database; `owner`: whose it is; `sql/`: the tables, and the algorithm as functions of the server, a file for each verb
//! - `verbs`: each verb as a request and its answer; `desk`: each verb on the connection that is meant for it; all that a
//!   client does around them is in [`tenure_core::lease`]
//! - `link`: one connection; `login`: what it does not tell; `ear`: being told; `seal`: by whom
//! - `session`: the other way, with the server's own locks
//! - `in_transaction`: the row lock that ends with the user's own commit; `fence`: writes that the database refuses when late;
//!   `driver`: whose transactions can do both
//! - `error`: what PostgreSQL's errors mean; `examine`: what is found out about a server, at connecting and for `doctor`

#![forbid(unsafe_code)]

mod config;
mod connect;
mod desk;
mod driver;
mod ear;
#[cfg(test)]
mod entry_rule;
mod error;
mod examine;
mod fence;
mod in_transaction;
mod link;
mod login;
mod owner;
mod schema;
mod seal;
mod session;
mod verbs;

pub use config::{Liveness, PARAMETERS, SCHEMES, Settings};
pub use connect::{connect, migrate, schema};
pub use desk::ABILITIES;
pub use driver::{Driver, is_conflict};
pub use fence::{Fence, fence, open_fence};
pub use in_transaction::{InTransaction, in_transaction};
pub use session::SESSION_ABILITIES;
