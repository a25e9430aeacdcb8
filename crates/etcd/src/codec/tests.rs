//! What a value says comes back, and nothing that anybody may have written there does harm.

use super::*;

#[test]
fn a_value_comes_back() {
    let plain = Value {
        note: Note::new("10.0.0.7:8080 é").unwrap(),
        claim: Fingerprint(0x0123_4567),
        id: "9f86".to_owned(),
        origin: Origin { host: "host name".into(), pid: 12 },
        ttl: Duration::from_millis(30_001),
        lock_delay: Duration::from_millis(7),
        since: 1_700_000_000_000_000,
        shared: false,
        closing: false,
        asked: None,
    };
    let by = Origin { host: "other".into(), pid: 3 };
    let full = Value {
        shared: true,
        closing: true,
        asked: Some(Ask { reason: Note::new("deploy  now").unwrap(), by }),
        ..plain.clone()
    };
    for value in [plain, full] {
        assert_eq!(Value::decode(&value.encode()), value);
        assert!(value.encode().starts_with("10.0.0.7:8080 é\n".as_bytes()), "the note comes first");
    }
}

#[test]
fn anything_can_be_read() {
    for odd in [&b""[..], b"\xff\xfe", b"note\nclaim\nby\nttl x\nmode\nwhy no\nnew word 7", b"\x07bell"] {
        let value = Value::decode(odd);
        assert!(value.asked.is_none() && !value.closing);
    }
    assert_eq!(Value::decode(b"just a note").note.as_str(), "just a note");
}
