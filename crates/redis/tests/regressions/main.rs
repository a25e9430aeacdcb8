//! What reviews found, each kept as a test: an interleaving, a right or a server that once made the store promise too much.

mod cluster;
mod holding;
mod messages;
mod redlock;
mod requests;
mod rights;
mod runtimes;
// The same stage as the faults', of which this binary uses a part.
#[expect(dead_code, reason = "the faults use the rest")]
#[path = "../faults/stage.rs"]
mod stage;
