//! Nobody answers: a server that stands still, a network that swallows everything. Holders are lost by their own clock before
//! anybody else gets in, and nobody is left behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::lease::ALIVE;
use tenure_core::{ErrorKind, Instant};
use tokio::task::JoinSet;

use super::{Database as _, LONG, Record, Stage, Store, Wish, client, leaves_nothing, line_is};
use crate::history::expect_sound;
use crate::proxy::{Cut, Fault, Toward, Which};
use crate::{Options as _, Shape, Silence, eventually, in_time};

const TTL: Duration = Duration::from_secs(6);

/// Half a ttl of silence is what renewals have time for. (The ttl is longer here: a machine may be slow too.)
pub async fn a_paused_server_loses_nobody_within_the_ttl<S: Store>() {
    let ttl = Duration::from_secs(12);
    let (stage, record) = (Stage::<S>::new(Wish::default()).await, Record::new());
    let (one, other) = (stage.direct().await, stage.direct().await);
    let holder = record.lock(&Shape::FairMutex.make(&one, "x").unwrap().ttl(ttl).unwrap(), "x").await;
    let first = holder.held.valid_until();
    eventually("it is renewed", || holder.held.valid_until() > first).await;
    let next = Shape::FairMutex.make(&other, "x").unwrap().ttl(LONG).unwrap().keep(false); // so it is let in for all of it
    let hurting = async {
        line_is(&other, "x", 1).await;
        let until = holder.held.valid_until();
        stage.server.pause();
        let paused = Instant::now();
        eventually("half a ttl is over", || Instant::now() > paused + ttl / 2).await;
        stage.server.resume();
        eventually("it is renewed", || holder.held.valid_until() > until).await;
        assert!(holder.checks());
        let token = holder.token();
        holder.releases().await.unwrap();
        token
    };
    let (next, token) = tokio::join!(record.lock(&next, "x"), hurting);
    assert!(next.token() > token);
    next.releases().await.unwrap();
    expect_sound(&record.history());
    leaves_nothing::<S>(&stage.server, [one, other]).await;
}

/// SIGSTOP for one and a half ttl, which no connection notices; and a host that vanished from the network, half-open.
pub async fn holders_are_lost_before_others_get_in<S: Store>() {
    for pauses in [true, false] {
        let (stage, record) = (Stage::<S>::new(Wish::default()).await, Record::new());
        let (one, other) = (stage.proxied().await, stage.direct().await);
        let holder = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(TTL).unwrap(), "x").await;
        let first = holder.held.valid_until();
        eventually("it is renewed", || holder.held.valid_until() > first).await;
        let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap().keep(false); // so it is let in for all of it
        let waiting = async {
            let next = record.lock(&lock, "x").await;
            assert!(Instant::now() >= holder.held.valid_until(), "not before the ttl");
            next
        };
        let hurting = async {
            line_is(&other, "x", 1).await;
            let at = Instant::now();
            if pauses {
                stage.server.pause();
            } else {
                stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
            }
            holder.is_lost().await;
            assert!(!holder.checks());
            if pauses {
                eventually("one and a half ttl are over", || Instant::now() > at + TTL * 3 / 2).await;
                stage.server.resume();
            }
        };
        let (next, ()) = tokio::join!(waiting, hurting);
        assert!(next.token() > holder.token());
        stage.proxy.heal();
        assert_eq!(in_time("an answer", holder.releases()).await.unwrap_err().kind(), ErrorKind::Lost);
        next.releases().await.unwrap();
        expect_sound(&record.history());
        leaves_nothing::<S>(&stage.server, [one, other]).await;
    }
}

/// F19: the connection on which waiters are looked after, and told where the server can speak, fails without a word or with one.
pub async fn a_client_that_went_deaf_gets_in<S: Store>() {
    const WAITERS: usize = 10;
    let ear = || Which::sent_before(S::Server::EAR);
    for fault in [None, Some(Cut::Reset), Some(Cut::Fin)] {
        let stage = Stage::<S>::new(Wish::default()).await;
        let (holder, client) = (stage.direct().await, stage.proxied().await);
        let held = holder.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let silence = Silence::watched_by(&holder);
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        for number in 1..=WAITERS {
            // Who is not renewed is let in for the whole ttl: the deaf may take longer to look than others are let in for.
            let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
            let entered = Arc::clone(&entered);
            waiting.spawn(async move {
                let held = mutex.lock().await.unwrap();
                entered.lock().unwrap().push((number, held.token()));
                held.check().unwrap();
                held.release().await.unwrap();
            });
            line_is(&holder, "x", number).await;
        }
        match fault {
            // It is there, and in use: something is lost to the fault.
            None => {
                stage.proxy.set(ear(), Fault::Blackhole(Toward::Client));
                eventually("it is deaf", || stage.proxy.counters().lost > 0).await;
            }
            Some(cut) => eventually("it was cut", || stage.proxy.cut(ear(), cut) > 0).await,
        }
        let mut last = held.token();
        held.release().await.unwrap();
        while let Some(served) = in_time("the next one gets in", waiting.join_next()).await {
            served.unwrap();
        }
        let silence = silence.longest().await;
        let entered = std::mem::take(&mut *entered.lock().unwrap());
        assert_eq!(entered.len(), WAITERS);
        for (place, (number, token)) in (1..).zip(entered) {
            assert!(token > last, "number {number}: {token} after {last}");
            last = token;
            // The deaf are heard every two seconds, so that two more are needed for anybody to think them dead.
            assert!(number == place || silence >= ALIVE / 2, "number {number} came in as {place}, after {silence:?}");
        }
        stage.proxy.heal();
        leaves_nothing::<S>(&stage.server, [holder, client]).await;
    }
}

/// Whoever asks while nobody answers is told so, and leaves nothing behind that keeps others out.
pub async fn an_ask_that_nobody_answers_leaves_nothing<S: Store>() {
    let stage = Stage::<S>::new(Wish::default()).await;
    let observer = stage.direct().await;
    let client = client::<S>(&format!("{}?answer_limit=5s", stage.url())).await;
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    // Replies only: the server grants it.
    let deaf = stage.proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    let refused = in_time("an answer", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    stage.proxy.lift(deaf);
    let mutex = observer.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // so it is let in for all of it
    in_time("the lock is free", mutex.lock()).await.unwrap().release().await.unwrap();
    leaves_nothing::<S>(&stage.server, [client, observer]).await;
}
