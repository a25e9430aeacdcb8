//! F3: somebody sets the server's wall clock, by which every lease in a database is measured.

use std::time::Duration;

use tenure_core::Instant;

use super::{Crowd, Database as _, LONG, Record, Store, Wish, client, leaves_nothing, line_is};
use crate::history::expect_sound;
use crate::servers::Step;
use crate::{Options as _, Shape, eventually, in_time};

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(9);
const MINUTE: Duration = Duration::from_secs(60);
const SKEWED: Wish = Wish { fsync: false, skewed: true, small_disk: false, connections: None };

/// To later: a lease ends before its time. Exclusion is seen to break, and the fence holds.
pub async fn exclusion_is_seen_to_break_when_it_is_set_to_later<S: Store>() {
    let (server, record) = (S::Server::start(SKEWED), Record::new());
    let (one, other) = (client::<S>(&server.url()).await, client::<S>(&server.url()).await);
    let old = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(TTL).unwrap(), "x").await;
    assert!(old.writes());
    server.step_clock(Step::Forward(MINUTE));
    let new = record.lock(&Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    assert!(old.checks() && new.checks(), "both trust their windows");
    assert!(new.writes());
    assert!(!old.writes(), "the resource knows better");
    record.expect_only_exclusion_broken();
    old.is_lost().await; // at its next renewal, long before its window ends
    assert!(Instant::now() < old.held.valid_until());
    new.releases().await.unwrap();
    drop(old);
    leaves_nothing::<S>(&server, [one, other]).await;
}

/// To earlier: nobody gets in before the holder's window is over, and tokens rise all the same.
pub async fn nobody_gets_in_early_when_it_is_set_to_earlier<S: Store>() {
    let (server, record) = (S::Server::start(SKEWED), Record::new());
    let (one, other) = (client::<S>(&server.url()).await, client::<S>(&server.url()).await);
    let [kept, next] = [&one, &other].map(|client| Shape::Mutex.make(client, "x").unwrap().ttl(SHORT).unwrap());
    let holder = record.lock(&kept, "x").await;
    server.step_clock(Step::Back(MINUTE));
    let first = holder.held.valid_until();
    // This brings its end down to the new time: a holder that died now would keep others out for no longer than ever.
    eventually("it is renewed", || holder.held.valid_until() > first).await;
    let leaving = async {
        line_is(&one, "x", 1).await;
        assert!(holder.checks());
        let token = holder.token();
        holder.releases().await.unwrap();
        token
    };
    // Who is not renewed is let in for the whole ttl, and a machine may stand still for as long as others are let in for.
    let unkept = next.clone().keep(false);
    let (handed, last) = tokio::join!(record.lock(&unkept, "x"), leaving);
    assert!(handed.token() > last, "tokens rise though the clock went back");
    handed.releases().await.unwrap();
    let next = record.lock(&next, "x").await;
    let first = next.held.valid_until();
    eventually("it is renewed", || next.held.valid_until() > first).await;
    next.releases().await.unwrap();

    // Nobody renews this one: it ends by time, a step later than it would have.
    let expiring = record.lock(&kept.keep(false), "x").await;
    let until = expiring.held.valid_until();
    server.step_clock(Step::Back(Duration::from_secs(1)));
    let next = record.lock(&Shape::Mutex.make(&other, "x").unwrap().keep(false), "x").await;
    assert!(Instant::now() > until);
    assert!(!expiring.checks());
    assert!(next.token() > expiring.token());
    next.releases().await.unwrap();
    expect_sound(&record.history());
    drop(expiring);
    leaves_nothing::<S>(&server, [one, other]).await;
}

/// It jumps to and fro under load: nobody hangs, and tokens never fall.
pub async fn a_crowd_outlives_a_clock_that_jumps<S: Store>() {
    let (server, record) = (S::Server::start(SKEWED), Record::new());
    let clients = [client::<S>(&server.url()).await, client::<S>(&server.url()).await];
    let crowd = Crowd::start(&record, "x", Shape::Mutex, &clients, 8, client::<S>(&server.url()).await);
    for step in [Step::Forward(MINUTE * 2), Step::Back(MINUTE * 5), Step::Forward(MINUTE), Step::Back(MINUTE)] {
        crowd.has_had(&record, 60).await;
        server.step_clock(step);
    }
    crowd.has_had(&record, 60).await;
    in_time("everybody is served", crowd.stop()).await;
    record.expect_fence_held();
    leaves_nothing::<S>(&server, clients).await;
}
