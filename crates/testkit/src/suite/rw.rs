//! Many readers or one writer, and neither starves the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Mode, RwLock};
use tokio::task::JoinSet;

use super::{LONG, SHORT};
use crate::{Scene, in_time};

pub use super::cancel::{convert as cancelled_convert, read as cancelled_read, write as cancelled_write};
pub use super::check::{
    conversions as conversions_change_the_standing, each_reader as each_reader_has_a_standing_of_its_own,
};

fn make(client: &Client) -> RwLock {
    client.rw_lock("x").unwrap().ttl(LONG).unwrap()
}

/// Readers of any client are inside together, each with a token of its own.
pub async fn readers_share(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let a = make(&one).read().await.unwrap();
    let b = make(&one).try_read().await.unwrap().expect("readers share");
    let c = make(&other).try_read_for(LONG).await.unwrap().expect("readers share");
    assert!(a.token() < b.token() && b.token() < c.token());
    assert_eq!((a.mode(), one.view("x").await.unwrap().holders.len()), (Mode::Shared, 3));
}

/// A writer is alone.
pub async fn a_writer_excludes_everybody(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let writer = make(&one).write().await.unwrap();
    assert!(make(&other).try_read().await.unwrap().is_none());
    assert!(make(&one).try_write().await.unwrap().is_none());
    assert!(make(&other).try_read_for(Duration::from_millis(10)).await.unwrap().is_none());
    writer.release().await.unwrap();
    assert!(make(&other).try_read().await.unwrap().is_some());
}

/// Readers keep writers out, to the last of them.
pub async fn readers_exclude_a_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let (a, b) = (make(&one).read().await.unwrap(), make(&other).read().await.unwrap());
    assert!(make(&one).try_write().await.unwrap().is_none());
    a.release().await.unwrap();
    assert!(make(&one).try_write().await.unwrap().is_none());
    b.release().await.unwrap();
    assert!(make(&one).try_write().await.unwrap().is_some());
}

/// F23: a reader that comes after a waiting writer waits behind it.
pub async fn a_reader_queues_behind_a_waiting_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let reader = make(&one).read().await.unwrap();
    let lock = make(&other).keep(false);
    let writing = tokio::spawn(async move { lock.write().await });
    scene.line_is(&one, "x", 1).await;
    assert!(make(&one).try_read().await.unwrap().is_none(), "a writer waits");
    let lock = make(&one);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 2).await;
    reader.release().await.unwrap();
    let writer = in_time("the writer is let in", writing).await.unwrap().unwrap();
    let token = writer.token();
    writer.release().await.unwrap();
    assert!(in_time("the reader is let in", reading).await.unwrap().unwrap().token() > token);
}

/// A waiting writer that gives up lets the readers behind it in, while the first reader stays.
pub async fn a_writer_that_gives_up_lets_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let first = make(&one).read().await.unwrap();
    let lock = make(&other);
    let writing = tokio::spawn(async move { lock.write().await });
    scene.line_is(&one, "x", 1).await;
    let lock = make(&other).keep(false);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 2).await;
    writing.abort();
    in_time("the reader is let in", reading).await.unwrap().unwrap().check().unwrap();
    first.check().unwrap();
}

/// A writer that leaves lets all waiting readers in together.
pub async fn a_writer_lets_all_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let writer = make(&one).write().await.unwrap();
    let mut reading = JoinSet::new();
    for place in 1..=5 {
        let lock = make(&other).keep(false);
        reading.spawn(async move { lock.read().await.unwrap() });
        scene.line_is(&one, "x", place).await;
    }
    writer.release().await.unwrap();
    let readers = in_time("all readers are let in", reading.join_all()).await;
    readers.iter().for_each(|reader| reader.check().unwrap());
}

/// F23: sixteen readers in a loop, never all out at once, cannot keep a writer out.
pub async fn readers_do_not_starve_a_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut reading = JoinSet::new();
    for reader in 0..16 {
        let (lock, over) = (make(if reader % 2 == 0 { &one } else { &other }).keep(false), Arc::clone(&over));
        reading.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = lock.read().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1 + reader % 5)).await;
                held.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        in_time("the writer gets in", make(&one).keep(false).write()).await.unwrap().release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time("the readers end", reading.join_all()).await;
}

/// Nor can writers keep a reader out.
pub async fn writers_do_not_starve_a_reader(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut writing = JoinSet::new();
    for writer in 0..6 {
        let (lock, over) = (make(if writer % 2 == 0 { &one } else { &other }).keep(false), Arc::clone(&over));
        writing.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = lock.write().await.unwrap();
                tokio::task::yield_now().await;
                held.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        in_time("the reader gets in", make(&other).keep(false).read()).await.unwrap().release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time("the writers end", writing.join_all()).await;
}

/// A reader that is lost is in no writer's way.
pub async fn a_lost_reader_lets_the_writer_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let reader = make(&one).ttl(SHORT).unwrap().keep(false).read().await.unwrap();
    let writer = in_time("the writer is let in", make(&other).keep(false).write()).await.unwrap();
    assert!(reader.valid_until() < tenure_core::Instant::now());
    assert_eq!(reader.check().unwrap_err().kind(), ErrorKind::Lost);
    writer.check().unwrap();
}

/// A writer that becomes a reader lets others in without letting go.
pub async fn downgrade_lets_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut held = make(&one).write().await.unwrap();
    let lock = make(&other).keep(false);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 1).await;
    let token = held.token();
    held.downgrade().await.unwrap();
    assert!(held.mode() == Mode::Shared && held.token() >= token);
    let reader = in_time("the reader is let in", reading).await.unwrap().unwrap();
    assert!(make(&other).try_write().await.unwrap().is_none());
    held.check().unwrap();
    held.release().await.unwrap();
    reader.release().await.unwrap();
    assert!(make(&other).try_write().await.unwrap().is_some());
}

/// A reader that is alone becomes the writer, with a higher token.
pub async fn upgrade_alone(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut held = make(&one).read().await.unwrap();
    // One that came later and has gone may have shown its higher token to the resource.
    let later = make(&other).read().await.unwrap();
    let token = later.token();
    later.release().await.unwrap();
    assert!(held.try_upgrade().await.unwrap());
    assert!(held.mode() == Mode::Exclusive && held.token() > token);
    assert!(make(&other).try_read().await.unwrap().is_none());
    held.release().await.unwrap();
    scene.is_free(&one, "x").await;
}

/// F26: of two readers that both want to become the writer, neither does, and neither waits for the other.
pub async fn two_readers_cannot_both_upgrade(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let (mut a, mut b) = (make(&one).read().await.unwrap(), make(&other).read().await.unwrap());
    let (a_did, b_did) = in_time("nobody waits", async { tokio::join!(a.try_upgrade(), b.try_upgrade()) }).await;
    assert!(!a_did.unwrap() && !b_did.unwrap());
    assert_eq!((a.mode(), b.mode()), (Mode::Shared, Mode::Shared));
    a.check().unwrap();
    b.release().await.unwrap();
    assert!(a.try_upgrade().await.unwrap(), "the other has gone");
}

/// Whoever waited before an upgrade stays out, also when the writer behind which it stood gives up. A store may say no while
/// somebody waits, and then it gets in.
pub async fn an_upgrade_keeps_those_out_who_waited(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut held = make(&one).read().await.unwrap();
    let (writer, reader) = (make(&other), make(&other));
    let writing = tokio::spawn(async move { writer.write().await });
    scene.line_is(&one, "x", 1).await;
    let reading = tokio::spawn(async move { reader.read().await });
    scene.line_is(&one, "x", 2).await;
    let upgraded = held.try_upgrade().await.unwrap();
    writing.abort();
    scene.line_is(&one, "x", usize::from(upgraded)).await;
    let token = held.token();
    if upgraded {
        tokio::time::sleep(Duration::from_millis(200)).await; // too short, and what should fail may pass; never the reverse
        assert!(!reading.is_finished(), "the writer is inside");
        held.release().await.unwrap();
    }
    assert!(in_time("the reader is let in", reading).await.unwrap().unwrap().token() > token);
}

/// Down and up and down again is one hold.
pub async fn up_and_down_again(scene: &Scene) {
    let client = scene.client().await;
    let mut held = make(&client).write().await.unwrap();
    let mut last = held.token();
    for _ in 0..5 {
        held.downgrade().await.unwrap();
        assert!(make(&client).try_read().await.unwrap().is_some());
        let is_alone = async || client.view("x").await.is_ok_and(|view| view.holders.len() == 1);
        crate::eventually_async("it is alone", is_alone).await;
        assert!(held.try_upgrade().await.unwrap());
        assert!(held.token() > last);
        last = held.token();
    }
    held.release().await.unwrap();
    scene.leaves_nothing([client]).await;
}

/// What cannot be converted says so and stays as it is.
pub async fn only_the_other_mode_can_be_converted_to(scene: &Scene) {
    let client = scene.client().await;
    let mut reader = make(&client).read().await.unwrap();
    assert_eq!(reader.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    reader.check().unwrap();
    reader.release().await.unwrap();
    let mut writer = make(&client).write().await.unwrap();
    assert_eq!(writer.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let mut mutex = client.mutex("y").unwrap().lock().await.unwrap();
    assert_eq!(mutex.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    mutex.check().unwrap();
}

/// A hold that is lost cannot be converted back to life.
pub async fn a_lost_hold_cannot_be_converted(scene: &Scene) {
    let client = scene.client().await;
    let mut reader = make(&client).ttl(SHORT).unwrap().keep(false).read().await.unwrap();
    reader.lost().await;
    assert_eq!(reader.try_upgrade().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A conversion does not make a hold last longer than the store lets it: no window reaches past what the store keeps.
pub async fn a_conversion_gives_no_more_time_than_the_store_does(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    faults.fail_renewals(true);
    let mut held = make(&client).ttl(Duration::from_secs(8)).unwrap().write().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await; // by so much it would be too long
    // An answer that is late is in doubt, and it may be asked for once more.
    let downgraded = async {
        while let Err(error) = held.downgrade().await {
            assert!(error.is_transient(), "{error}");
        }
    };
    in_time("the downgrade", downgraded).await;
    let writer = in_time("the writer is let in", make(&other).keep(false).write()).await.unwrap();
    assert!(held.valid_until() < tenure_core::Instant::now(), "the writer is in, and the reader may still trust its hold");
    writer.check().unwrap();
}

/// A downgrade without an answer arrives when its holder is the writer again, whether that was a reader meanwhile or the
/// writer all along: nobody else is let in.
pub async fn a_late_downgrade_does_nothing(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mut held = make(&client).write().await.unwrap();
    for reads_meanwhile in [true, false] {
        let token = held.token();
        faults.overtake_next_conversion(1 + usize::from(reads_meanwhile));
        held.downgrade().await.unwrap_err();
        assert_eq!(held.mode(), Mode::Shared, "it may be that, and so it is");
        if reads_meanwhile {
            held.downgrade().await.unwrap();
        }
        assert!(held.try_upgrade().await.unwrap(), "it is alone");
        assert!(!faults.conversion_is_under_way() && held.token() > token);
        assert!(make(&other).try_read().await.unwrap().is_none(), "the writer is inside");
        held.check().unwrap();
    }
    held.release().await.unwrap();
    scene.is_free(&client, "x").await;
}

/// An upgrade without an answer arrives when its holder was the writer meanwhile and is a reader again: nobody is kept out.
pub async fn a_late_upgrade_does_nothing(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mut held = make(&client).read().await.unwrap();
    faults.overtake_next_conversion(2);
    held.try_upgrade().await.unwrap_err();
    assert!(held.try_upgrade().await.unwrap(), "it is alone");
    held.downgrade().await.unwrap();
    assert!(!faults.conversion_is_under_way());
    assert!(make(&other).try_read().await.unwrap().is_some(), "readers share");
    held.release().await.unwrap();
    scene.is_free(&client, "x").await;
}

/// Whoever never heard what became of its upgrade can give it up: it is a reader then, and others share it.
pub async fn an_upgrade_without_an_answer_can_be_given_up(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    for was_done in [true, false] {
        let mut held = make(&client).read().await.unwrap();
        if was_done {
            faults.lose_conversions(1);
        } else {
            faults.overtake_next_conversion(usize::MAX);
        }
        held.try_upgrade().await.unwrap_err();
        assert_eq!(make(&other).try_read().await.unwrap().is_none(), was_done);
        held.downgrade().await.unwrap();
        assert_eq!(held.mode(), Mode::Shared);
        assert!(make(&other).try_read().await.unwrap().is_some(), "readers share");
        held.release().await.unwrap();
    }
    scene.is_free(&client, "x").await;
}
