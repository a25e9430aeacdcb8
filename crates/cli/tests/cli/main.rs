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
//! - `once`: what is not run again so soon
//! - `several`: several names, and the numbers of permits
//! - `signals`: `kill`, while waiting and while holding; children that ignore, fork and hide
//! - `leftovers`: what the command started outlives it
//! - `loss`: the lock goes, and the command with it, in time
//! - `reasons`: why a lock was lost, what has started, events beside the text, and nested calls
//! - `sequencer`: show, verify, key; what is signed
//! - `terminal`: Ctrl-C, Ctrl-Z and `fg` on a real pty; the live line
//! - `unread`: a stderr that is full, and that nobody reads
//! - `views`: ls, show, watch, ask, break, elect, doctor, completions, man
//! - `hold`: hold and release, for scripts
//! - `input`: what is refused, and leaves nothing behind
//! - `reader`: a closed pipe ends what prints
//! - `store`: which one, who may read it, connecting, passwords
//! - `waiting`: wait, ask --wait
//! - `watchdog`: tenure is stopped or killed, its watchdog too, and what has left the command's group
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
mod leftovers;
mod loss;
mod once;
mod reader;
mod reasons;
mod sequencer;
mod several;
mod signals;
mod store;
mod support;
mod terminal;
mod unread;
mod views;
mod waiting;
mod watchdog;
mod zookeeper;
