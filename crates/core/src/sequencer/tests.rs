//! Round trips, forgeries, near misses, and changing keys.

use proptest::prelude::*;

use super::*;

/// Every kind of sequencer there is.
fn any_sequencer() -> impl Strategy<Value = Sequencer> {
    let permits = |(take, more): (u32, u32)| Mode::Permits {
        take: NonZeroU32::new(take).expect("at least one"),
        of: NonZeroU32::new(take + more).expect("at least one"),
    };
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1..1000_u32, 0..1000_u32).prop_map(permits)];
    let name = "\\PC{1,80}".prop_filter_map("a name", |name| LockName::new(name).ok());
    let kind = proptest::sample::select(Kind::ALL.to_vec());
    (name, kind, mode, 0..=i64::MAX as u64, any::<u64>())
        .prop_map(|(name, kind, mode, token, issued_ms)| Sequencer::new(name, kind, mode, Token::new(token), issued_ms))
}

fn keys() -> Keys {
    Keys::parse(&format!("new:{}\nold:{}", "11".repeat(32), "22".repeat(32))).unwrap()
}

fn sequencer() -> Sequencer {
    Sequencer::new(LockName::new("invoices/2026 é").unwrap(), Kind::Mutex, Mode::Exclusive, Token::new(17), 5)
}

proptest! {
    #[test]
    fn every_sequencer_survives(sequencer in any_sequencer()) {
        prop_assert_eq!(sequencer.to_string().parse::<Sequencer>().unwrap(), sequencer.clone());
        let signed = sequencer.clone().signed_with(&keys());
        let read = Sequencer::parse_verified(&signed.to_string(), &keys()).unwrap();
        prop_assert_eq!(&read, &signed);
        prop_assert_eq!(read.signed_by(), Some("new"));
        prop_assert_eq!(sequencer.verify(&keys()).unwrap_err().kind(), ErrorKind::BadSignature);
    }

    #[test]
    fn rubbish_is_refused_and_never_panics(text in "(tenure1)?[:%a-z0-9/é-]{0,60}") {
        if let Ok(sequencer) = text.parse::<Sequencer>() {
            prop_assert_eq!(sequencer.to_string(), text);
        }
    }

    /// What is in a signed sequencer cannot be changed.
    #[test]
    fn every_field_is_signed(one in any_sequencer(), other in any_sequencer()) {
        let good = one.clone().signed_with(&keys());
        for (is_same, forged) in [
            (one.name == other.name, Sequencer { name: other.name, ..good.clone() }),
            (one.kind == other.kind, Sequencer { kind: other.kind, ..good.clone() }),
            (one.mode == other.mode, Sequencer { mode: other.mode, ..good.clone() }),
            (one.token == other.token, Sequencer { token: other.token, ..good.clone() }),
            (one.issued_ms == other.issued_ms, Sequencer { issued_ms: other.issued_ms, ..good.clone() }),
        ] {
            prop_assert_eq!(forged.verify(&keys()).is_ok(), is_same);
            prop_assert_eq!(Sequencer::parse_verified(&forged.to_string(), &keys()).is_ok(), is_same);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// A random text, a signed sequencer cut short or lengthened, with a flipped bit, a byte more, less or another, or two parts
    /// exchanged: whatever is not the very text that was signed is refused.
    #[test]
    fn none_of_ten_thousand_forgeries_is_accepted(
        sequencer in any_sequencer(),
        how in 0..8_usize,
        at: proptest::sample::Index,
        to: proptest::sample::Index,
        byte: u8,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let good = sequencer.signed_with(&keys()).to_string();
        let mut bytes = good.clone().into_bytes();
        let (place, other) = (at.index(bytes.len()), to.index(bytes.len()));
        match how {
            0 => bytes = noise,
            1 => bytes.truncate(place),
            2 => bytes[place] ^= 1 << (byte % 8),
            3 => bytes[place] = byte,
            4 => drop(bytes.remove(place)),
            5 => bytes.insert(place, byte),
            6 => bytes.swap(place, other),
            _ => bytes.extend(noise),
        }
        let text = String::from_utf8_lossy(&bytes);
        match Sequencer::parse_verified(&text, &keys()) {
            Ok(_) => prop_assert_eq!(&*text, &good),
            Err(error) => prop_assert!(matches!(error.kind(), ErrorKind::BadOption | ErrorKind::BadName | ErrorKind::BadSignature)),
        }
    }
}

/// Each bit of a signed sequencer, and each length, one by one.
#[test]
fn every_bit_and_every_length_counts() {
    let good = sequencer().signed_with(&keys()).to_string();
    for length in 0..good.len() {
        assert!(Sequencer::parse_verified(&good[..length], &keys()).is_err(), "{length}");
        for bit in 0..8 {
            let mut bytes = good.clone().into_bytes();
            bytes[length] ^= 1 << bit;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            assert!(Sequencer::parse_verified(&text, &keys()).is_err(), "{text}");
        }
    }
}

/// Fixed for ever: programs of different versions must agree on it. Python's `hmac` made this one.
#[test]
fn the_signature_is_the_one_that_others_compute() {
    let signed = sequencer().signed_with(&keys()).to_string();
    assert_eq!(
        signed,
        "tenure1:mutex:exclusive:17:5:invoices/2026%20%C3%A9:new:4U-k3D2Y-OzzWYf5wknAVlLwgSjrmHmCjHwvdwpEy2k"
    );
}

#[test]
fn near_misses_are_refused() {
    let good = "tenure1:semaphore:2/4:17:5:a%20b";
    assert!(good.parse::<Sequencer>().is_ok());
    let mac = "A".repeat(43);
    assert!(format!("{good}:k:{mac}").parse::<Sequencer>().is_ok());
    for bad in [
        "",
        "tenure1",
        "tenure2:semaphore:2/4:17:5:a",
        "tenure1:semaphore:5/4:17:5:a",
        "tenure1:semaphore:0/4:17:5:a",
        "tenure1:mutex:exclusive:+17:5:a",
        "tenure1:mutex:exclusive:017:5:a",
        "tenure1:mutex:exclusive:17:5:a b",
        "tenure1:mutex:exclusive:17:5:%61",
        "tenure1:mutex:exclusive:17:5:",
        "tenure1:mutex:exclusive:9223372036854775808:5:a",
        "tenure1:mutex:exclusive:17:5:a:b",
        "tenure1:mutex:exclusive:17:5:%c3",
        "tenure1:mutex:exclusive:17:5:a%2",
        &format!("{good}:{mac}"),
        &format!("{good}::{mac}"),
        &format!("{good}:k:"),
        &format!("{good}:k:{mac}:"),
        &format!("{good}:k:{mac}="),
        &format!("{good}:k:{}B", &mac[1..]), // bits behind the last byte
        &format!("{good}:k/k:{mac}"),
        &format!("{good}:{}:{mac}", "k".repeat(33)),
        &"tenure1:".repeat(1000),
    ] {
        assert!(bad.parse::<Sequencer>().is_err(), "{bad}");
    }
}

#[test]
fn the_longest_sequencer_can_be_read() {
    let name = LockName::new("é".repeat(LockName::MAX_BYTES / 2)).unwrap();
    let mode = Mode::Permits { take: NonZeroU32::MAX, of: NonZeroU32::MAX };
    let longest = Sequencer::new(name, Kind::Semaphore, mode, Token::new(i64::MAX as u64), u64::MAX);
    let keys = Keys::generate(&"k".repeat(keys::MAX_ID_BYTES)).unwrap();
    let text = longest.signed_with(&keys).to_string();
    assert!(Sequencer::parse_verified(&text, &keys).is_ok(), "{} of {MAX_BYTES} bytes", text.len());
    assert!(format!("{text}{}", "A".repeat(MAX_BYTES)).parse::<Sequencer>().is_err());
}

#[test]
fn keys_can_be_changed_without_refusing_anybody() {
    let [old, new] = ["11", "22"].map(|byte| byte.repeat(32));
    let before = Keys::parse(&format!("old:{old}")).unwrap();
    let both = Keys::parse(&format!("old:{old}\nnew:{new}")).unwrap();
    let turned = Keys::parse(&format!("new:{new},old:{old}")).unwrap();
    let after = Keys::parse(&format!("new:{new}")).unwrap();
    let (by_old, by_new) = (sequencer().signed_with(&before), sequencer().signed_with(&turned));
    assert_eq!((by_old.signed_by(), by_new.signed_by()), (Some("old"), Some("new")));
    assert_eq!(sequencer().signed_with(&both), by_old);
    for keys in [&before, &both, &turned] {
        by_old.verify(keys).unwrap();
    }
    for keys in [&both, &turned, &after] {
        by_new.verify(keys).unwrap();
    }
    let refused = by_old.verify(&after).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadSignature);
    assert!(refused.to_string().contains("\"old\", which is not known here"), "{refused}");
}

#[test]
fn every_refusal_says_what_is_wrong_and_shows_no_secret() {
    let impostor = Keys::parse(&format!("new:{}", "33".repeat(32))).unwrap();
    let stranger = Keys::generate("other").unwrap();
    let says = |sequencer: Sequencer| {
        let error = sequencer.verify(&keys()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadSignature);
        error.to_string()
    };
    let unsigned = says(sequencer());
    let forged = says(sequencer().signed_with(&impostor));
    let unknown = says(sequencer().signed_with(&stranger));
    assert!(unsigned.contains("is not signed") && unsigned.contains("invoices/2026"), "{unsigned}");
    assert!(forged.contains("signature with the key \"new\" is wrong"), "{forged}");
    assert!(unknown.contains("\"other\", which is not known here") && unknown.contains("new, old"), "{unknown}");
    for text in [unsigned, forged, unknown] {
        assert!(!text.contains("1111") && !text.contains("2222"), "{text}");
    }
}
