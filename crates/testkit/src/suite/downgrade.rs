//! A writer that becomes a reader in place.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Instant, Mode, RwLock};

use super::{LONG, SHORT};
use crate::{Scene, in_time};

pub use super::cancel::downgrade as cancelled;
pub use super::check::downgrade as it_changes_the_standing;

fn make(client: &Client) -> RwLock {
    client.rw_lock("x").unwrap().ttl(LONG).unwrap()
}

/// Other readers get in, writers do not, and the hold was never let go: it keeps its token.
pub async fn it_lets_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut held = make(&one).write().await.unwrap();
    let lock = make(&other).keep(false);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 1).await;
    let token = held.token();
    held.downgrade().await.unwrap();
    assert_eq!((held.mode(), held.token()), (Mode::Shared, token));
    let reader = in_time("the reader is let in", reading).await.unwrap().unwrap();
    assert!(reader.token() > token);
    assert!(make(&other).try_write().await.unwrap().is_none());
    held.check().unwrap();
    held.release().await.unwrap();
    reader.release().await.unwrap();
    assert!(make(&other).try_write().await.unwrap().is_some());
    scene.leaves_nothing([one, other]).await;
}

/// A reader and a mutex say so and stay as they are.
pub async fn only_a_writer_can_be_downgraded(scene: &Scene) {
    let client = scene.client().await;
    let mut held = make(&client).write().await.unwrap();
    held.downgrade().await.unwrap();
    let mut mutex = client.mutex("y").unwrap().lock().await.unwrap();
    for guard in [&mut held, &mut mutex] {
        assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
        guard.check().unwrap();
    }
}

/// A hold that is lost cannot be brought back to life.
pub async fn a_lost_hold_cannot_be_downgraded(scene: &Scene) {
    let client = scene.client().await;
    let mut writer = make(&client).ttl(SHORT).unwrap().keep(false).write().await.unwrap();
    writer.lost().await;
    assert_eq!(writer.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A downgrade does not make a hold last longer than the store lets it: no window reaches past what
/// the store keeps.
pub async fn it_gives_no_more_time(scene: &Scene) {
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
    assert!(held.valid_until() < Instant::now(), "the writer is in, and the reader may still trust its hold");
    writer.check().unwrap();
}

/// Whoever never heard what became of its downgrade is a reader, and may ask again.
pub async fn a_lost_answer_can_be_asked_for_again(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mut held = make(&client).write().await.unwrap();
    let token = held.token();
    faults.lose_downgrades(1);
    held.downgrade().await.unwrap_err();
    assert_eq!(held.mode(), Mode::Shared, "it may be that, and so it is");
    held.downgrade().await.unwrap();
    assert_eq!((held.mode(), held.token()), (Mode::Shared, token));
    assert!(make(&other).try_read().await.unwrap().is_some(), "readers share");
    held.release().await.unwrap();
    scene.is_free(&client, "x").await;
}

/// A downgrade that arrives when its holder has released and holds anew, as the writer, is not for
/// that hold: nobody is let in.
pub async fn a_late_copy_does_nothing(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mut held = make(&client).write().await.unwrap();
    faults.delay_next_downgrade();
    held.downgrade().await.unwrap_err();
    held.release().await.unwrap();
    let writer = make(&client).write().await.unwrap();
    assert!(!faults.downgrade_is_under_way());
    assert!(make(&other).try_read().await.unwrap().is_none(), "the writer is inside");
    writer.check().unwrap();
    writer.release().await.unwrap();
    scene.is_free(&client, "x").await;
}

/// However early a downgrade is cancelled, its guard is never a writer's while somebody else reads.
pub async fn cancelled_it_claims_no_more_than_it_has(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for polls in 0..6 {
        let mut held = one.rw_lock("x").unwrap().write().await.unwrap();
        drop(crate::polls::at_most(polls, Duration::ZERO, held.downgrade()).await);
        if let Some(reader) = other.rw_lock("x").unwrap().try_read().await.unwrap() {
            assert_eq!(held.mode(), Mode::Shared, "after {polls} polls");
            reader.release().await.unwrap();
        }
        held.release().await.unwrap();
    }
}
