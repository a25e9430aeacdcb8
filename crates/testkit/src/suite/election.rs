//! One leader at a time, and terms that rise.

use std::time::Duration;

use tenure_core::{Client, Election, ErrorKind, Token};

use super::{LONG, SHORT};
use crate::{Scene, in_time};

pub use super::cancel::campaign as cancelled_campaign;

fn make(client: &Client, note: &str) -> Election {
    client.election("x").unwrap().ttl(LONG).unwrap().note(note).unwrap()
}

/// Everybody sees who leads: term, note and origin.
pub async fn everybody_sees_the_leader(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    assert_eq!(make(&other, "b").leader().await.unwrap(), None);
    let leads = make(&one, "10.0.0.7:8080").campaign().await.unwrap();
    let seen = make(&other, "b").leader().await.unwrap().expect("somebody leads");
    assert_eq!((seen.term, seen.note.as_str(), seen.origin.pid), (leads.token(), "10.0.0.7:8080", std::process::id()));
    assert!(make(&other, "b").try_campaign().await.unwrap().is_none());
    assert!(make(&other, "b").try_campaign_for(Duration::from_millis(10)).await.unwrap().is_none());
    make(&one, "a").resign(leads).await.unwrap();
    assert_eq!(make(&other, "b").leader().await.unwrap(), None);
}

/// Who resigns is followed by the next, in a higher term.
pub async fn terms_rise(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut leads = make(&one, "0").campaign().await.unwrap();
    for round in 1..10 {
        let client = if round % 2 == 0 { &one } else { &other };
        let election = make(client, &round.to_string()).keep(false);
        let campaigning = tokio::spawn(async move { election.campaign().await });
        scene.line_is(&one, "x", 1).await;
        let term = leads.token();
        make(&one, "").resign(leads).await.unwrap();
        leads = in_time("the next one leads", campaigning).await.unwrap().unwrap();
        assert!(leads.token() > term);
    }
}

/// P14: an observer is told of the leader there is, then of each new one, in rising terms; the last one is never missed.
pub async fn observers_see_terms_rise(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let first = make(&one, "first").campaign().await.unwrap();
    let mut observer = make(&other, "").observe().unwrap();
    let seen = in_time("the observer hears at once", observer.next()).await.unwrap().expect("somebody leads");
    assert_eq!((seen.term, seen.note.as_str()), (first.token(), "first"));
    let observing = tokio::spawn(async move {
        let mut terms = vec![seen.term];
        loop {
            let Some(leader) = observer.next().await.unwrap() else { continue };
            terms.push(leader.term);
            if leader.note.as_str() == "last" {
                return terms;
            }
        }
    });
    first.release().await.unwrap();
    for _ in 0..10 {
        make(&one, "between").campaign().await.unwrap().release().await.unwrap();
    }
    let last = make(&other, "last").campaign().await.unwrap();
    let terms = in_time("the last leader is seen", observing).await.unwrap();
    assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "{terms:?}");
    assert_eq!(terms.last(), Some(&last.token()));
}

/// F49: a leader that does not keep its lead knows so before anybody else leads.
pub async fn a_lost_leader_is_replaced(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let leads = make(&one, "old").ttl(SHORT).unwrap().keep(false).campaign().await.unwrap();
    let next = in_time("the next one leads", make(&other, "new").keep(false).campaign()).await.unwrap();
    assert!(leads.valid_until() < tenure_core::Instant::now());
    assert_eq!(leads.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.token() > leads.token());
    assert_eq!(make(&one, "").leader().await.unwrap().unwrap().note.as_str(), "new");
}

/// An observer of an election without a leader hears so once, then waits for one, and hears when that has gone.
pub async fn an_observer_hears_of_a_vacancy(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut observer = make(&other, "").observe().unwrap();
    assert_eq!(in_time("the observer hears at once", observer.next()).await.unwrap(), None);
    assert!(tokio::time::timeout(Duration::from_millis(30), observer.next()).await.is_err());
    let leads = make(&one, "here").campaign().await.unwrap();
    let seen = in_time("the observer hears", observer.next()).await.unwrap().expect("somebody leads");
    assert!(seen.term == leads.token() && seen.term > Token::new(0));
    leads.release().await.unwrap();
    assert_eq!(in_time("the observer hears of the vacancy", observer.next()).await.unwrap(), None);
}
