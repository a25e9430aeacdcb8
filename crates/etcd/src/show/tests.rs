//! What another program may have put among the keys.

use super::*;

#[test]
fn any_seat_has_a_fingerprint() {
    assert_eq!(fingerprint("00000000deadbeef"), Fingerprint(0xdead_beef));
    for strange in ["", "ff", "\u{e9}1234567", "\u{1f512}\u{1f512}\u{1f512}"] {
        fingerprint(strange);
    }
}
