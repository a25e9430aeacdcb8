//! A re-entrant mutex is entered again by its owner, and by nobody else.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Owner, ReentrantMutex};

use super::{LONG, SHORT};
use crate::{Scene, in_time};

fn make(client: &Client) -> ReentrantMutex {
    client.reentrant_mutex("x").unwrap().ttl(LONG).unwrap()
}

/// P11: all entries of one hold have its token, and it is free when the last has gone, in whatever order they go.
pub async fn same_token_and_free_at_zero(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let me = Owner::new(&client);
    let outer = make(&client).lock(&me).await.unwrap();
    let inner = make(&client).lock(&me).await.unwrap();
    let innermost = make(&client).try_lock(&me.clone()).await.unwrap().expect("clones are the same owner");
    assert!(outer.token() == inner.token() && inner.token() == innermost.token());
    outer.release().await.unwrap();
    drop(innermost);
    inner.check().unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let token = inner.token();
    inner.release().await.unwrap();
    let next = make(&client).try_lock(&me).await.unwrap().expect("free at zero");
    assert!(next.token() > token, "a new hold, a new token");
    next.release().await.unwrap();
    scene.leaves_nothing([client, other]).await;
}

/// Another owner is somebody else, in the same task, client or process.
pub async fn another_owner_waits(scene: &Scene) {
    let client = scene.client().await;
    let (me, you) = (Owner::new(&client), Owner::new(&client));
    let mine = make(&client).lock(&me).await.unwrap();
    assert!(make(&client).try_lock(&you).await.unwrap().is_none());
    assert!(make(&client).try_lock_for(&you, Duration::from_millis(10)).await.unwrap().is_none());
    let mutex = make(&client).keep(false);
    let yours = tokio::spawn(async move { mutex.lock(&you).await });
    scene.line_is(&client, "x", 1).await;
    let again = make(&client).lock(&me).await.unwrap();
    mine.release().await.unwrap();
    scene.line_is(&client, "x", 1).await;
    again.release().await.unwrap();
    in_time("the other owner is let in", yours).await.unwrap().unwrap().check().unwrap();
}

/// To everybody else it is the mutex of that name.
pub async fn it_is_a_mutex_to_others(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let me = Owner::new(&one);
    let plain = other.mutex("x").unwrap().lock().await.unwrap();
    assert!(make(&one).try_lock(&me).await.unwrap().is_none());
    plain.release().await.unwrap();
    let mine = make(&one).lock(&me).await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert!(one.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    drop(mine);
}

/// Two tasks of one owner that ask at once are one ask: both get in, with one token.
pub async fn two_tasks_of_one_owner(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    for round in 0..20 {
        let me = Owner::new(&client);
        let held = other.mutex("x").unwrap().lock().await.unwrap();
        let entering = [0, 1].map(|_| {
            let (mutex, me) = (make(&client).keep(false), me.clone());
            tokio::spawn(async move { mutex.lock(&me).await })
        });
        if round % 2 == 0 {
            scene.line_is(&client, "x", 1).await;
        }
        held.release().await.unwrap();
        let [a, b] = entering;
        let a = in_time("one task enters", a).await.unwrap().unwrap();
        let b = in_time("so does the other", b).await.unwrap().unwrap();
        assert_eq!(a.token(), b.token());
        assert_eq!(client.view("x").await.unwrap().holders.len(), 1);
        let (a, b) = tokio::join!(a.release(), b.release());
        a.and(b).unwrap();
        scene.is_free(&client, "x").await;
    }
}

/// A task of an owner that gives up does not take the other's ask with it.
pub async fn one_task_gives_up_and_the_other_gets_in(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let me = Owner::new(&client);
    let held = other.mutex("x").unwrap().lock().await.unwrap();
    let [first, second] = [0, 1].map(|_| {
        let (mutex, me) = (make(&client).keep(false), me.clone());
        tokio::spawn(async move { mutex.lock(&me).await })
    });
    scene.line_is(&client, "x", 1).await;
    first.abort();
    scene.line_is(&client, "x", 1).await;
    held.release().await.unwrap();
    in_time("the other task enters", second).await.unwrap().unwrap().check().unwrap();
}

/// A hold that is lost cannot be entered again: the inner section would not learn of it.
pub async fn a_lost_hold_cannot_be_entered(scene: &Scene) {
    let client = scene.client().await;
    let me = Owner::new(&client);
    let held = make(&client).ttl(SHORT).unwrap().keep(false).lock(&me).await.unwrap();
    held.lost().await;
    assert_eq!(make(&client).try_lock(&me).await.unwrap_err().kind(), ErrorKind::Lost);
    drop(held);
    in_time("a new hold is possible", make(&client).lock(&me)).await.unwrap().release().await.unwrap();
}
