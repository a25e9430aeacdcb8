//! What happens between one client and the servers: silence of several lengths, lost answers, resets.

use std::time::Duration;

use tenure_core::{Claim, Client, Event, Instant, Kind, LockName, Mode, Renewal, Wait};
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::history::expect_sound_but_order;
use tenure_testkit::proxy::{After, Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeper, ZooKeeperOptions};
use tenure_testkit::{Options as _, Shape, claim, eventually, eventually_async, in_time, unless_stalled};

use crate::raw::Raw;
use crate::stage::{LONGER, T, Witnesses, calm_ensemble, client, client_with, leaves_nothing, lets_go, line_is, only};

/// What came of a silence.
struct Silence {
    kept: bool,
}

/// A client behind a proxy holds, another one waits, and nothing gets through for a part of the timeout. Whatever comes of it:
/// nobody gets in before the window's end.
async fn silence(ensemble: &Ensemble, share: f64) -> Silence {
    let record = Record::new();
    let proxy = Proxy::start(ensemble.member(ensemble.follower()).address());
    let (one, other) = (client(&only(proxy.address())).await, client(&ensemble.url()).await);
    let holder = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(T).unwrap(), "x").await;
    let first = holder.held.valid_until();
    eventually("it is renewed or lost", || !holder.checks() || holder.held.valid_until() > first).await;
    let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(T).unwrap();
    let waiting = async { (record.lock(&lock, "x").await, Instant::now()) };
    let hurting = async {
        line_is(&other, "x", 1).await;
        let silence = proxy.set(Which::All, Fault::Blackhole(Toward::Both));
        tokio::time::sleep(T.mul_f64(share)).await; // the fault itself is a length of time
        let last = holder.held.valid_until();
        proxy.lift(silence);
        eventually("it is renewed or lost", || !holder.checks() || holder.held.valid_until() > last).await;
        let kept = holder.checks();
        if kept {
            assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none(), "{share}: it is held");
        }
        holder.held.check().is_ok()
    };
    let mut waiting = std::pin::pin!(waiting);
    let (kept, next) = tokio::select! {
        kept = hurting => (kept, None),
        (next, came) = &mut waiting => {
            assert!(came >= holder.held.valid_until(), "{share}: the next one came too early");
            (false, Some(next))
        }
    };
    let released = holder.releases().await;
    assert!(kept || released.is_err(), "{share}: what is lost stays lost");
    let next = match next {
        Some(next) => next,
        None => in_time("the next one gets in", waiting).await.0,
    };
    lets_go(next.releases().await);
    expect_sound_but_order(&record.history());
    leaves_nothing(&other, "x", vec![one]).await;
    Silence { kept }
}

/// A third of the timeout costs nothing. (A machine that stands still on top of that loses it, as it should.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_silence_costs_nothing() {
    let ensemble = calm_ensemble();
    let is_kept = async || silence(&ensemble, 0.3).await.kept.then_some(());
    unless_stalled("a hold outlives a short silence", T / 4, is_kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_silence_never_lets_two_in() {
    let ensemble = calm_ensemble();
    silence(&ensemble, 0.7).await; // kept or lost: either is right
    assert!(!silence(&ensemble, 1.2).await.kept, "the window is shorter than the timeout");
}

/// The node was made and the answer lost: it is found again by its name and its owner, and there is one of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_a_create_is_lost() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    for after in [After::Silence, After::Reset] {
        let proxy = Proxy::start(server.address());
        let (one, observer) = (client(&only(proxy.address())).await, client(&only(server.address())).await);
        let mutex = one.mutex("x").unwrap().ttl(Duration::from_secs(6)).unwrap();
        mutex.lock().await.unwrap().release().await.unwrap();
        for _ in 0..5 {
            let lost = proxy.counters().lost; // before the fault: what it takes may be the answer to a sign of life, at once
            proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
            let held = in_time("the lock", mutex.lock()).await.unwrap();
            eventually("an answer was lost", || proxy.counters().lost > lost).await;
            let view = observer.view("x").await.unwrap();
            assert_eq!((view.holders.len(), view.line.len()), (1, 0), "{after:?}: there is no ghost: {view:?}");
            assert_eq!(view.holders[0].token, held.token());
            proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
            in_time("the release", held.release()).await.unwrap();
            proxy.heal();
        }
        leaves_nothing(&observer, "x", vec![one]).await;
    }
}

/// F14: the answer to a create is lost, and there are two nodes with the claim's id, of which one is not this session's: that is
/// somebody in front, and never a grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_session_is_nobodys_grant() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let proxy = Proxy::start(server.address());
    let open = async |address| {
        let url = format!("{}?answer_limit=80s", only(address)).parse().unwrap();
        tenure_zookeeper::connect(&url).await.unwrap()
    };
    let (before, store) = (open(server.address()).await, open(proxy.address()).await);
    let claim = Claim { ttl: LONGER, ..claim(Kind::Mutex, 1) };
    let mut raw = Raw::connect(server.address());
    before.acquire(&claim, Wait::Forever).await.unwrap().unwrap();
    let [node] = &raw.children("/tenure/x").unwrap()[..] else { panic!("there is one claim") };
    let ghost = format!("/tenure/x/{}", node.replacen("-0000000000", "-0000000001", 1));
    raw.create(&ghost, b"").unwrap();
    before.release(&claim).await.unwrap();
    proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    let asking = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { store.acquire(&claim, Wait::Forever).await }
    });
    let nodes = || Raw::connect(server.address()).children("/tenure/x").unwrap().len();
    eventually("its node is there", || nodes() == 2).await;
    proxy.heal();
    eventually("it has seen both, and waits", || server.count("zk_watch_count") > 0 || asking.is_finished()).await;
    assert!(!asking.is_finished(), "somebody is in front");
    Raw::connect(server.address()).delete(&ghost).unwrap();
    let grant = in_time("it is let in", asking).await.unwrap().unwrap().unwrap();
    let view = before.view(&claim.name).await.unwrap();
    assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [grant.token], "by its own node");
}

/// The answer to an ask for a permit is lost, and there is room before the claim has looked: whoever saw it wait, and waits for
/// it to say that it is in, is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_let_in_after_a_lost_answer_says_so() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let proxy = Proxy::start(server.address());
    let (holder, other) = (client(&only(server.address())).await, client(&only(server.address())).await);
    let cut_off = client_with(&format!("{}?answer_limit=80s", only(proxy.address()))).await;
    let acquire = |client: &Client| {
        let permits = client.semaphore("x", 2).unwrap();
        async move { permits.acquire(1).await.unwrap() }
    };
    let (first, second) = (acquire(&holder).await, acquire(&holder).await);
    proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    let waiting = tokio::spawn(acquire(&cut_off));
    line_is(&holder, "x", 1).await;
    proxy.refuse(true);
    proxy.cut(Which::All, Cut::Reset);
    let behind = tokio::spawn(acquire(&other));
    line_is(&holder, "x", 2).await;
    first.release().await.unwrap();
    proxy.heal();
    let held = in_time("there is room", waiting).await.unwrap();
    eventually("it says that it is in", || {
        let mut raw = Raw::connect(server.address());
        let nodes = raw.children("/tenure/x").unwrap_or_default();
        let said = nodes.iter().filter_map(|node| raw.data(&format!("/tenure/x/{node}")));
        String::from_utf8(said.flatten().collect()).unwrap().lines().any(|line| line == "entered")
    })
    .await;
    second.release().await.unwrap();
    in_time("there is room for the one behind", behind).await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
}

/// A writer has become a reader and does not hear of it, unless it asks again over another connection: the hold goes on, by its new
/// node, and that is watched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_a_change_of_mode_is_lost() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let proxy = Proxy::start(server.address());
    let (one, observer) = (client(&only(proxy.address())).await, client(&only(server.address())).await);
    let mut held = one.rw_lock("x").unwrap().write().await.unwrap();
    let watched = || server.count("zk_watch_count") == 1;
    eventually("its node is watched", watched).await;
    proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    let mode = async || observer.view("x").await.unwrap().holders.first().map(|holder| holder.mode);
    let healing = async {
        eventually_async("it has become a reader", async || mode().await == Some(Mode::Shared)).await;
        proxy.heal();
    };
    let (changed, ()) = tokio::join!(held.downgrade(), healing);
    if let Err(error) = changed {
        assert!(error.is_transient(), "{error}");
    }
    eventually("its other node is watched", watched).await;
    held.check().unwrap();
    assert_eq!(observer.break_holds("x", None).await.unwrap(), 1);
    in_time("the break is told", held.lost()).await;
}

/// One session of a client finds no member any more, and nobody knows yet what becomes of its hold: that of another session is
/// renewed meanwhile. (A machine that stands still for long ends a session, as it should.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_finds_no_member_keeps_no_other_waiting() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let is_renewed_alone = async || {
        let proxy = Proxy::start(server.address());
        let store = tenure_zookeeper::connect(&only(proxy.address()).parse().unwrap()).await.unwrap();
        let hold = |number, name: &str, ttl| Claim { name: LockName::new(name).unwrap(), ttl, ..claim(Kind::Mutex, number) };
        let claims = [hold(1, "here", T), hold(2, "away", T * 3 / 2)];
        for claim in &claims {
            in_time("it is free", store.acquire(claim, Wait::Forever)).await.unwrap().unwrap();
        }
        proxy.refuse(true);
        proxy.cut(Which::sent_before("/tenure/away"), Cut::Reset);
        let mut renewed = store.renew(&claims).await;
        while let [_, Ok(Renewal::Held { .. })] = renewed[..] {
            renewed = in_time("an answer", store.renew(&claims)).await; // the client has not seen yet that its connection is gone
        }
        matches!(renewed[..], [Ok(Renewal::Held { .. }), Err(_)]).then_some(())
    };
    unless_stalled("one session is renewed without the other", T / 4, is_renewed_alone).await;
}

/// The first in line is cut off for so long that its session ends; the lock goes to the next one. When it is back it stands at
/// the end of the line, and is never let in by what it waited for before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_while_it_waits_at_the_head() {
    let (ensemble, record) = (calm_ensemble(), Record::new());
    let proxy = Proxy::start(ensemble.member(0).address());
    let (holder, cut_off, other) =
        (client(&ensemble.url()).await, client(&only(proxy.address())).await, client(&ensemble.url()).await);
    let make = |client, ttl| Shape::Mutex.make(client, "x").unwrap().ttl(ttl).unwrap();
    let held = record.lock(&make(&holder, LONGER), "x").await;
    let (first, second) = (make(&cut_off, T), make(&other, LONGER));
    let first = record.lock(&first, "x");
    let second = async {
        line_is(&holder, "x", 1).await; // the first is
        record.lock(&second, "x").await
    };
    let driving = async {
        line_is(&holder, "x", 2).await;
        // The holder's own node, and what each waiter waits for: they know by now that they wait, and are patient.
        eventually("all watch", || ensemble.count("zk_watch_count") >= 3).await;
        proxy.set(Which::All, Fault::Blackhole(Toward::Both));
        line_is(&holder, "x", 1).await; // the session is over
        held.releases().await.unwrap();
    };
    let later = async {
        let ((), second) = tokio::join!(driving, second);
        proxy.heal();
        line_is(&holder, "x", 1).await; // it asks anew
        let token = second.token();
        second.releases().await.unwrap();
        token
    };
    let (first, token) = tokio::join!(first, later);
    assert!(first.token() > token);
    lets_go(first.releases().await);
    expect_sound_but_order(&record.history());
}

/// Connections that are reset again and again: sessions go on at the next member, and whoever waits keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_resets_loses_nobody() {
    let (ensemble, record) = (calm_ensemble(), Record::new());
    let proxies: Vec<Proxy> = ensemble.members().iter().map(|member| Proxy::start(member.address())).collect();
    let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!("zk://{}", hosts.join(","));
    let crowding = [client(&url).await, client(&url).await];
    let observer = client(&ensemble.url()).await;
    let holding = client(&url).await;
    let held = holding.mutex("held").unwrap().ttl(LONGER).unwrap().lock().await.unwrap();
    let mut events = held.events();
    let (witnesses, in_order) = (Witnesses::of(&crowding).await, Record::new());
    let crowd = Crowd::start(&record, "x", Shape::Mutex, &crowding, 6, observer.clone());
    let fair = Crowd::start_with(&in_order, "fair", Shape::FairMutex, LONGER, &crowding, 6, observer.clone());
    for _ in 0..10 {
        crowd.has_had(&record, 5).await;
        fair.has_had(&in_order, 5).await;
        for proxy in &proxies {
            proxy.cut(Which::All, Cut::Reset);
        }
    }
    crowd.has_had(&record, 20).await;
    fair.has_had(&in_order, 20).await;
    crowd.stop().await;
    fair.stop().await;
    expect_sound_but_order(&record.history());
    witnesses.expect_sound(&in_order);
    held.check().expect("a connection is not a session");
    held.release().await.unwrap();
    let mut jeopardies = 0;
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost(_)), "{event:?}");
        jeopardies += usize::from(matches!(event, Event::Jeopardy { .. }));
    }
    assert!(jeopardies > 0, "a lost connection is jeopardy");
    let crowding = crowding.into_iter().collect();
    leaves_nothing(&observer, "x", crowding).await;
    leaves_nothing(&observer, "fair", vec![]).await;
}
