//! Notifications that are found, and those that are missed.

use super::super::ALIVE;
use super::*;
use crate::{Kind, Mode, Note, Origin, Token};

fn claim() -> Claim {
    Claim {
        name: LockName::new("x").unwrap(),
        kind: Kind::Mutex,
        mode: Mode::Exclusive,
        id: ClaimId::from_bytes([7; 16]),
        ttl: Duration::from_secs(30),
        handover_ttl: Duration::from_secs(10),
        lock_delay: Duration::ZERO,
        min_hold: Duration::ZERO,
        note: Note::none(),
        origin: Origin { host: "here".into(), pid: 1 },
    }
}

/// See "May a look be believed?": whoever looks was heard not long ago, or is heard with that look.
#[test]
fn whoever_looks_after_a_missed_beat_brings_it_along() {
    let (ear, claim) = (Ear::default(), claim());
    let _expecting = ear.expect(&claim, None);
    ear.asked([claim.id].into_iter());
    ear.queued(claim.id, Heard { sent: Instant::now(), then: 100 }, None);
    let now = ear.waits().waiters[&claim.id].heard; // what its looks and beats are counted from, however slow the machine is
    let looks = |after: Duration| {
        let due = ear.due(now + after);
        (due.waiters.len(), due.beat)
    };
    let soon = Duration::from_millis(100);
    assert_eq!(looks(soon), (1, false), "it has only just asked");
    assert_eq!(looks(HEARTBEAT + COMPANY), (1, true), "every look from here on brings a beat");
    ear.missed_a_beat(Duration::from_millis(500));
    assert_eq!(looks(soon), (1, true), "it is not waited for the next one");
    ear.kept_places();
    assert_eq!(looks(soon), (1, false), "it was kept");
    assert!(HEARTBEAT + COMPANY + HANDOVER_TTL < ALIVE, "a place outlives what a look can find");
}

#[test]
fn what_is_found_late_or_for_long_is_renewed_first() {
    let ear = Ear::default();
    ear.connected("one", Instant::now(), 50);
    let is_believed = |lasts: Duration, tell: &dyn Fn(&Claim)| {
        let claim = Claim { handover_ttl: lasts, ..claim() };
        let mut expecting = ear.expect(&claim, None);
        tell(&claim);
        match expecting.verdict.try_recv().unwrap() {
            Verdict::Granted(_) => true,
            Verdict::Found(_) => false,
            verdict => panic!("{verdict:?}"),
        }
    };
    let token = Token::new(9);
    let sees = |claim: &Claim, left| {
        let heard = Heard { sent: Instant::now(), then: 100 };
        ear.touched(claim.id, heard, &Touched::Granted { token, since: 90, left });
    };
    let long = HANDOVER_TTL * 2;
    assert!(is_believed(HANDOVER_TTL, &|claim| sees(claim, HANDOVER_TTL)));
    assert!(!is_believed(long, &|claim| sees(claim, long)), "nobody looks after it for longer than its place is kept");
    assert!(!is_believed(HANDOVER_TTL, &|claim| sees(claim, HANDOVER_TTL / 3)), "it is nearly over");
    let hears = |claim: &Claim| ear.told(Message::Granted { id: claim.id, token: Token::new(60), granted: 60 });
    assert!(is_believed(HANDOVER_TTL, &hears));
    assert!(is_believed(long, &hears), "what is told is on the disk");
    ear.read_clock(Heard { sent: Instant::now(), then: 60 + HANDOVER_TTL.as_micros() as u64 * 2 / 3 });
    assert!(!is_believed(HANDOVER_TTL, &hears), "it is nearly over");
}

/// A message may be made up, where no proof comes with it or where whoever may write the store does so.
#[test]
fn what_the_server_cannot_have_said_is_looked_after_and_not_believed() {
    let ear = Ear::default();
    let (sent, now) = (Instant::now(), 1_700_000_000_000_000);
    ear.connected("one", sent, now);
    let mut expecting = ear.expect(&claim(), None);
    let id = claim().id;
    let tokens = [0, now - 1, now + MOST_AHEAD.as_micros() as u64 + 1, i64::MAX as u64, u64::MAX];
    let granted = |token| Message::Granted { id, token: Token::new(token), granted: now };
    for message in tokens.map(granted).into_iter().chain([Message::MaybeGranted(id)]) {
        ear.queued(id, Heard { sent, then: now }, None);
        assert!(ear.due(sent).waiters.is_empty(), "nothing is due");
        ear.told(message.clone());
        assert!(expecting.verdict.try_recv().is_err(), "{message:?}");
        assert_eq!(ear.due(Instant::now()).waiters.len(), 1, "{message:?}");
    }
    let heard = Heard { sent: Instant::now(), then: now };
    ear.touched(id, heard, &Touched::Granted { token: Token::new(now), since: now, left: Duration::from_secs(3_600) });
    let Ok(Verdict::Found(grant)) = expecting.verdict.try_recv() else { panic!("it is let in, and that is confirmed") };
    assert!(grant.until <= Instant::now() + claim().handover_ttl, "no longer than it asked for");
}

/// Something in between may swallow messages although there is a connection for them.
#[test]
fn whoever_missed_a_message_looks_until_one_arrives() {
    let (ear, claim) = (Ear::default(), claim());
    ear.connected("one", Instant::now(), 50);
    ear.listening();
    assert!(ear.is_told());
    let later = 60 + MISSED.as_micros() as u64 + 1;
    let expecting = ear.expect(&claim, None);
    let found = Touched::Granted { token: Token::new(60), since: 60, left: HANDOVER_TTL };
    ear.touched(claim.id, Heard { sent: Instant::now(), then: later }, &found);
    assert!(!ear.is_told(), "nobody had told it");
    drop(expecting);
    let _expecting = ear.expect(&claim, None);
    ear.told(Message::Granted { id: claim.id, token: Token::new(later), granted: later });
    assert!(ear.is_told());
}

/// A grant is committed after a look has begun, and its time is from before: the look did not see it, and the message counts.
#[test]
fn a_look_does_not_make_a_message_old() {
    let (ear, claim) = (Ear::default(), claim());
    let sent = Instant::now();
    ear.connected("one", sent, 50);
    let granted = |granted| Message::Granted { id: claim.id, token: Token::new(granted), granted };
    let mut expecting = ear.expect(&claim, None);
    ear.queued(claim.id, Heard { sent, then: 100 }, None);
    ear.told(granted(90));
    assert!(expecting.verdict.try_recv().is_err(), "older than the answer to the ask");
    ear.touched(claim.id, Heard { sent, then: 200 }, &Touched::Waiting { first: true, change_in: None });
    ear.told(granted(150));
    assert!(matches!(expecting.verdict.try_recv(), Ok(Verdict::Granted(_))), "older than the look only");
}

/// A news desk that counts.
#[derive(Default)]
struct Counts(crate::polled::GrantsByPoll);

impl crate::keeper::Listener for Counts {
    fn asked(&self, _: ClaimId, _: crate::Ask) {}
    fn lost(&self, _: ClaimId, _: crate::LossReason) {}
    fn verify(&self) {}
    fn renew_now(&self) {}
    fn grant_by_poll(&self, id: ClaimId, is_told: bool) {
        if is_told { self.0.is_told(id) } else { self.0.is_found(id) }
    }
    fn runtime(&self) -> Option<Handle> {
        None
    }
}

/// See "Which grants did a look find that a message should have told?".
#[test]
fn a_look_that_finds_what_a_message_owed_is_counted() {
    let (ear, counts, id) = (Ear::default(), std::sync::Arc::new(Counts::default()), claim().id);
    let desk: std::sync::Arc<dyn crate::keeper::Listener> = std::sync::Arc::clone(&counts) as _;
    ear.attach(News::to(std::sync::Arc::downgrade(&desk)));
    ear.connected("one", Instant::now(), 50_000);
    let waits = |then| {
        let expecting = ear.expect(&claim(), None);
        ear.queued(id, Heard { sent: Instant::now(), then }, None);
        expecting
    };
    let looks = |then, since| {
        let granted = Touched::Granted { token: Token::new(since), since, left: HANDOVER_TTL };
        ear.touched(id, Heard { sent: Instant::now(), then }, &granted);
        counts.0.count()
    };
    let message = |granted| ear.told(Message::Granted { id, token: Token::new(granted), granted });
    let _first = waits(100_000);
    assert_eq!(looks(200_000, 150_000), 0, "nobody listened");
    let _second = waits(200_000);
    ear.listening();
    assert_eq!(looks(300_000, 250_000), 0, "it may have been let in before anybody listened");
    let _third = waits(300_000);
    assert_eq!(looks(400_000, 400_000), 0, "the look let it in");
    let _fourth = waits(400_000);
    ear.told(Message::MaybeGranted(id));
    assert_eq!(looks(500_000, 450_000), 0, "a message had it looked after");
    let _fifth = waits(500_000);
    assert_eq!(looks(600_000, 595_000), 0, "its message is on its way");
    let _fifth = waits(500_000);
    assert_eq!(looks(600_000, 550_000), 1);
    message(550_000);
    assert_eq!(counts.0.count(), 0, "the message was on its way");
    let _sixth = waits(600_000);
    message(650_000);
    assert_eq!((looks(700_000, 650_000), counts.0.count()), (0, 0), "it was told before");
    let _seventh = waits(700_000);
    ear.touched(id, Heard { sent: Instant::now(), then: 800_000 }, &Touched::Waiting { first: true, change_in: None });
    assert_eq!(looks(900_000, 750_000), 1, "a look does not see what is not committed");
    ear.silenced();
    let _eighth = waits(900_000);
    assert_eq!(looks(1_000_000, 950_000), 1, "nobody listens any more");
}
