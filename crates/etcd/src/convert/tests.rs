//! What a conversion comes to.

use super::*;
use crate::config::Layout;
use crate::scene::claim;
use crate::schema::Seat;

/// A writer, its answer to a downgrade lost, asks to be the writer again while a reader waits: its token is still the one that the
/// downgrade knew, which may arrive any time. So that is no upgrade; with another token it is one that was done already.
#[test]
fn an_upgrade_that_was_done_has_another_token() {
    let schema = Schema::new("t", Layout::Tenure);
    let (writer, reader) = (claim(Kind::RwLock, Mode::Exclusive, "x"), claim(Kind::RwLock, Mode::Shared, "x"));
    let key_of = |claim: &Claim, client, revision| KeyValue {
        key: schema.key(claim, Seat { client, number: 0 }, 1),
        create_revision: revision,
        mod_revision: revision,
        value: Value::of(claim).encode(),
        lease: 1,
    };
    let tickets = line(&schema, vec![key_of(&writer, 1, 5), key_of(&reader, 2, 6)]);
    let upgrade = |known| plan(&schema, &writer, &tickets, 0, Mode::Exclusive, Token::new(known), 6);
    assert!(matches!(upgrade(5), Plan::No));
    assert!(matches!(upgrade(4), Plan::Done(token) if token.get() == 5));
    let downgrade = plan(&schema, &writer, &tickets, 0, Mode::Shared, Token::new(5), 6);
    assert!(matches!(downgrade, Plan::Do(_, Some(token), Mode::Shared) if token.get() == 5));
}
