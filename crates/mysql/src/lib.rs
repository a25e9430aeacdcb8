//! The MySQL and MariaDB store.
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend; `tls`: certificates
//! - `schema`: what is in the database, and `sql/`: its tables and procedures, which are the algorithm
//! - `verbs`: each verb as a statement and its answer; `desk`: each verb's way to the server
//! - `link`: one connection; `dialect`: in what the two servers differ
//! - `error`: what the server's errors mean; `examine`: what is found out about a server, at connecting and for `doctor`

#![forbid(unsafe_code)]

mod config;
mod connect;
mod desk;
mod dialect;
mod error;
mod examine;
mod link;
mod schema;
mod tls;
mod verbs;

pub use config::{Liveness, PARAMETERS, SCHEMES, Settings};
pub use connect::{connect, migrate};
pub use desk::ABILITIES;
pub use schema::schema;
