//! Real clusters, hurt in every way that is known: what the store promises holds. Every case has three members of its own, each
//! in its own network where the machine allows that.

mod clients;
mod closed;
mod leader;
mod leases;
mod member;
mod recovery;
mod replies;
mod slow;
mod space;
mod stage;

/// The second process of `recovery`; does nothing unless it was started to be one.
#[test]
fn taker() {
    tenure_testkit::serve::<stage::Store>();
}
