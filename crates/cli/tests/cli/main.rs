//! The real binary, from outside: every test has a store file of its own, and waits for conditions, never for luck.
//!
//! - `support`: a store, a started `tenure`, and ways to wait
//! - `counter`: many processes, one file, and no update lost
//! - `databases`: schema, migrate, and rights
//! - `etcd`: run, ls, show, ask and break on a real server
//! - `exits`: exit codes, and what the command is told
//! - `fence`: what comes too late is refused, in a script
//! - `guide`: what docs/fencing.md shows in a shell
//! - `kinds`: writers, readers, permits, fairness, and names in use as another kind
//! - `signals`: `kill`, while waiting and while holding; children that ignore, fork and hide
//! - `loss`: the lock goes, and the command with it, in time
//! - `sequencer`: show, verify, key; what is signed
//! - `terminal`: Ctrl-C, Ctrl-Z and `fg` on a real pty; the live line
//! - `views`: ls, show, watch, ask, break, elect, doctor, completions, man
//! - `hold`: hold and release, for scripts
//! - `input`: what is refused, and leaves nothing behind
//! - `reader`: a closed pipe ends what prints
//! - `store`: which one, who may read it, connecting, passwords
//! - `waiting`: wait, ask --wait
//! - `zookeeper`: the commands on a real ZooKeeper

mod counter;
mod databases;
mod etcd;
mod exits;
mod fence;
mod guide;
mod hold;
mod input;
mod kinds;
mod loss;
mod reader;
mod sequencer;
mod signals;
mod store;
mod support;
mod terminal;
mod views;
mod waiting;
mod zookeeper;
