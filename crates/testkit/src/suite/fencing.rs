//! Tokens rise for ever, and a resource that checks them never goes back.

use tenure_core::{ErrorKind, Sequencer, Token};

use super::{LONG, SHORT};
use crate::fenced::FencedFile;
use crate::history::{Recorder, expect_sound};
use crate::{Sabotage, Scene, eventually_async, in_time};

/// Tokens rise over every way a hold can end: released, dropped, lost, broken.
pub async fn tokens_rise_however_a_hold_ends(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap();
    let mut last = Token::new(0);
    for round in 0..12 {
        let expires = round % 4 == 2;
        let lock = mutex.clone().ttl(if expires { SHORT } else { LONG }).unwrap().keep(false);
        let held = in_time("it is free", lock.lock()).await.unwrap();
        assert!(held.token() > last, "round {round}");
        last = held.token();
        match round % 4 {
            0 => held.release().await.unwrap(),
            1 => drop(held),
            2 => held.lost().await,
            _ => assert_eq!(other.break_holds("x", None).await.unwrap(), 1),
        }
    }
}

/// F31: a name that was forgotten does not start over.
pub async fn a_forgotten_name_does_not_start_over(scene: &Scene) {
    let client = scene.client().await;
    let mut last = Token::new(0);
    for _ in 0..2 {
        let held = client.mutex("x").unwrap().lock().await.unwrap();
        assert!(held.token() > last);
        last = held.token();
        held.release().await.unwrap();
        eventually_async("nothing is left", async || scene.residue().await == 0).await;
    }
}

/// A token is a time in microseconds or more, where the store has no number of its own: losing everything costs nothing.
pub async fn tokens_are_seeded(scene: &Scene) {
    let client = scene.client().await;
    if client.abilities().fencing == tenure_core::backend::Fencing::DataOrClock {
        let held = client.mutex("x").unwrap().lock().await.unwrap();
        let year_2020 = 1_577_836_800_000_000;
        assert!(held.token().get() > year_2020, "{}", held.token());
    }
}

/// A resource that checks tokens refuses the one that comes too late, whatever it believes.
pub async fn a_late_writer_is_refused(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let path =
        std::env::temp_dir().join(format!("tenure-late-{}-{}", std::process::id(), tenure_core::Instant::now().as_nanos()));
    let recorder = Recorder::in_memory();
    let file = FencedFile::at(&path).recorded(&recorder, "x");
    let old = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock().await.unwrap();
    assert!(file.write(old.token().get()).unwrap());
    let new = in_time("the next is let in", other.mutex("x").unwrap().lock()).await.unwrap();
    assert!(file.write(new.token().get()).unwrap());
    assert!(!file.write(old.token().get()).unwrap(), "the old holder is too late");
    assert!(file.write(new.token().get()).unwrap(), "the new one may go on");
    std::fs::remove_file(path).unwrap();
    let mut pen = recorder.task("x", crate::history::Kind::Mutex);
    pen.asks(crate::history::Mode::Exclusive);
    pen.granted(new.token().get(), new.valid_until());
    expect_sound(&recorder.history());
}

/// The sequencer says which lock, kind, mode and token, and survives being printed.
pub async fn a_sequencer_survives_being_printed(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("invoices/2026 é:%").unwrap().lock().await.unwrap();
    let printed = held.sequencer().to_string();
    assert!(!printed.contains(' '), "one word: {printed}");
    let read: Sequencer = printed.parse().unwrap();
    assert_eq!((read.name, read.kind, read.mode, read.token), (held.name().clone(), held.kind(), held.mode(), held.token()));
    assert_eq!("tenure1:mutex".parse::<Sequencer>().unwrap_err().kind(), ErrorKind::BadOption);
}

/// A server that restarts goes on with higher tokens, and with what it kept.
pub async fn a_restart_does_not_start_over(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    let token = held.token();
    drop(held);
    client.close().await.unwrap();
    scene.sabotage(Sabotage::Restart).await; // a store without a server has nothing to restart: it is only opened again
    let client = scene.client().await;
    assert!(in_time("it is free", client.mutex("x").unwrap().lock()).await.unwrap().token() > token);
}
