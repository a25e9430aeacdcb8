#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend; `tls`: certificates
//! - `schema`: what is in a server, and under which keys; `scripts`: the algorithm, in Lua; `verbs`: each verb as a request and
//!   its answer; `codec`: tickets and messages as bytes
//! - `backend`: the contract; `inner`: what a client's tasks share, and each verb's way to its server; `wait`: asking and waiting
//!   in line; `ear`: being told; `renew`: renewals
//! - `link`: one connection; `fleet`: which server has a name, and how a request gets there; `sentinel`, `cluster`: asking where
//!   the servers are
//! - `redlock`: several servers as one store; `fence`: refusing who comes too late, at the resource
//! - `error`: what Redis's errors mean; `examine`: what is found out about a server, at connecting and for `doctor`

#![forbid(unsafe_code)]

mod backend;
mod cluster;
mod codec;
mod config;
mod connect;
mod ear;
#[cfg(test)]
mod entry_rule;
mod error;
mod examine;
mod fence;
mod fleet;
mod inner;
mod link;
mod redlock;
mod renew;
mod schema;
mod scripts;
mod sentinel;
mod tls;
mod verbs;
mod wait;

pub use backend::{ABILITIES, Redis};
pub use config::{PARAMETERS, SCHEMES, Settings, Topology};
pub use connect::connect;
pub use fence::open_fence;
pub use redlock::REDLOCK_ABILITIES;
