//! A hold that becomes the writer while it is broken or ended, and what another program may have put among the keys.

use tenure_core::{Claim, Mode};

use super::*;
use crate::scene::{claim, client, holds, key, read};

/// A reader that holds, and the key that its conversion puts beside it, for a moment when nobody knows of it yet.
async fn converted(inner: &Arc<Inner>, name: &str) -> (Claim, [Vec<u8>; 2], Vec<Ticket>) {
    let reader = claim(Kind::RwLock, Mode::Shared, name);
    holds(inner, &reader).await;
    let (seen, _) = inner.line_of(&reader.name).await.unwrap();
    let kv = key(inner, &reader).await;
    let beside = inner.schema.beside(&reader.name, &kv.key);
    let success = vec![put(&beside, Value::of(&reader).encode(), kv.lease)];
    inner.txn("converting an rw lock", TxnRequest { success, ..Default::default() }).await.unwrap();
    assert!(read(inner, &beside).await.is_some());
    (reader, [kv.key, beside], seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_the_writer_meanwhile_is_broken_whole() {
    let inner = client();
    let (_, keys, seen) = converted(&inner, "broken while converted").await;
    assert!(inner.break_hold(&seen[0]).await.unwrap());
    for key in keys {
        assert_eq!(read(&inner, &key).await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_the_writer_meanwhile_is_ended_whole() {
    let inner = client();
    let (reader, keys, _) = converted(&inner, "ended while converted").await;
    inner.end(&reader, Duration::ZERO).await.unwrap();
    for key in keys {
        assert_eq!(read(&inner, &key).await, None);
    }
}

#[test]
fn any_seat_has_a_fingerprint() {
    assert_eq!(fingerprint("00000000deadbeef"), Fingerprint(0xdead_beef));
    for strange in ["", "ff", "\u{e9}1234567", "\u{1f512}\u{1f512}\u{1f512}"] {
        fingerprint(strange);
    }
}
