//! Messages to and from bytes, and what rubbish comes to.

use proptest::prelude::*;

use super::*;

#[test]
fn a_message_begins_with_its_length() {
    let mut out = Vec::new();
    Request::Sync { path: "/a".into() }.encode(7, Access::World, &mut out);
    assert_eq!(out, [0, 0, 0, 14, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 2, b'/', b'a']);
    ping(&mut out);
    assert_eq!(out[18..], [0, 0, 0, 8, 255, 255, 255, 254, 0, 0, 0, 11]);
}

#[test]
fn the_first_answer_may_lack_its_last_field() {
    let mut body = vec![0, 0, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2, 1, 2];
    let expected = Connected { timeout_ms: 1000, session: 9, password: vec![1, 2] };
    assert_eq!(connected(&body), Some(expected.clone()));
    body.push(0);
    assert_eq!(connected(&body), Some(expected));
}

#[test]
fn a_swap_that_is_refused_says_why() {
    let swap = Request::Multi(vec![]);
    let mut body = Vec::new();
    for code in [RUNTIME_INCONSISTENCY, Refusal::NO_NODE.0] {
        part(&mut body, -1, false, code);
        int(&mut body, code);
    }
    part(&mut body, -1, true, -1);
    assert_eq!(swap.decode(&mut Reader(&body), 7), Some(Err(Refusal::NO_NODE)));
}

proptest! {
    #[test]
    fn rubbish_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        connected(&bytes);
        let mut reader = Reader(&bytes);
        answer(&mut reader);
        notice(&mut reader);
        let path = String::from("/a");
        for request in [
            Request::Create { path: path.clone(), data: vec![], kind: NodeKind::Ephemeral },
            Request::Get { path: path.clone(), watch: false },
            Request::Children { path, watch: false },
            Request::Multi(vec![]),
        ] {
            request.decode(&mut Reader(&bytes), 7);
        }
    }
}

#[test]
fn a_refusal_without_a_transaction_proves_nothing() {
    for refusal in [Refusal::NO_NODE, Refusal::NO_AUTH] {
        assert!(refusal.went_through_the_quorum(7) && !refusal.went_through_the_quorum(0));
    }
    assert!(!Refusal::NOT_READ_ONLY.went_through_the_quorum(7));
}
