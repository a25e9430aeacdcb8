//! What is a key and what is not, where keys come from, and that nothing shows them.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::Sequencer;

const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn sign(keys: &Keys) -> Sequencer {
    let unsigned: Sequencer = "tenure1:mutex:exclusive:17:5:x".parse().unwrap();
    unsigned.signed_with(keys)
}

#[test]
fn hex_and_base64_are_the_same_key() {
    let hex = Keys::parse(&format!("a:{HEX}")).unwrap();
    for same in [
        format!("a:{}", HEX.to_uppercase()),
        format!("a:{BASE64}"),
        format!("a:{}", BASE64.trim_end_matches('=')),
        format!("\n# a comment, with a: colon, and commas\n  a : {BASE64} \r\n\n"),
        hex.reveal(),
    ] {
        sign(&hex).verify(&Keys::parse(&same).unwrap()).unwrap();
    }
    // Bytes that the two alphabets of base64 write differently.
    let standard = Keys::parse(&format!("a:{}", "+/".repeat(22))).unwrap();
    sign(&standard).verify(&Keys::parse(&format!("a:{}", "-_".repeat(22))).unwrap()).unwrap();
}

#[test]
fn what_is_no_key_is_refused_without_being_shown() {
    for bad in [
        "".to_owned(),
        "# only a comment".to_owned(),
        HEX.to_owned(),
        format!("a:{}", &HEX[2..]),
        format!("a:{}", "ab".repeat(1025)),
        format!(":{HEX}"),
        format!("a b:{HEX}"),
        format!("{}:{HEX}", "a".repeat(33)),
        format!("a:{HEX}!"),
        format!("a:{HEX}\na:{}", HEX.replace('0', "f")),
        (0..9).map(|n| format!("a{n}:{HEX}\n")).collect(),
    ] {
        let error = Keys::parse(&bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption, "{bad}");
        assert!(!error.to_string().contains("0405") && !format!("{error:?}").contains("0405"), "{error:?}");
    }
}

#[test]
fn debug_shows_ids_only() {
    let keys = Keys::parse(&format!("new:{HEX}\nold:{}", HEX.replace('0', "f"))).unwrap();
    assert_eq!(format!("{keys:?}"), r#"Keys["new", "old"]"#);
    let client = crate::Client::new(crate::memory::Memory::new().backend()).unwrap().signed_with(keys);
    assert!(!format!("{client:?}").contains("0405"));
}

#[test]
fn fresh_keys_differ() {
    let (one, other) = (Keys::generate("a").unwrap(), Keys::generate("a").unwrap());
    assert!(sign(&one).verify(&one).is_ok() && sign(&one).verify(&other).is_err());
    assert_eq!(Keys::generate("a:b").unwrap_err().kind(), ErrorKind::BadOption);
}

#[test]
fn a_file_that_others_may_read_or_change_is_refused() {
    let path = std::env::temp_dir().join(format!("tenure-keys-{}", std::process::id()));
    std::fs::write(&path, format!("a:{HEX}\n")).unwrap();
    for (mode, is_good) in [(0o600, true), (0o400, true), (0o640, true), (0o644, false), (0o620, false), (0o602, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = Keys::from_file(&path);
        assert_eq!(read.is_ok(), is_good, "{mode:o}");
        if let Err(error) = read {
            let says = error.to_string();
            assert!(says.contains("chmod 600") && says.contains(path.to_str().unwrap()) && !says.contains("0405"), "{says}");
        }
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, format!("a:{HEX}0")).unwrap();
    let error = Keys::from_file(&path).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && !error.contains("0405"), "{error}");
    std::fs::write(&path, "#".repeat(Keys::MOST_FILE_BYTES as usize + 1)).unwrap();
    assert!(Keys::from_file(&path).unwrap_err().to_string().contains("too long"));
    std::fs::remove_file(&path).unwrap();
    assert!(Keys::from_file(&path).unwrap_err().to_string().contains(path.to_str().unwrap()));
}

#[test]
fn the_environment_has_the_keys_or_the_name_of_their_file() {
    let line = || Some(format!("a:{HEX}").into());
    assert!(Keys::from_variables(None, None).unwrap().is_none());
    assert_eq!(Keys::from_variables(line(), None).unwrap().unwrap().signer(), "a");
    assert!(Keys::from_variables(None, Some("/nowhere/at/all".into())).is_err());
    let both = Keys::from_variables(line(), Some("/nowhere".into())).unwrap_err().to_string();
    assert!(both.contains("TENURE_KEYS and TENURE_KEYS_FILE") && !both.contains("0405"), "{both}");
    let bad = Keys::from_variables(Some(HEX.into()), None).unwrap_err().to_string();
    assert!(bad.contains("TENURE_KEYS") && !bad.contains("0405"), "{bad}");
}
