//! A real ensemble of three, hurt in every way that is known: what the store promises holds, by the history checker.
//!
//! - `stage`: an ensemble of its own for each test, whose sessions are short, and clients of it
//! - `members`: leaders and followers that are killed, paused, restarted and cut off
//! - `network`: what happens between one client and the servers

mod members;
mod network;
#[path = "../common/raw.rs"]
mod raw;
mod stage;
