//! The client's side of the lease stores keeps every promise without messages, and over a bad network; real servers show the rest.

mod desk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use desk::{Fortune, Server, Weather};
use tenure_core::lease::Lease;
use tenure_core::{Backend, Claim, Client, ErrorKind, Instant, Kind, LockName, Wait};
use tenure_testkit::{Harness, claim, eventually, eventually_async, in_time, unless_stalled};

macro_rules! harness {
    ($harness:ident, $weather:expr) => {
        struct $harness(Arc<Server>);

        impl Harness for $harness {
            async fn start() -> Self {
                $harness(Server::new($weather))
            }

            async fn backend(&self) -> Arc<dyn Backend> {
                Arc::new(Lease::new(self.0.desk()))
            }

            async fn residue(&self) -> usize {
                self.0.residue()
            }

            fn keeps_order(&self) -> bool {
                $weather != Weather::Foul
            }

            fn tells_holders(&self) -> bool {
                $weather == Weather::Fair
            }
        }
    };
}

harness!(Mute, Weather::Mute);
harness!(Foul, Weather::Foul);

tenure_testkit::conformance!(mute => Mute);
tenure_testkit::conformance!(foul => Foul);

/// Whoever is ready to wait does not give up because somebody's transaction has the name while an earlier copy of its ask is
/// still on its way.
#[tokio::test]
async fn a_transaction_in_the_way_and_a_lost_ask_are_waited_for() {
    let server = Server::new(Weather::Fair);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    server.next.lock().unwrap().extend([Fortune::Lost, Fortune::Locked, Fortune::Locked]);
    let mutex = client.mutex("x").unwrap();
    let held = in_time("it gets in", mutex.try_lock_for(Duration::from_secs(3_600))).await.unwrap();
    held.expect("there was an hour").release().await.unwrap();
    // Out of time meanwhile, nothing of it stays.
    server.next.lock().unwrap().extend([Fortune::Lost].into_iter().chain([Fortune::Locked; 1_000]));
    assert!(mutex.try_lock_for(Duration::from_millis(20)).await.unwrap().is_none());
    server.next.lock().unwrap().clear();
    mutex.try_lock().await.unwrap().expect("nobody has it").release().await.unwrap();
}

/// What a chore was about to remove when its client ended is removed by the goodbye.
#[tokio::test]
async fn a_client_that_ends_in_the_middle_of_a_chore_leaves_nothing() {
    let server = Server::new(Weather::Fair);
    server.ignores_chores.store(true, Ordering::Relaxed);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    eventually("there is something to remove", || server.chores.load(Ordering::Relaxed) > 0).await;
    client.close().await.unwrap();
    assert_eq!(server.residue(), 0);
}

/// A window counts from the sending of its request, since the server may have counted from then: an answer that comes late makes it no
/// longer.
#[tokio::test]
async fn a_late_answer_makes_no_window_longer() {
    let (late, ttl) = (Duration::from_millis(500), Duration::from_secs(6));
    let server = Server::new(Weather::Fair);
    server.late.store(late.as_millis() as u64, Ordering::Relaxed);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    let held = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let first = held.valid_until();
    assert!(first <= Instant::now() - late + ttl, "what is heard now was asked for before that");
    eventually("it is renewed", || held.valid_until() > first).await;
    let second = held.valid_until();
    assert!(second <= Instant::now() - late + ttl, "what is heard now was asked for before that");
    held.release().await.unwrap();
}

/// A server may show a grant that it has not written yet, and be killed. A hold that nobody renews would never learn of it: it is not
/// believed before it was renewed once.
#[tokio::test]
async fn a_grant_that_was_shown_and_not_kept_is_not_believed() {
    unless_stalled("the first holds until the second waits", Duration::from_millis(500), async || {
        let server = Server::new(Weather::Mute);
        let client = Client::new(Lease::new(server.desk())).unwrap();
        let mutex = client.mutex("x").unwrap();
        let first = mutex.clone().ttl(Duration::from_secs(3)).unwrap().keep(false).lock().await.unwrap();
        let later = mutex.ttl(Duration::from_secs(600)).unwrap().keep(false);
        let waiting = tokio::spawn(async move { later.lock().await });
        let waits = async || client.view("x").await.unwrap().line.len() == 1;
        eventually_async("it waits, or is in already", async || waits().await || first.check().is_err()).await;
        server.loses_its_disk();
        if let Err(error) = first.release().await {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            return None;
        }
        let held = in_time("it is let in when the server has ended the first once more", waiting).await.unwrap().unwrap();
        let view = client.view("x").await.unwrap();
        assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [held.token()], "{view:?}");
        held.release().await.unwrap();
        Some(())
    })
    .await;
}

/// The answer to the first ask is lost, and the second one finds a grant that is not whole any more. It was broken before it could be
/// renewed: then it is nobody's, whoever waits and whoever does not.
#[tokio::test]
async fn a_grant_that_was_broken_before_it_was_found_is_not_believed() {
    let server = Server::new(Weather::Fair);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().keep(false);
    for waits in [false, true] {
        server.next.lock().unwrap().push_back(Fortune::Unanswered);
        server.breaks.store(true, Ordering::Relaxed);
        let held =
            if waits { in_time("it gets in", mutex.lock()).await } else { mutex.try_lock().await.map(Option::unwrap) };
        let held = held.unwrap();
        assert!(!server.breaks.load(Ordering::Relaxed), "somebody has broken it");
        let view = client.view("x").await.unwrap();
        assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [held.token()], "{view:?}");
        held.release().await.unwrap();
    }
}

/// A look takes what was said to its client out of the store. If its answer is lost, renewals find out what it was, at once and not
/// when they would be due anyway.
#[tokio::test]
async fn a_message_that_is_lost_with_its_answer_is_found_out_at_once() {
    let server = Server::new(Weather::Mute);
    let (client, other) = (Lease::new(server.desk()), Lease::new(server.desk()));
    let (client, other) = (Client::new(client).unwrap(), Client::new(other).unwrap());
    let held = client.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    server.loses_mail.store(true, Ordering::Relaxed);
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    in_time("the loss is told", held.lost()).await;
    assert!(!server.loses_mail.load(Ordering::Relaxed), "the message was lost");
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Where a copy of an ask may still arrive, the end of its claim leaves a mark, and nowhere else.
#[tokio::test]
async fn an_end_leaves_a_mark_where_a_copy_of_its_ask_may_arrive() {
    let server = Server::new(Weather::Fair);
    let client = Client::new(Lease::new(server.desk())).unwrap();
    for (fortune, marks) in [(None, 0), (Some(Fortune::Unanswered), 1)] {
        server.next.lock().unwrap().extend(fortune);
        client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
        assert_eq!(server.marks(), marks, "{fortune:?}");
    }
}

/// Whoever was refused for certain has nothing in the store, and troubles nobody with its end.
#[tokio::test]
async fn what_was_refused_needs_no_end() {
    let server = Server::new(Weather::Fair);
    let backend = Lease::new(server.desk());
    for (fortunes, ends) in [(vec![Fortune::Refused], 0), (vec![Fortune::Lost, Fortune::Refused], 1)] {
        for wait in [Wait::No, Wait::Forever] {
            let claim = claim(Kind::Mutex, 0);
            server.next.lock().unwrap().extend(fortunes.iter().copied());
            backend.acquire(&claim, wait).await.unwrap_err();
            assert!(server.next.lock().unwrap().is_empty());
            let released = backend.release(&claim).await.map_err(|error| error.kind());
            assert!(matches!(released, Ok(()) | Err(ErrorKind::Lost)), "{released:?}");
            assert_eq!(std::mem::take(&mut *server.ends.lock().unwrap()).len(), ends, "{fortunes:?}");
        }
    }
    assert_eq!(server.residue(), 0);
}

/// Ends that the store did not confirm are asked for again, all together, although their client waits for nothing and holds nothing.
#[tokio::test]
async fn ends_that_were_lost_are_asked_for_again() {
    let server = Server::new(Weather::Fair);
    let backend = Lease::new(server.desk());
    let claims: Vec<Claim> = (0..100)
        .map(|number| Claim { name: LockName::new(format!("{number}")).unwrap(), ..claim(Kind::Mutex, number) })
        .collect();
    for claim in &claims {
        server.next.lock().unwrap().extend([Fortune::Unanswered, Fortune::Refused]);
        backend.acquire(claim, Wait::No).await.unwrap_err();
    }
    server.loses_ends.store(true, Ordering::Relaxed);
    for claim in &claims {
        backend.release(claim).await.unwrap_err();
    }
    server.loses_ends.store(false, Ordering::Relaxed);
    eventually_async("all have ended", async || backend.list("", None, 1).await.unwrap().is_empty()).await;
    let many = server.ends.lock().unwrap().len();
    assert!(many < claims.len() / 2, "{many} requests");
}
