//! What a store says about a sequencer: whether its hold is there, over, or followed by another.
//!
//! Stores forget a name some time after its last use, so a case that wants to hear "released" holds and lets go again until it is
//! quick enough to; where a server keeps nothing of a hold that is over, "unknown" is what it must say.

use tenure_core::backend::{Fencing, Liveness};
use tenure_core::{Client, Guard, Keys, Mode, Sequencer, Standing, Token};

use super::{LONG, SHORT};
use crate::{Scene, eventually_async, in_time};

async fn lock(client: &Client) -> Guard {
    in_time("it is free", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap()
}

async fn standing(client: &Client, sequencer: &Sequencer) -> Standing {
    in_time("the store answers", client.check(sequencer)).await.unwrap()
}

/// What may be said of a hold that is over, and that nobody is known to have followed.
fn is_over(standing: Standing) -> bool {
    matches!(standing, Standing::Released | Standing::Unknown)
}

/// Ends holds in some way until the store is asked before it has forgotten.
async fn released_at_last(client: &Client, mut ended: impl AsyncFnMut() -> Sequencer) {
    let remembers = client.abilities().liveness != Liveness::Session;
    let check = async || {
        let sequencer = ended().await;
        let standing = standing(client, &sequencer).await;
        assert!(is_over(standing), "{standing:?}");
        standing == Standing::Released || !remembers
    };
    eventually_async("it is said to be released", check).await;
}

/// A hold is current for everybody who asks, signed or not, also after somebody was turned away and while others wait.
pub async fn current_while_it_is_held(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let keys = Keys::generate("k").unwrap();
    let held = lock(&one.signed_with(keys.clone())).await;
    let sequencer = Sequencer::parse_verified(&held.sequencer().to_string(), &keys).unwrap();
    for client in [&one, &other] {
        assert_eq!(standing(client, &sequencer).await, Standing::Current);
    }
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&one, "x", 1).await;
    assert_eq!(standing(&other, &sequencer).await, Standing::Current);
    assert!(standing(&other, &sequencer).await.is_current());
    held.release().await.unwrap();
    let next = in_time("the next is let in", waiting).await.unwrap().unwrap();
    assert_eq!(standing(&one, &next.sequencer()).await, Standing::Current);
}

/// Whoever gets the name next supersedes it, by its token.
pub async fn superseded_by_the_next(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let exact = one.abilities().fencing != Fencing::None;
    let mut earlier = Vec::new();
    for _ in 0..3 {
        let held = lock(&one).await;
        for sequencer in &earlier {
            match standing(&other, sequencer).await {
                Standing::Superseded { by } => assert!(!exact || by == held.token(), "{by}, {held:?}"),
                standing => panic!("{standing:?}"),
            }
        }
        assert_eq!(standing(&other, &held.sequencer()).await, Standing::Current);
        earlier.push(held.sequencer());
        held.release().await.unwrap();
    }
}

/// Released and followed by nobody.
pub async fn released_when_it_was_let_go(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let ended = async || {
        let held = lock(&one).await;
        let sequencer = held.sequencer();
        held.release().await.unwrap();
        sequencer
    };
    released_at_last(&other, ended).await;
}

/// A broken hold is over, whatever its holder has heard of it.
pub async fn released_when_it_was_broken(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut holds = Vec::new();
    let ended = async || {
        let held = lock(&one).await;
        let sequencer = held.sequencer();
        assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
        holds.push(held);
        sequencer
    };
    released_at_last(&other, ended).await;
}

/// A hold that ran out is not current any more, and whoever follows supersedes it.
pub async fn not_current_when_it_ran_out(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock().await.unwrap();
    let sequencer = held.sequencer();
    held.lost().await;
    eventually_async("it runs out in the store", async || is_over(standing(&other, &sequencer).await)).await;
    let next = lock(&other).await;
    assert!(matches!(standing(&one, &sequencer).await, Standing::Superseded { .. }));
    assert_eq!(standing(&one, &next.sequencer()).await, Standing::Current);
}

/// What the store never gave it does not know: a name that nobody used, a token of the future, another name's token, another kind
/// or mode. And asking leaves nothing.
pub async fn unknown_when_it_was_never_given(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&one).await;
    let good = held.sequencer();
    let never = Sequencer { name: tenure_core::LockName::new("never used").unwrap(), ..good.clone() };
    let future = Sequencer { token: Token::new(good.token.get() + 3_600_000_000), ..good.clone() };
    let kind = Sequencer { kind: tenure_core::Kind::Election, ..good.clone() };
    let mode = Sequencer { mode: Mode::Shared, ..good.clone() };
    for forged in [never, future, kind, mode] {
        assert_eq!(standing(&other, &forged).await, Standing::Unknown, "{forged}");
    }
    assert_eq!(standing(&other, &good).await, Standing::Current);
    held.release().await.unwrap();
    scene.leaves_nothing([one, other]).await;
}

/// A name that was forgotten: the store says that it does not know, or what it remembers; never that it is current.
pub async fn over_when_the_name_was_forgotten(scene: &Scene) {
    let client = scene.client().await;
    let held = lock(&client).await;
    let sequencer = held.sequencer();
    held.release().await.unwrap();
    eventually_async("nothing is left", async || scene.residue().await == 0).await;
    assert!(is_over(standing(&client, &sequencer).await));
}

/// Each of several readers, whoever came or went before or after it.
pub async fn each_reader(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let make = |client: &Client| client.rw_lock("x").unwrap().ttl(LONG).unwrap();
    let (a, b, c) = (make(&one).read().await.unwrap(), make(&other).read().await.unwrap(), make(&one).read().await.unwrap());
    for reader in [&a, &b, &c] {
        assert_eq!(standing(&other, &reader.sequencer()).await, Standing::Current);
    }
    let (first, last) = (a.sequencer(), c.sequencer());
    a.release().await.unwrap();
    assert!(matches!(standing(&other, &first).await, Standing::Superseded { .. }), "others came after it");
    c.release().await.unwrap();
    let standing_of_last = standing(&other, &last).await;
    assert!(is_over(standing_of_last), "{standing_of_last:?}");
    assert_eq!(standing(&one, &b.sequencer()).await, Standing::Current);
}

/// A downgrade keeps the token, and is a writer no more.
pub async fn downgrade(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut held = one.rw_lock("x").unwrap().ttl(LONG).unwrap().write().await.unwrap();
    let writer = held.sequencer();
    assert_eq!(standing(&other, &writer).await, Standing::Current);
    held.downgrade().await.unwrap();
    assert_eq!((held.token(), held.sequencer().mode), (writer.token, Mode::Shared));
    assert_eq!(standing(&other, &held.sequencer()).await, Standing::Current);
    assert_eq!(standing(&other, &writer).await, Standing::Released);
}

/// Each permit of a semaphore.
pub async fn each_permit(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let make = |client: &Client| client.semaphore("x", 4).unwrap().ttl(LONG).unwrap();
    let (a, b) = (make(&one).acquire(1).await.unwrap(), make(&other).acquire(2).await.unwrap());
    for permit in [&a, &b] {
        assert_eq!(standing(&other, &permit.sequencer()).await, Standing::Current);
    }
    let more = Sequencer { mode: b.mode(), ..a.sequencer() };
    assert_eq!(standing(&other, &more).await, Standing::Unknown, "it has one permit, not two");
    let first = a.sequencer();
    a.release().await.unwrap();
    assert!(matches!(standing(&one, &first).await, Standing::Superseded { .. }));
    assert_eq!(standing(&one, &b.sequencer()).await, Standing::Current);
}

/// A name that is only kept closed is nobody's hold.
pub async fn closed_name(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().min_hold(LONG).unwrap().lock().await.unwrap();
    let sequencer = held.sequencer();
    assert_eq!(standing(&other, &sequencer).await, Standing::Current);
    held.release().await.unwrap();
    assert_eq!(standing(&other, &sequencer).await, Standing::Released);
    other.break_holds("x", None).await.unwrap();
}
