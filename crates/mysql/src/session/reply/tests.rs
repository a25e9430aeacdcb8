//! Answers, packet by packet, as a server sends them.

use super::*;
use crate::verbs::{number, text};

const FOLLOWED: u16 = 8;

fn done(status: u16) -> Vec<u8> {
    [&[0, 0, 0][..], &status.to_le_bytes(), &[0, 0]].concat()
}

fn end(status: u16) -> Vec<u8> {
    [&[0xfe, 0, 0][..], &status.to_le_bytes()].concat()
}

/// Whether the last of them was the end; none may come behind it.
fn take(reply: &mut Reply, packets: &[&[u8]]) -> io::Result<bool> {
    let mut was_last = false;
    for packet in packets {
        assert!(!was_last, "the end came early");
        was_last = reply.take(packet)?;
    }
    Ok(was_last)
}

#[test]
fn rows_of_every_statement_that_has_columns() {
    let mut reply = Reply::default();
    let rows: [&[u8]; 5] = [&[2], b"a column", b"another", &end(0), b"\x0242\xfb"];
    assert!(!take(&mut reply, &[&done(FOLLOWED)]).unwrap());
    assert!(!take(&mut reply, &rows).unwrap());
    assert!(!take(&mut reply, &[b"\x00\x03abc", &end(FOLLOWED)]).unwrap());
    assert!(!take(&mut reply, &[&[1], b"a column", &end(0), &end(FOLLOWED)]).unwrap());
    assert!(take(&mut reply, &[&done(0)]).unwrap());
    assert!(reply.failure.is_none());
    let [two, none] = &reply.sets[..] else { panic!("{:?}", reply.sets) };
    assert_eq!((number(&two[0], 0), two[0].as_ref(1)), (Some(42), Some(&Value::NULL)));
    assert_eq!((text(&two[1], 0), text(&two[1], 1)), (String::new(), "abc".to_owned()));
    assert!(none.is_empty());
}

/// A value of 16 MiB and more has its length in the eight bytes behind the byte that an end begins with.
#[test]
fn a_large_value_is_no_end() {
    let mut row = vec![0xfe];
    row.extend((1_u64 << 24).to_le_bytes());
    row.extend(vec![b'x'; 1 << 24]);
    let mut reply = Reply::default();
    assert!(take(&mut reply, &[&[1], b"a column", &end(0), &row, &end(0)]).unwrap());
    assert_eq!(text(&reply.sets[0][0], 0).len(), 1 << 24);
}

/// What came before stays; what the failed statement had begun does not.
#[test]
fn an_error_is_the_last() {
    let mut reply = Reply::default();
    take(&mut reply, &[&[1], b"a column", &end(0), b"\x011", &end(FOLLOWED), &[1], b"a column", &end(0), b"\x012"]).unwrap();
    assert!(reply.take(b"\xff\x25\x05#70100Query execution was interrupted").unwrap());
    let failure = reply.failure.unwrap();
    assert_eq!((failure.code, &*failure.state, &*failure.message), (1317, "70100", "Query execution was interrupted"));
    assert_eq!(reply.sets.len(), 1);
    let early = failure_in(b"\xff\x10\x04Too many connections").unwrap().unwrap();
    assert_eq!((early.code, &*early.message), (1040, "Too many connections"));
}

#[test]
fn half_an_answer_is_refused() {
    let begun: [&[u8]; 3] = [&[1], b"a column", &end(0)];
    for packets in [&[&[][..]][..], &[&[0, 0]], &[b"\xfbfile"], &[&[0xfc, 1]], &[&[0xff, 1]], &[&[1], b"one", b"two"]] {
        take(&mut Reply::default(), packets).expect_err("it was taken");
    }
    for packet in [&b"\x05four"[..], &[0xfd, 1, 0], &[0xfe, 0]] {
        let mut reply = Reply::default();
        take(&mut reply, &begun).unwrap();
        reply.take(packet).expect_err("it was taken");
    }
}
