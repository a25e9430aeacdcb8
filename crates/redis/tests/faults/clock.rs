//! F3: somebody sets the server's wall clock, by which every lease on Redis is measured.

use std::time::Duration;

use tenure_core::{Instant, Token};
use tenure_testkit::history::expect_sound;
use tenure_testkit::servers::Step;
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{Crowd, LONG, Record, client, leaves_nothing, line_is};

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(9);
const MINUTE: Duration = Duration::from_secs(60);

/// To later: a lease ends before its time. Exclusion is seen to break, and the fence holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_when_it_is_set_to_later() {
    let (server, record) = (Redis::start(RedisOptions::new().skewed()), Record::new());
    let (one, other) = (client(&server.url()).await, client(&server.url()).await);
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
    leaves_nothing(&server, [one, other]).await;
}

/// To earlier: nobody gets in before the holder's window is over, and tokens rise all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_in_early_when_it_is_set_to_earlier() {
    let (server, record) = (Redis::start(RedisOptions::new().skewed()), Record::new());
    let (one, other) = (client(&server.url()).await, client(&server.url()).await);
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
    let next = record.lock(&Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap().keep(false), "x").await;
    assert!(Instant::now() > until);
    assert!(!expiring.checks());
    assert!(next.token() > expiring.token());
    next.releases().await.unwrap();
    expect_sound(&record.history());
    drop(expiring);
    leaves_nothing(&server, [one, other]).await;
}

/// It was a month ahead, and so is the last token. That is remembered until the clock is past it, however long nobody comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_from_a_clock_that_was_ahead_is_remembered_until_the_clock_is_past_it() {
    let server = Redis::start(RedisOptions::new().skewed());
    let client = client(&server.url()).await;
    let day = MINUTE * 60 * 24;
    let mut last = Token::new(0);
    for step in [Step::Forward(day * 30), Step::Back(day * 30), Step::Forward(day * 2)] {
        server.step_clock(step);
        let held = in_time("the lock is free", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap();
        assert!(held.token() > last, "{} is not above {last} after {step:?}", held.token());
        last = held.token();
        held.release().await.unwrap();
    }
    leaves_nothing(&server, [client]).await;
}

/// It jumps to and fro under load: nobody hangs, and tokens never fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_outlives_a_clock_that_jumps() {
    let (server, record) = (Redis::start(RedisOptions::new().skewed()), Record::new());
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let crowd = Crowd::start(&record, "x", Shape::Mutex, &clients, 8, client(&server.url()).await);
    for step in [Step::Forward(MINUTE * 2), Step::Back(MINUTE * 5), Step::Forward(MINUTE), Step::Back(MINUTE)] {
        crowd.has_had(&record, 60).await;
        server.step_clock(step);
    }
    crowd.has_had(&record, 60).await;
    in_time("everybody is served", crowd.stop()).await;
    record.expect_fence_held();
    leaves_nothing(&server, clients).await;
}
