#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend; `tls`: certificates
//! - `schema`: what is in the database, and `sql/`: its tables and procedures, which are the algorithm
//! - `verbs`: each verb as a statement and its answer; `desk`: each verb's way to the server; `solo`: when the short way is
//!   worth trying
//! - `link`: one connection; `dialect`: in what the two servers differ
//! - `in_transaction`: the row lock that ends with the user's own commit; `fence`: writes that the database refuses when
//!   late; `driver`: whose transactions can do both
//! - `error`: what the server's errors mean; `examine`: what is found out about a server, at connecting and for `doctor`

#![forbid(unsafe_code)]

mod config;
mod connect;
mod desk;
mod dialect;
mod driver;
#[cfg(test)]
mod entry_rule;
mod error;
mod examine;
mod fence;
mod in_transaction;
mod link;
mod schema;
mod solo;
mod tls;
mod verbs;

pub use config::{PARAMETERS, SCHEMES, Settings};
pub use connect::{connect, migrate};
pub use desk::ABILITIES;
pub use driver::{Driver, is_conflict};
pub use fence::{Fence, fence, open_fence};
pub use in_transaction::{InTransaction, in_transaction};
pub use schema::schema;
