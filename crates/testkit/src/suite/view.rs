//! Who holds and who waits; being told when that changes; asking and breaking.

use std::time::Duration;

use tenure_core::{ErrorKind, Kind, Mode};

use super::LONG;
use crate::{Scene, eventually_async, in_time};

/// A view says who holds and who waits, in order, and what they show.
pub async fn a_view_has_holders_and_line(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    assert!(one.view("x").await.unwrap().is_free());
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().note("holder").unwrap().lock().await.unwrap();
    let mut waiting = Vec::new();
    for place in 1..=3 {
        let mutex = other.mutex("x").unwrap().note(place.to_string()).unwrap();
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
        scene.line_is(&one, "x", place).await;
    }
    let view = other.view("x").await.unwrap();
    assert_eq!((view.name.as_str(), view.kind), ("x", Some(Kind::Mutex)));
    let [holder] = &view.holders[..] else { panic!("{view:?}") };
    assert_eq!((holder.token, holder.mode, holder.note.as_str()), (held.token(), Mode::Exclusive, "holder"));
    assert_eq!(holder.origin.pid, std::process::id());
    assert!(!holder.origin.host.is_empty() && !holder.closing && holder.asked.is_none());
    assert!(holder.expires_in <= LONG && holder.expires_in > LONG / 2 && holder.held_for < LONG / 2);
    assert_eq!(view.line.iter().map(|waiter| waiter.note.as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
    let mut claims: Vec<_> = view.line.iter().map(|waiter| waiter.claim).chain([holder.claim]).collect();
    claims.sort_unstable();
    claims.dedup();
    assert_eq!(claims.len(), 4, "everybody has a fingerprint of its own");
    waiting.into_iter().for_each(|waiting| waiting.abort());
    held.release().await.unwrap();
    scene.is_free(&one, "x").await;
}

/// What nobody holds or waits for is not listed, and a limit is a limit.
pub async fn a_listing_has_what_is_in_use(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    if !scene.lists(&one).await {
        return;
    }
    assert!(one.list("", None, 10).await.unwrap().is_empty());
    let a = one.mutex("jobs/a").unwrap().lock().await.unwrap();
    let b = one.mutex("jobs/b").unwrap().lock().await.unwrap();
    let c = other.mutex("other").unwrap().lock().await.unwrap();
    let names = async |prefix: &str, limit| {
        let views = other.list(prefix, None, limit).await.unwrap();
        views.iter().map(|view| view.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("", 10).await, ["jobs/a", "jobs/b", "other"]);
    assert_eq!(names("jobs/", 10).await, ["jobs/a", "jobs/b"]);
    assert_eq!(names("", 1).await, ["jobs/a"]);
    assert!(names("", 0).await.is_empty());
    a.release().await.unwrap();
    assert_eq!(names("", 10).await, ["jobs/b", "other"]);
    drop((b, c));
    scene.leaves_nothing([one, other]).await;
}

/// A watch tells at once what there is, then whatever changes: held, waited for, handed over, free.
pub async fn a_watch_tells_of_every_change(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut watch = other.watch("x").unwrap();
    assert!(in_time("the watch tells at once", watch.next()).await.unwrap().is_free());
    let mut until = async |holders: usize, line: usize| {
        let seen = async {
            loop {
                let view = watch.next().await.unwrap();
                if (view.holders.len(), view.line.len()) == (holders, line) {
                    return view;
                }
            }
        };
        in_time("the watch tells", seen).await
    };
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    assert_eq!(until(1, 0).await.holders[0].token, held.token());
    let mutex = one.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until(1, 1).await;
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(until(1, 0).await.holders[0].token, next.token());
    drop(next);
    until(0, 0).await;
}

/// A watch also tells of what time alone has done.
pub async fn a_watch_tells_of_an_end_by_time(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(Duration::from_millis(300)).unwrap().keep(false).lock().await.unwrap();
    let mut watch = other.watch("x").unwrap();
    let free = async { while !watch.next().await.unwrap().is_free() {} };
    in_time("the watch tells", free).await;
    held.check().unwrap_err();
}

/// The holder hears that somebody asks, why and who, and goes on; the view shows it. It does not wait for a renewal: the first
/// one comes after minutes.
pub async fn an_ask_carries_reason_and_who(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut events = held.events();
    assert_eq!(other.ask("x", "deploy é'\"").await.unwrap(), 1);
    let ask = in_time("the ask is heard", held.asked()).await;
    assert_eq!((ask.reason.as_str(), ask.by.pid), ("deploy é'\"", std::process::id()));
    assert!(!ask.by.host.is_empty());
    assert_eq!(in_time("it is an event", events.next()).await, Some(tenure_core::Event::Asked(ask.clone())));
    assert_eq!(other.view("x").await.unwrap().holders[0].asked, Some(ask));
    held.check().expect("letting go is the holder's choice");
    held.release().await.unwrap();
    assert_eq!(other.ask("x", "again").await.unwrap(), 0, "nobody is there to be asked");
    assert_eq!(other.ask("x", "two\nlines").await.unwrap_err().kind(), ErrorKind::BadOption);
}

/// An ask whose message is lost is heard with the next renewal.
pub async fn an_ask_is_heard_with_the_renewal(scene: &Scene) {
    let (deaf, other) = (scene.deaf_client().await.0, scene.client().await);
    let held = deaf.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap().lock().await.unwrap();
    assert_eq!(other.ask("x", "please").await.unwrap(), 1);
    assert_eq!(in_time("the ask is heard", held.asked()).await.reason.as_str(), "please");
    held.release().await.unwrap();
}

/// Everybody inside is asked.
pub async fn every_holder_is_asked(scene: &Scene) {
    if !scene.offers(Kind::RwLock).await {
        return; // there is never more than one
    }
    let (one, other) = scene.two_clients().await;
    let lock = |client: &tenure_core::Client| client.rw_lock("x").unwrap().ttl(Duration::from_secs(30)).unwrap();
    let held = [lock(&one).read().await.unwrap(), lock(&other).read().await.unwrap()];
    assert_eq!(other.ask("x", "all of you").await.unwrap(), 2);
    for guard in &held {
        assert_eq!(in_time("the ask is heard", guard.asked()).await.reason.as_str(), "all of you");
    }
}

/// A hold that is broken is lost to its holder, and the next one has a higher token.
pub async fn a_broken_hold_is_lost(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(30)).unwrap().lock().await.unwrap();
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    in_time("the loss is told", held.lost()).await;
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    let next = other.mutex("x").unwrap().try_lock().await.unwrap().expect("it is free");
    assert!(next.token() > held.token());
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
    assert_eq!(other.view("x").await.unwrap().holders.len(), 1, "a broken holder's release frees nobody else");
}

/// Breaking ends the hold and not the line: who waits is next.
pub async fn breaking_lets_the_waiter_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&one, "x", 1).await;
    assert_eq!(one.break_holds("x", Some(tenure_core::Token::new(1))).await.unwrap(), 0, "nobody has this token");
    held.check().unwrap();
    assert_eq!(one.break_holds("x", Some(held.token())).await.unwrap(), 1);
    in_time("the waiter is let in", waiting).await.unwrap().unwrap().check().unwrap();
    assert_eq!(one.break_holds("nobody's", None).await.unwrap(), 0);
}

/// The store can be probed and examined, and what it says of itself does not change.
pub async fn a_store_says_what_it_is(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    one.probe().await.unwrap();
    assert!(!one.examine().await.unwrap().is_empty());
    assert!(!one.describe().is_empty());
    assert_eq!(one.abilities(), other.abilities());
    assert!(one.abilities().kinds.contains(&Kind::Mutex), "a store without a mutex is no lock store");
    eventually_async("looking leaves nothing", async || scene.residue().await == 0).await;
}
