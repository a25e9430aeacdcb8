//! F15, F21: a client that is cut off, for a third of its ttl and for longer than it; and one whose lease ends while it waits.

use std::time::Duration;

use tenure_core::ErrorKind;
use tenure_testkit::faults::Record;
use tenure_testkit::history::expect_sound;
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, Stage, change, leases, leaves_nothing, lets_go, line_is};

const TTL: Duration = Duration::from_secs(9);
/// Of a hold that must be kept: the machine may stand still on top of whatever else happens.
const LONGER: Duration = Duration::from_secs(20);

/// For a third of its ttl it keeps its hold; for longer than that it loses it before anybody else gets in, if at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_cut_off() {
    for (part, ttl) in [(0.3, LONGER), (0.7, TTL), (1.2, TTL)] {
        let (stage, record) = (Stage::new(), Record::new());
        let (one, other) = (stage.proxied(ttl).await, stage.direct().await);
        let held = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(ttl).unwrap(), "x").await;
        let first = held.held.valid_until();
        eventually("it is renewed", || held.held.valid_until() > first).await;
        let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap();
        let waiting = record.lock(&lock, "x"); // the record says whether it came too early
        let hurting = async {
            line_is(&other, "x", 1).await;
            stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
            let until = held.held.valid_until();
            tokio::time::sleep(ttl.mul_f64(part)).await;
            stage.proxy.heal();
            if part < 0.5 {
                eventually("it is renewed again", || held.held.valid_until() > until).await;
                assert!(held.checks(), "a third of a ttl is nothing");
            }
            if part > 1.0 {
                held.is_lost().await;
            }
            let kept = held.checks();
            assert!(kept || part > 0.5);
            match in_time("an answer", held.releases()).await {
                Ok(()) => assert!(kept),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
            }
        };
        let (next, ()) = tokio::join!(waiting, hurting);
        lets_go(next.releases().await);
        expect_sound(&record.history());
        leaves_nothing(&stage.cluster, [one, other]).await;
    }
}

/// The first in line is cut off for so long that its lease ends: the second is let in, and the first asks anew, behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_at_the_head_of_the_line() {
    let (stage, record) = (Stage::new(), Record::new());
    let ttl = Duration::from_secs(6);
    let (holder, first, second) = (stage.direct().await, stage.proxied(ttl).await, stage.direct().await);
    let held = record.lock(&Shape::FairMutex.make(&holder, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    // Not renewed, so each is let in for all of its ttl: a pause after the hand-over does not lose it.
    let (first_lock, second_lock) = (
        Shape::FairMutex.make(&first, "x").unwrap().ttl(ttl).unwrap().keep(false),
        Shape::FairMutex.make(&second, "x").unwrap().ttl(LONG).unwrap().keep(false),
    );
    let first_in_line = async {
        let next = record.lock(&first_lock, "x").await;
        assert!(next.checks());
        let token = next.token();
        lets_go(next.releases().await);
        token
    };
    let second_in_line = async {
        line_is(&holder, "x", 1).await;
        let next = record.lock(&second_lock, "x").await;
        assert!(next.checks());
        let token = next.token();
        stage.proxy.heal();
        line_is(&holder, "x", 1).await; // the first is behind it now
        next.releases().await.unwrap();
        token
    };
    let hurting = async {
        line_is(&holder, "x", 2).await;
        stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
        line_is(&holder, "x", 1).await; // its lease has ended, and its place with it
        held.releases().await.unwrap();
    };
    let (first_token, second_token, ()) = tokio::join!(first_in_line, second_in_line, hurting);
    assert!(first_token > second_token);
    leaves_nothing(&stage.cluster, [holder, first, second]).await;
}

/// Somebody removes a waiter's key by hand: it stands in line again, at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_somebody_removed_is_taken_again() {
    let stage = Stage::new();
    let (one, other) = (stage.direct().await, stage.direct().await);
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().note("waits").unwrap();
    let mutex = mutex.keep(false); // so it is let in for all of its ttl: a pause after the hand-over does not lose it
    let waiting = tokio::spawn(async move { mutex.lock().await });
    line_is(&one, "x", 1).await;
    let keys = stage.cluster.ctl(&["get", "--prefix", "tenure/lock/x "]);
    let lines: Vec<&str> = keys.lines().collect();
    let note = lines.iter().position(|line| *line == "waits").expect("its note is its value's first line");
    change(&stage.cluster, &["del", lines[note - 1]]).await;
    eventually("it stands in line again", || {
        let now = stage.cluster.ctl(&["get", "--prefix", "tenure/lock/x "]);
        now.lines().any(|line| line == "waits")
    })
    .await;
    held.release().await.unwrap();
    let next = in_time("it is let in", waiting).await.unwrap().unwrap();
    next.check().unwrap();
    next.release().await.unwrap();
    leaves_nothing(&stage.cluster, [one, other]).await;
}

/// A waiter gives up while there is no member, for longer than anybody tries to end its claim. Its client lives on, and so does its
/// lease, since a new leader counts from its own start: its place is given back when there is a cluster again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_while_nobody_is_there() {
    let stage = Stage::new();
    let (one, other) = (stage.direct().await, stage.direct().await);
    let ttl = Duration::from_secs(2);
    let held = other.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let beside = other.mutex("y").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let asks = |name| {
        let mutex = one.mutex(name).unwrap().ttl(ttl).unwrap();
        tokio::spawn(async move { mutex.lock().await })
    };
    let (gives_up, stays) = (asks("x"), asks("y"));
    line_is(&other, "x", 1).await;
    line_is(&other, "y", 1).await;
    stage.cluster.members().iter().for_each(|member| member.kill());
    gives_up.abort();
    tokio::time::sleep(ttl * 3).await; // the fault itself is a length of time
    stage.cluster.restart_all();
    line_is(&other, "y", 1).await; // the same client waits there
    line_is(&other, "x", 0).await;
    held.release().await.unwrap();
    beside.release().await.unwrap();
    lets_go(in_time("the other is let in", stays).await.unwrap().unwrap().release().await);
    leaves_nothing(&stage.cluster, [one, other]).await;
}

/// Whoever asks gives up before it hears that the cluster has made its lease. That lease would last for an hour: the client revokes it
/// when it is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_leaves_no_lease() {
    let stage = Stage::new();
    let client = stage.proxied(LONG).await;
    for round in 0..3 {
        let before = leases(&stage.cluster);
        let unheard = stage.proxy.set(Which::All, Fault::Hold(Toward::Client));
        let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(3_600 + round)).unwrap();
        let asking = tokio::spawn(async move { mutex.lock().await });
        eventually("the lease is made", || leases(&stage.cluster) > before).await;
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        stage.proxy.lift(unheard);
    }
    leaves_nothing(&stage.cluster, [client]).await;
    assert_eq!(leases(&stage.cluster), 0);
}
