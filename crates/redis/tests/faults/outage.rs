//! A server that stands still for longer than a ttl: holders are lost by their own clock before anybody else gets in.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};
use tenure_testkit::history::expect_sound;
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, Record, Stage, leaves_nothing, line_is};

const TTL: Duration = Duration::from_secs(6);

/// SIGSTOP, which no connection notices, and a network that swallows everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_lost_before_others_get_in() {
    let pause: fn(&Stage) = |stage| stage.server.pause();
    let resume: fn(&Stage) = |stage| stage.server.resume();
    let cut_off: fn(&Stage) = |stage| {
        stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    };
    let heal: fn(&Stage) = |stage| stage.proxy.heal();
    for (hurt, mend) in [(pause, resume), (cut_off, heal)] {
        let (stage, record) = (Stage::new(), Record::new());
        let (one, other) = (stage.proxied().await, stage.direct().await);
        let holder = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(TTL).unwrap(), "x").await;
        let first = holder.held.valid_until();
        eventually("it is renewed", || holder.held.valid_until() > first).await;
        let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap().keep(false);
        let waiting = async {
            let next = record.lock(&lock, "x").await;
            assert!(Instant::now() >= holder.held.valid_until());
            next
        };
        let hurting = async {
            line_is(&other, "x", 1).await;
            hurt(&stage);
            holder.is_lost().await;
            assert!(!holder.checks());
            mend(&stage);
        };
        let (next, ()) = tokio::join!(waiting, hurting);
        assert!(next.token() > holder.token());
        assert_eq!(in_time("an answer", holder.releases()).await.unwrap_err().kind(), ErrorKind::Lost);
        next.releases().await.unwrap();
        expect_sound(&record.history());
        leaves_nothing(&stage.server, [one, other]).await;
    }
}

/// Whoever asks while nobody answers is told so, and leaves nothing behind that keeps others out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_nobody_answers_is_an_error_and_leaves_nothing() {
    let stage = Stage::new();
    let observer = stage.direct().await;
    let url = format!("redis://{}?answer_limit=5s", stage.proxy.address());
    let client = crate::stage::client(&url).await;
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    // Replies only: the server grants it.
    let deaf = stage.proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    let refused = in_time("an answer", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    stage.proxy.lift(deaf);
    let mutex = observer.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    in_time("the lock is free", mutex.lock()).await.unwrap().release().await.unwrap();
    leaves_nothing(&stage.server, [client, observer]).await;
}
