//! Members that are killed, paused, restarted and cut off, while a crowd locks and unlocks on record.

use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::history::expect_sound_but_order;
use tenure_testkit::servers::zookeeper::Ensemble;
use tenure_testkit::{Options as _, Shape, eventually, eventually_async};

use crate::stage::{T, client, clients, ensemble, leaves_nothing, lets_go, only};

/// How many grants there must be before and after each fault.
const GRANTS: usize = 30;

/// A crowd over clients of all members sees a fault, and goes on afterwards.
async fn a_crowd_outlives(fault: impl AsyncFnOnce(&Ensemble, &Crowd, &Record)) {
    let (ensemble, record) = (ensemble(), Record::new());
    let crowding = clients(&ensemble, 3).await;
    let observer = client(&ensemble.url()).await;
    let crowd = Crowd::start(&record, "x", Shape::Mutex, &crowding, 9, client(&ensemble.url()).await);
    crowd.has_had(&record, GRANTS).await;
    fault(&ensemble, &crowd, &record).await;
    crowd.has_had(&record, GRANTS).await;
    crowd.stop().await;
    // Whoever loses its session loses its place: order is not promised through that, all the rest is.
    expect_sound_but_order(&record.history());
    leaves_nothing(&observer, "x", crowding).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed() {
    a_crowd_outlives(async |ensemble, crowd, record| {
        let leader = ensemble.leader();
        ensemble.member(leader).kill();
        crowd.has_had(record, GRANTS).await; // the others carry on
        ensemble.member(leader).restart();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_cut_off() {
    a_crowd_outlives(async |ensemble, crowd, record| {
        let leader = ensemble.leader();
        ensemble.cut(leader);
        crowd.has_had(record, GRANTS).await;
        ensemble.heal(leader);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_stands_still() {
    a_crowd_outlives(async |ensemble, crowd, record| {
        let leader = ensemble.leader();
        ensemble.member(leader).pause();
        crowd.has_had(record, GRANTS).await;
        ensemble.member(leader).resume();
    })
    .await;
}

/// One follower stands still while the other is killed and comes back: for a while there is no quorum at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_restarts_beside_a_slow_follower() {
    a_crowd_outlives(async |ensemble, crowd, record| {
        let leader = ensemble.leader();
        let (slow, restarts) = ((leader + 1) % 3, (leader + 2) % 3);
        ensemble.member(restarts).kill();
        ensemble.member(slow).pause();
        std::thread::scope(|scope| {
            let restarting = scope.spawn(|| ensemble.member(restarts).restart());
            ensemble.member(slow).resume();
            restarting.join().expect("it comes back");
        });
        crowd.has_had(record, GRANTS).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_restart_one_by_one() {
    a_crowd_outlives(async |ensemble, crowd, record| {
        for member in ensemble.members() {
            member.kill();
            crowd.has_had(record, GRANTS / 3).await;
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
        let mut renewed = None;
        for _ in 0..10 {
            let holder = record.lock(&lock, "x").await;
            let first = holder.held.valid_until();
            eventually("it is renewed or lost", || holder.held.valid_until() > first || !holder.checks()).await;
            if holder.held.valid_until() > first {
                renewed = Some(holder);
                break;
            }
            lets_go(holder.releases().await); // the machine has stood still: once more
        }
        let holder = renewed.expect("it was not lost ten times");
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
