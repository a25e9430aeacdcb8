//! Members that are killed, paused, restarted and cut off, while crowds lock and unlock on record.

use tenure_core::{Client, Instant};
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::history::expect_sound_but_order;
use tenure_testkit::servers::zookeeper::Ensemble;
use tenure_testkit::{Options as _, Shape, eventually, eventually_async, unless_stalled};

use crate::stage::{LONGER, T, Witnesses, client, clients, ensemble, leaves_nothing, lets_go, only};

/// How many grants each crowd must have before and after each fault.
const GRANTS: usize = 25;

/// Two crowds over the same clients. Their ttls are such that the going of the one in front is the grant of the next: one wants a
/// fair mutex, and has sessions that outlive a fault; the other's sessions may end in one.
struct Crowds {
    fair: (Crowd, Record),
    short: (Crowd, Record),
}

impl Crowds {
    fn start(clients: &[Client], observer: &Client) -> Self {
        let start = |name, shape, ttl, tasks| {
            let record = Record::new();
            (Crowd::start_with(&record, name, shape, ttl, clients, tasks, observer.clone()), record)
        };
        Crowds { fair: start("fair", Shape::FairMutex, LONGER, 6), short: start("short", Shape::Mutex, T, 4) }
    }

    /// Waits until both have had so many grants more.
    async fn have_had(&self, more: usize) {
        for (crowd, record) in [&self.fair, &self.short] {
            crowd.has_had(record, more).await;
        }
    }
}

/// Crowds over clients of all members see a fault, and go on afterwards.
async fn crowds_outlive(fault: impl AsyncFnOnce(&Ensemble, &Crowds)) {
    let ensemble = ensemble();
    let crowding = clients(&ensemble, 3).await;
    let observer = client(&ensemble.url()).await;
    let witnesses = Witnesses::of(&crowding).await;
    let crowds = Crowds::start(&crowding, &observer);
    crowds.have_had(GRANTS).await;
    let began = Instant::now();
    fault(&ensemble, &crowds).await;
    crowds.have_had(GRANTS).await;
    eprintln!("hurt, and going on again after {:?}", Instant::now().since(began));
    let Crowds { fair: (fair, in_order), short: (short, record) } = crowds;
    fair.stop().await;
    short.stop().await;
    witnesses.expect_sound(&in_order);
    expect_sound_but_order(&record.history());
    leaves_nothing(&observer, "fair", crowding).await;
    leaves_nothing(&observer, "short", vec![]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed() {
    crowds_outlive(async |ensemble, crowds| {
        let leader = ensemble.leader();
        ensemble.member(leader).kill();
        crowds.have_had(GRANTS).await; // the others carry on
        ensemble.member(leader).restart();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_cut_off() {
    crowds_outlive(async |ensemble, crowds| {
        let leader = ensemble.leader();
        ensemble.cut(leader);
        crowds.have_had(GRANTS).await;
        ensemble.heal(leader);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_stands_still() {
    crowds_outlive(async |ensemble, crowds| {
        let leader = ensemble.leader();
        ensemble.member(leader).pause();
        crowds.have_had(GRANTS).await;
        ensemble.member(leader).resume();
    })
    .await;
}

/// One follower stands still while the other is killed and comes back: for a while there is no quorum at all, and then one without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_restarts_beside_a_slow_follower() {
    crowds_outlive(async |ensemble, crowds| {
        let leader = ensemble.leader();
        let (slow, restarts) = ((leader + 1) % 3, (leader + 2) % 3);
        ensemble.member(slow).pause();
        ensemble.member(restarts).kill();
        let killed = Instant::now();
        ensemble.member(restarts).restart(); // until it serves: it and the leader are two of three
        eprintln!("without the slow one there was a quorum again after {:?}", Instant::now().since(killed));
        crowds.have_had(GRANTS / 3).await;
        ensemble.member(slow).resume();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_restart_one_by_one() {
    crowds_outlive(async |ensemble, crowds| {
        for member in ensemble.members() {
            member.kill();
            crowds.have_had(GRANTS / 3).await;
            member.restart();
            ensemble.wait_healthy();
        }
    })
    .await;
}

/// A holder whose only member is a leader that was cut off from the others: it is still answered for a while, and must know all
/// the same that it is lost before the others let anybody in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_the_minority_is_lost_in_time() {
    for leads in [true, false] {
        let (ensemble, record) = (ensemble(), Record::new());
        let leader = ensemble.leader();
        let lonely = if leads { leader } else { (leader + 1) % 3 };
        let others: Vec<String> =
            (0..3).filter(|number| *number != lonely).map(|number| ensemble.member(number).address().to_string()).collect();
        let minority = client(&only(ensemble.member(lonely).address())).await;
        let majority = client(&format!("zk://{}", others.join(","))).await;
        let lock = Shape::Mutex.make(&minority, "x").unwrap().ttl(T).unwrap();
        let is_renewed = async || {
            let holder = record.lock(&lock, "x").await;
            let first = holder.held.valid_until();
            eventually("it is renewed or lost", || holder.held.valid_until() > first || !holder.checks()).await;
            if holder.held.valid_until() > first {
                return Some(holder);
            }
            lets_go(holder.releases().await);
            None
        };
        let holder = unless_stalled("a hold is renewed", T / 2, is_renewed).await;
        let lock = Shape::Mutex.make(&majority, "x").unwrap().ttl(T).unwrap();
        let waiting = record.lock(&lock, "x");
        let hurting = async {
            // Or it is lost already, by the machine's doing, and the other is in.
            let waits = async || majority.view("x").await.is_ok_and(|view| view.line.len() == 1) || !holder.checks();
            eventually_async("the other waits", waits).await;
            // The holder's own node, and the waiter's look at it: from then on the waiter is patient.
            eventually("both watch", || ensemble.count("zk_watch_count") >= 2 || !holder.checks()).await;
            ensemble.cut_peers(lonely);
            holder.is_lost().await;
            assert!(!holder.checks());
        };
        let (next, ()) = tokio::join!(waiting, hurting);
        assert!(next.token() > holder.token());
        assert!(next.writes() && !holder.writes());
        ensemble.heal(lonely);
        holder.releases().await.unwrap_err();
        lets_go(next.releases().await);
        expect_sound_but_order(&record.history());
    }
}
