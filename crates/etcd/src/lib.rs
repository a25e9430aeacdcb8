#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend; `tls`: how a member is reached
//! - `proto`: etcd's messages; `wire`: its calls; `link`: the way to the members, and from one to the next
//! - `schema`: what is in etcd, and under which keys; `codec`: what is in a claim's value; `line`: who gets in, by a few reads
//! - `backend`: the contract; `inner`: what a client's tasks share; `table`: its claims; `leases`: what they are on
//! - `ask`: asking; `wait`: waiting in line; `ear`: being told; `renew`: renewals; `end`: endings; `downgrade`: writers that become readers
//! - `show`: views, listings, asking and breaking; `cell`: cells
//! - `error`: what etcd's errors mean; `examine`: what is found out about a cluster, at connecting and for `doctor`

#![forbid(unsafe_code)]

mod ask;
mod backend;
mod cell;
mod codec;
mod config;
mod connect;
mod downgrade;
mod ear;
mod end;
mod error;
mod examine;
mod inner;
mod leases;
mod line;
mod link;
mod proto;
mod renew;
#[cfg(test)]
mod scene;
mod schema;
mod show;
mod table;
mod tls;
mod wait;
mod wire;

pub use backend::{ABILITIES, CONCURRENCY_ABILITIES, Etcd};
pub use config::{Layout, PARAMETERS, SCHEMES, Settings};
pub use connect::connect;
