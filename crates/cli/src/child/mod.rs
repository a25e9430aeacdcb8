//! The child of `tenure run NAME -- COMMAND…`: started, watched, and never left behind.
//!
//! A lock that guards a command is only worth as much as the sentence "the command runs only while
//! the lock is held". This module keeps that sentence true for the command *and everything it
//! started*, and otherwise tries to be invisible: the command has the terminal, the signals, the
//! standard streams and the exit code it would have had without us.
//!
//! # Layout
//!
//! | file | idea |
//! |---|---|
//! | `order` | what to run, what to do at loss, how it ended: plain data |
//! | `report` | whether the command has really started |
//! | `signals` | the signals of this process as one stream |
//! | `start` | from an [`Order`] to a running [`Child`], with no race for the terminal |
//! | `supervise` | the loop that runs while the command does |
//! | `terminal` | lending the terminal to the command, and getting it back |
//! | `tree` | who descends from a process, read from `/proc`, and signals that reach no other |
//! | `watchdog` | what happens to the command when we are killed or stopped |
//! | `shim` | the other ends of the above: this same program, started again as a small helper |
//! | `leave` | ending this process so that the shell above understands why |
//!
//! # Why a shim
//!
//! Several things must happen between `fork` and `exec`, or in a process with other signal
//! dispositions than ours. `pre_exec` and `sigaction` are `unsafe`, and this workspace forbids it.
//! So `tenure` starts itself under the hidden first argument [`ENTRY`] and does them there, in safe
//! code. `main` must hand over to [`shim()`] before it parses anything.
//!
//! # Limits, stated
//!
//! - A stopped `tenure` (Ctrl-Z) does not renew. The command is stopped too, so nothing runs without
//!   the lock; but if the lease ends meanwhile, the command is ended right after `fg` or `bg`.
//! - The kernel forgets a parent-death signal when a set-user-ID program is executed, and refuses our
//!   signals to it. Write `sudo tenure run …`, not `tenure run … sudo …`.
//! - If we are killed with SIGKILL, a process is missed that left the command's process group and lost
//!   its parent, both within the last half second; see `watchdog`.
//! - A watchdog and its supervisor that are killed or stopped in one moment see to nothing.
//! - A process in uninterruptible sleep dies only when the kernel lets it; we wait for it.

mod leave;
mod order;
mod report;
mod shim;
mod signals;
mod start;
mod supervise;
mod terminal;
mod tree;
mod watchdog;

pub(crate) use self::leave::leave;
pub(crate) use self::order::{Ending, Leftovers, OnLost, Order, Outcome, Stop, kill_time};
pub(crate) use self::report::{Failed, Start};
pub(crate) use self::shim::{ENTRY, shim};
pub(crate) use self::signals::{Signals, unblock};
pub(crate) use self::start::Child;
pub(crate) use self::terminal::signal_group;
pub(crate) use self::tree::name_of;
pub(crate) use self::watchdog::Line;
