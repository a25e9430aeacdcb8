//! For the tests of the parts: clients without a keeper, on a server that all of them share, and claims for them.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, ClaimId, Kind, LockName, Mode, Note, Origin, Wait};
use tenure_testkit::eventually;
use tenure_testkit::servers::etcd::Etcd;

use crate::config::Settings;
use crate::inner::Inner;
use crate::leases::waiting_seconds;
use crate::proto::{KeyValue, RangeRequest};

/// What no test outlasts, and what a waiter is granted: shorter, and no test outlasts it either.
pub(crate) const LONG: Duration = Duration::from_secs(600);
const SHORTER: Duration = Duration::from_secs(300);

/// A client of the server that all share. What it is asked hangs for as long as nobody answers.
pub(crate) fn client() -> Arc<Inner> {
    client_at(&Etcd::shared().url())
}

pub(crate) fn client_at(url: &str) -> Arc<Inner> {
    let url = format!("{url}?prefix=scene-{}&answer_limit=1h", std::process::id());
    Inner::new(Settings::from_url(&url.parse().unwrap()).unwrap()).unwrap()
}

pub(crate) fn claim(kind: Kind, mode: Mode, name: &str) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        kind,
        mode,
        id: ClaimId::from_bytes(crate::leases::fresh_id().to_be_bytes().repeat(2).try_into().unwrap()),
        ttl: LONG,
        handover_ttl: SHORTER,
        lock_delay: Duration::ZERO,
        min_hold: Duration::ZERO,
        note: Note::none(),
        origin: Origin { host: "here".into(), pid: 1 },
    }
}

pub(crate) fn mutex(name: &str) -> Claim {
    claim(Kind::Mutex, Mode::Exclusive, name)
}

/// Grants a claim, without a line.
pub(crate) async fn holds(client: &Arc<Inner>, claim: &Claim) {
    client.acquire(claim, Wait::No).await.unwrap().expect("there is room");
}

/// Waits until a claim stands in line, on the short lease of those who wait.
pub(crate) async fn waits(client: &Inner, claim: &Claim) {
    let short = waiting_seconds(claim);
    let is_short = || {
        let table = client.table();
        let on = table.claims.get(&claim.id).and_then(|entry| entry.on.as_ref());
        on.is_some_and(|on| on.lease().seconds == short)
    };
    eventually("it waits, on the short lease", is_short).await;
}

/// Hands a claim over: it holds, on the short lease.
pub(crate) async fn handed_over(client: &Arc<Inner>, claim: &Claim) {
    let before = mutex(claim.name.as_str());
    holds(client, &before).await;
    let waiting = tokio::spawn({
        let (client, claim) = (Arc::clone(client), claim.clone());
        async move { client.acquire(&claim, Wait::Forever).await }
    });
    waits(client, claim).await;
    client.end(&before, Duration::ZERO).await.unwrap();
    waiting.await.unwrap().unwrap().expect("it is let in");
}

/// A claim's key, as the server has it.
pub(crate) async fn key(client: &Inner, claim: &Claim) -> KeyValue {
    let key = client.table().claims[&claim.id].key.clone();
    read(client, &key).await.expect("it is there")
}

pub(crate) async fn read(client: &Inner, key: &[u8]) -> Option<KeyValue> {
    let request = RangeRequest::one(key);
    let answer = client.asks.range("looking at a key", request).await.unwrap();
    answer.value.kvs.into_iter().next()
}
