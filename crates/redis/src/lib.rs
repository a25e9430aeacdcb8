//! The Redis store of tenure.

#![forbid(unsafe_code)]
#![allow(dead_code)]

mod backend;
mod cluster;
mod codec;
mod config;
mod ear;
mod error;
mod examine;
mod fleet;
mod link;
mod renew;
mod schema;
mod scripts;
mod sentinel;
mod tls;
mod verbs;
