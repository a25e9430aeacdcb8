#![doc = include_str!("docs.md")]
//!
//! # Layout
//!
//! - `config`: settings and URLs; `connect`: from a URL to a backend; `error`: what went wrong, in words
//! - `wire`: messages as bytes; `dial`: making a connection; `sasl`: a login; `session`: what requests and answers share;
//!   `driver`: what keeps a session going; `trust`: until when it may be trusted, and why
//! - `layout`: names and nodes; `line`: who is in and whom a waiter watches; `ticket`: what a node says
//! - `backend`: the contract; `inner`: sessions and the book of claims; `ask`, `end`, `renew`, `downgrade`: the life of a claim;
//!   `look`: views, asks and breaks; `cells`: the optimistic lock; `tidy`: leaving nothing; `examine`: for `doctor`

#![forbid(unsafe_code)]

mod ask;
mod backend;
mod cells;
mod config;
mod connect;
mod dial;
mod downgrade;
mod driver;
mod end;
mod error;
mod examine;
mod inner;
mod layout;
mod line;
mod look;
mod renew;
mod sasl;
mod session;
mod ticket;
mod tidy;
mod trust;
mod wire;

pub use backend::{ABILITIES, ZooKeeper};
pub use config::{Login, PARAMETERS, SCHEMES, Settings};
pub use connect::connect;
pub use layout::Layout;
