//! A member that is dead, paused or restarted costs nobody a failed call; all members are restarted, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::Client;
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::{Shape, eventually, in_time};
use tokio::task::JoinSet;

use crate::stage::{LONG, change, ended_by_others, leaves_nothing, lets_go, line_is, patient, silence_after};

/// Clients lock and release all the time, and none of their calls may fail, whatever happens to one member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_an_error() {
    let cluster = EtcdCluster::start();
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(patient(&cluster).await); // each begins at a member of its own choice
    }
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        let mutex = client.mutex(format!("x{}", number % 3)).unwrap().ttl(LONG).unwrap();
        let (over, done) = (Arc::clone(&over), Arc::clone(&done));
        tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                mutex.lock().await.expect("no call fails").release().await.expect("no call fails");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let more = async |many: usize| {
        let wanted = done.load(Ordering::Relaxed) + many;
        eventually("they go on", || done.load(Ordering::Relaxed) >= wanted).await;
    };
    for number in [cluster.follower(), cluster.leader()] {
        more(60).await;
        cluster.member(number).pause();
        more(60).await;
        cluster.member(number).resume();
        more(60).await;
        cluster.member(number).kill();
        more(60).await;
        cluster.member(number).restart();
    }
    over.store(true, Ordering::Relaxed);
    while let Some(task) = in_time("everybody is served", tasks.join_next()).await {
        task.unwrap();
    }
    leaves_nothing(&cluster, clients).await;
}

/// Whoever waits behind another client's hold, on a member that then falls silent, hears of its end all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_hear_through_another_member() {
    let cluster = EtcdCluster::start();
    for number in 0..3 {
        let holder = patient(&cluster).await;
        let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        // Several, so that some listen to the member that will be paused.
        let waiters = [patient(&cluster).await, patient(&cluster).await, patient(&cluster).await, patient(&cluster).await];
        let mut waiting = JoinSet::new();
        for (place, client) in waiters.iter().enumerate() {
            let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
            waiting.spawn(async move { lets_go(mutex.lock().await.unwrap().release().await) });
            line_is(&holder, "x", place + 1).await;
        }
        cluster.member(number).pause();
        in_time("the release", held.release()).await.unwrap();
        while let Some(served) = in_time("everybody is served", waiting.join_next()).await {
            served.unwrap();
        }
        cluster.member(number).resume();
        leaves_nothing(&cluster, [holder].into_iter().chain(waiters)).await;
    }
}

/// All members, one after the other, under load, twice round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_restarted_one_by_one() {
    let (cluster, record) = (EtcdCluster::start(), Record::new());
    let clients = [patient(&cluster).await, patient(&cluster).await];
    // Short enough to be renewed meanwhile, and longer than an election on a machine that stands still as well.
    let kept = clients[0].mutex("kept").unwrap().ttl(Duration::from_secs(20)).unwrap().lock().await.unwrap();
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 6, patient(&cluster).await);
    let mut silence = Duration::ZERO;
    for number in [0, 1, 2, 0, 1, 2] {
        crowd.has_had(&record, 20).await;
        silence = silence.max(silence_after(&crowd, &record, || cluster.member(number).kill()).await);
        crowd.has_had(&record, 20).await;
        silence = silence.max(silence_after(&crowd, &record, || cluster.member(number).restart()).await);
        cluster.wait_healthy();
    }
    crowd.has_had(&record, 20).await;
    crowd.stop().await;
    record.expect_sound_after(silence);
    kept.check().expect("it was kept through it all");
    kept.release().await.unwrap();
    leaves_nothing(&cluster, clients).await;
}

/// One follower stands still while the other is killed and comes back: for a while there is no majority at all, and then one without
/// the slow one, which goes on when everybody else has long gone on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_restarted_beside_a_slow_one() {
    let (cluster, record) = (EtcdCluster::start(), Record::new());
    let clients = [patient(&cluster).await, patient(&cluster).await];
    // Of no order: clients of the slow one are not heard of for a while, whatever others do, and may lose their places.
    let crowd = Crowd::start(&record, "x", Shape::Mutex, &clients, 6, patient(&cluster).await);
    crowd.has_had(&record, 20).await;
    let leader = cluster.leader();
    let (slow, restarts) = (cluster.member((leader + 1) % 3), cluster.member((leader + 2) % 3));
    let silence = silence_after(&crowd, &record, || {
        slow.pause();
        restarts.kill();
        restarts.restart(); // it is healthy again with the leader alone
    });
    let silence = silence.await;
    crowd.has_had(&record, 20).await;
    let next = cluster.member(cluster.leader_after((leader + 1) % 3));
    let before = ended_by_others(next);
    let silence = silence.max(silence_after(&crowd, &record, || slow.resume()).await);
    cluster.wait_healthy();
    crowd.has_had(&record, 20).await;
    let took_leases = ended_by_others(next) > before;
    crowd.stop().await;
    if took_leases {
        record.expect_fence_held(); // it led after all, since the machine stood still: see `leader`
    } else {
        record.expect_sound_after(silence);
    }
    leaves_nothing(&cluster, clients).await;
}

/// All at once: nobody is served meanwhile, and nothing is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_restarted_at_once() {
    let cluster = EtcdCluster::start();
    let (one, other): (Client, Client) = (patient(&cluster).await, patient(&cluster).await);
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    line_is(&one, "x", 1).await;
    cluster.restart_all();
    held.check().unwrap();
    assert!(in_time("an answer", one.mutex("x").unwrap().try_lock()).await.unwrap().is_none(), "it is held");
    // The past is forgotten too: whoever begins to watch there begins anew.
    let revision = cluster.ctl(&["get", "none", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).expect("there is one").to_owned();
    change(&cluster, &["compact", &revision]).await;
    held.release().await.unwrap();
    lets_go(in_time("the waiter is let in", waiting).await.unwrap().unwrap().release().await);
    leaves_nothing(&cluster, [one, other]).await;
}
