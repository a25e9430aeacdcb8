//! Real servers, hurt in every way that is known: what the store promises holds, and where it promises nothing (a server
//! that forgets, a clock that jumps) exclusion is *seen* to break and the fence to hold.

mod clients;
mod clock;
mod ear;
mod failover;
mod late;
mod line;
mod memory;
mod outage;
mod replies;
mod residue;
mod restart;
mod stage;
mod storm;
mod twice;

/// The second process of `clients`; does nothing unless it was started to be one.
#[test]
fn taker() {
    tenure_testkit::serve::<stage::Store>();
}
