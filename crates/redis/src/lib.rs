//! The Redis store of tenure.

#![forbid(unsafe_code)]
#![allow(dead_code)]

mod backend;
mod cluster;
mod codec;
mod config;
mod connect;
mod ear;
mod error;
mod examine;
mod fleet;
mod inner;
mod link;
mod redlock;
mod renew;
mod schema;
mod scripts;
mod sentinel;
mod tls;
mod together;
mod verbs;
mod wait;

pub use backend::{ABILITIES, Redis};
pub use config::{Address, PARAMETERS, SCHEMES, Secret, Settings, Tls, Topology};
pub use connect::connect;
pub use redlock::REDLOCK_ABILITIES;
