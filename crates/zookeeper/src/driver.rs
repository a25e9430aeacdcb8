//! What keeps a session going: one task that writes, reads, renews, and finds another member when the one it has is of no use.
//!
//! Who can interleave: everybody puts requests into the session's [state](crate::session::State) under its mutex; only this task
//! takes them out, so an answer always belongs to the oldest request. It lives on a runtime of its own (`home`), so that neither a
//! busy executor nor one that ends can make a session lapse. The mutex is never held over an await.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::{Address, ClaimId, Clock, Instant, jitter, margin, random};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::config::Settings;
use crate::dial::{Carrier, Dialed, Ticket, dial, length_of};
use crate::error::Fault;
use crate::inner::Inner;
use crate::session::{Phase, Session, State, Trouble, Watched};
use crate::trust::{self, Trust};
use crate::wire::{self, Access, Reader, Refusal, Request};

/// How long the farewell of a session may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// How many bytes of paths one request to watch again has: servers refuse messages of a megabyte.
const WATCHES_AT_ONCE: usize = 128 * 1024;

/// The way to the members, in the order in which they are tried.
pub(crate) struct Members {
    addresses: Vec<Address>,
    next: usize,
    failures: u32,
}

impl Members {
    /// From a random one on, so that clients spread over them.
    pub(crate) fn new(settings: &Settings) -> Self {
        let addresses = settings.servers.clone();
        let next = u32::from_le_bytes(random()) as usize % addresses.len();
        Members { addresses, next, failures: 0 }
    }

    fn next(&mut self) -> Address {
        self.next = (self.next + 1) % self.addresses.len();
        self.addresses[self.next].clone()
    }

    /// A pause after each round in vain, at random and longer each time, so that members that restart are not stormed.
    async fn pause(&mut self) {
        self.failures += 1;
        if (self.failures as usize).is_multiple_of(self.addresses.len()) {
            let round = (self.failures as usize / self.addresses.len()).min(6) as u32;
            let pause = Duration::from_millis(5 << round);
            tokio::time::sleep(pause / 2 + jitter(pause)).await;
        }
    }
}

/// Opens a new session with whichever member answers.
///
/// # Cancel safety
/// Dropped, a session that was being made lapses by itself, and has nothing.
pub(crate) async fn open(settings: &Settings, wanted: Duration) -> Result<(Session, Dialed, Members), (Fault, Address)> {
    let deadline = Instant::now() + settings.connect_limit;
    let mut members = Members::new(settings);
    let ticket = Ticket { session: 0, password: vec![0; 16], timeout: wanted, last_zxid: 0 };
    loop {
        let address = members.next();
        // Each gets its share: one that is silent must not use up the time of the others.
        let share = settings.connect_limit / members.addresses.len().min(3) as u32;
        let failed = match timeout(share, dial(settings, &address, &ticket)).await {
            Ok(Ok(dialed)) if dialed.connected.timeout_ms > 0 => {
                let access = if settings.login.is_some() { Access::Creator } else { Access::World };
                let session = Session::new(access, wanted, State::of(&dialed, address));
                return Ok((session, dialed, members));
            }
            Ok(Ok(_)) => Fault::nonsense("its answer to the wish for a session"),
            Ok(Err(fault)) => fault,
            Err(_) => Fault::silent(),
        };
        if failed.is_final() || Instant::now() >= deadline {
            return Err((failed, address));
        }
        members.pause().await;
    }
}

impl State {
    fn of(dialed: &Dialed, member: Address) -> State {
        let granted = Duration::from_millis(dialed.connected.timeout_ms as u64);
        State {
            number: dialed.connected.session,
            password: dialed.connected.password.clone(),
            timeout: granted,
            last_zxid: 0,
            trust: Trust::new(granted, dialed.asked),
            out: Vec::new(),
            door: None,
            pending: Default::default(),
            next_xid: dialed.next_xid,
            watchers: Default::default(),
            member: Some(member),
            last_write: dialed.asked,
            last_proof: dialed.asked,
            last_sent: dialed.asked,
            leave: false,
            close: false,
        }
    }
}

/// The life of a session, from its first connection to its end.
pub(crate) async fn drive(
    session: Arc<Session>,
    dialed: Dialed,
    mut members: Members,
    inner: Weak<Inner>,
    settings: Arc<Settings>,
) {
    let mut carrier = dialed.carrier;
    session.state().door = carrier.door();
    let (fault, lapsed) = loop {
        let fault = match converse(&session, &mut carrier, &inner, &settings).await {
            End::Lapsed => break (Fault::expired(), Some(carrier)),
            End::Over(fault) => break (fault, None),
            End::Left(fault) => fault,
        };
        session.state().door = None;
        drop(carrier);
        session.phase.send_replace(Phase::Away(Some(fault.clone())));
        session.state().fail(&Trouble::Unsure(fault));
        if let Some(inner) = inner.upgrade() {
            inner.in_doubt(&session);
        }
        match reconnect(&session, &mut members, &settings).await {
            Ok(next) => carrier = next,
            Err(fault) => break (fault, None),
        }
        session.phase.send_replace(Phase::Here);
    };
    session.phase.send_replace(Phase::Over(fault.clone()));
    let lapsed = {
        let mut state = session.state();
        let is_whole = state.out.is_empty(); // behind half a request, a farewell would be taken for the rest of it
        state.fail(&Trouble::Over(fault));
        state.watchers.clear(); // whoever waits hears that nobody will tell
        lapsed.filter(|_| is_whole)
    };
    if let Some(inner) = inner.upgrade() {
        inner.session_over(&session);
    }
    if let Some(mut carrier) = lapsed {
        // By our own clock, and perhaps not yet by the leader's: then nobody need wait for that. But its holders have as long to
        // hear of it as if the leader had ended it.
        Clock::Boot.sleep_until(session.until() + margin(session.timeout)).await;
        let _ = timeout(FAREWELL / 5, farewell(&session, &mut carrier)).await;
    }
    session.state().door = None;
}

/// How a connection ended.
enum End {
    /// The session may go on over another one.
    Left(Fault),
    /// The session is over.
    Over(Fault),
    /// It is over by our own clock.
    Lapsed,
}

/// Goes on with the session at another member, for as long as it may be trusted.
async fn reconnect(session: &Session, members: &mut Members, settings: &Settings) -> Result<Carrier, Fault> {
    let limit = trust::answer_limit(session.timeout).max(Duration::from_millis(50)).min(settings.connect_limit);
    members.failures = 0;
    loop {
        let (ticket, until) = {
            let state = session.state();
            if state.close {
                return Err(Fault::closed()); // its nodes go when it lapses
            }
            let (session, password) = (state.number, state.password.clone());
            (Ticket { session, password, timeout: state.timeout, last_zxid: state.last_zxid }, state.trust.until())
        };
        let left = until.since(Instant::now());
        if left.is_zero() {
            return Err(Fault::expired());
        }
        let address = members.next();
        match timeout(limit.min(left), dial(settings, &address, &ticket)).await {
            Ok(Ok(dialed)) if dialed.connected.session == ticket.session && dialed.connected.timeout_ms > 0 => {
                // From now on it is ended after that, and windows were counted by what it had: it is over before it is ended.
                if Duration::from_millis(dialed.connected.timeout_ms as u64) < ticket.timeout {
                    return Err(Fault::expired());
                }
                let mut state = session.state();
                state.trust.reconnected(dialed.asked);
                state.member = Some(address);
                state.next_xid = dialed.next_xid;
                state.leave = false;
                state.password = dialed.connected.password;
                state.last_sent = dialed.asked;
                state.last_write = Instant::from_nanos(0); // a write at once: only that proves anything
                state.watch_again();
                state.door = dialed.carrier.door();
                return Ok(dialed.carrier);
            }
            Ok(Ok(_)) => return Err(Fault::expired()),
            Ok(Err(fault)) if fault.is_final() => return Err(fault),
            Ok(Err(_)) | Err(_) => members.pause().await,
        }
    }
}

impl State {
    /// Puts the watches again that went with the last connection.
    fn watch_again(&mut self) {
        self.forget_the_deaf();
        let mut out = std::mem::take(&mut self.out);
        let (mut data, mut children, mut size) = (Vec::new(), Vec::new(), 0);
        for (kind, path) in self.watchers.keys() {
            match kind {
                Watched::Node => data.push(path.as_str()),
                Watched::Children => children.push(path.as_str()),
            }
            size += path.len();
            if size >= WATCHES_AT_ONCE {
                wire::set_watches(self.last_zxid, &data, &children, &mut out);
                (data, children, size) = (Vec::new(), Vec::new(), 0);
            }
        }
        if size > 0 {
            wire::set_watches(self.last_zxid, &data, &children, &mut out);
        }
        self.out = out;
    }
}

/// Writes, reads and renews until the connection is of no use.
async fn converse(session: &Session, carrier: &mut Carrier, inner: &Weak<Inner>, settings: &Settings) -> End {
    let limit = trust::answer_limit(session.timeout);
    let mut incoming = Vec::with_capacity(4096);
    let mut asked_for_life: Option<Instant> = None;
    loop {
        let next = match session.due(&mut asked_for_life, settings, inner) {
            Ok(next) => next,
            Err(end) => return end,
        };
        match timeout(limit, flush(session, carrier)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return End::Left(Fault::io(error)),
            Err(_) => return End::Left(Fault::silent()),
        }
        if session.state().close {
            let _ = timeout(FAREWELL, farewell(session, carrier)).await;
            return End::Over(Fault::closed());
        }
        tokio::select! {
            read = carrier.read(&mut incoming) => match read {
                Ok(0) => return End::Left(Fault::io(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {
                    asked_for_life = None;
                    if let Err(end) = session.heard(&mut incoming, inner) {
                        return end;
                    }
                }
                Err(error) => return End::Left(Fault::io(error)),
            },
            () = session.wake.notified() => {}
            () = Clock::Boot.sleep_until(next) => {}
        }
    }
}

/// Writes what is to be sent.
async fn flush(session: &Session, carrier: &mut Carrier) -> std::io::Result<()> {
    match carrier {
        Carrier::Plain(tcp) => loop {
            if session.state().write_now()? {
                return Ok(());
            }
            tcp.writable().await?;
        },
        Carrier::Other(stream) => {
            let bytes = std::mem::take(&mut session.state().out);
            stream.write_all(&bytes).await?;
            stream.flush().await
        }
    }
}

/// Says that the session is over, and waits until the server has closed the connection.
async fn farewell(session: &Session, carrier: &mut Carrier) -> std::io::Result<()> {
    {
        let mut state = session.state();
        let xid = state.next_xid;
        wire::close(xid, &mut state.out);
    }
    flush(session, carrier).await?;
    let mut rest = Vec::new();
    while carrier.read(&mut rest).await? > 0 {
        rest.clear();
    }
    Ok(())
}

impl Session {
    /// Does what time asks for, and says when to look again.
    fn due(&self, asked_for_life: &mut Option<Instant>, settings: &Settings, inner: &Weak<Inner>) -> Result<Instant, End> {
        let now = Instant::now();
        let limit = trust::answer_limit(self.timeout);
        let fresh = inner.upgrade().map_or(Instant::NEVER, |inner| inner.look_after_own(self, now));
        let mut state = self.state();
        if state.trust.until() <= now {
            return Err(End::Lapsed);
        }
        let oldest = state.pending.front().map(|pending| pending.sent).into_iter().chain(*asked_for_life).min();
        if state.leave || oldest.is_some_and(|oldest| oldest + limit <= now) {
            return Err(End::Left(Fault::silent()));
        }
        if state.last_write + trust::renewal_interval(self.timeout) <= now {
            let path = settings.proof();
            drop(state.push(Request::Delete { path, version: -1 }, self.access)); // nobody waits for it: it proves by being answered
            if state.watchers.len() > 64 {
                state.forget_the_deaf();
            }
        } else if state.last_sent + trust::sign_of_life_interval(self.timeout) <= now {
            wire::ping(&mut state.out);
            state.trust.pinged(now);
            state.last_sent = now;
            asked_for_life.get_or_insert(now);
        }
        let write = state.last_write + trust::renewal_interval(self.timeout);
        let ping = state.last_sent + trust::sign_of_life_interval(self.timeout);
        let silence = oldest.map_or(Instant::NEVER, |oldest| oldest + limit);
        Ok(write.min(ping).min(silence).min(state.trust.until()).min(fresh))
    }

    /// Hands out what was read; the holds whose own node changed are looked at, also where nonsense came after the notice: nobody
    /// says it again.
    fn heard(&self, incoming: &mut Vec<u8>, inner: &Weak<Inner>) -> Result<(), End> {
        let mut own = Vec::new();
        let heard = self.hand_out(incoming, &mut own);
        if let Some(inner) = inner.upgrade() {
            own.into_iter().for_each(|id| inner.own_changed(id));
        }
        heard
    }

    /// Hands out what was read, and notes the holds whose own node changed.
    fn hand_out(&self, incoming: &mut Vec<u8>, own: &mut Vec<ClaimId>) -> Result<(), End> {
        let (mut start, now) = (0, Instant::now());
        let mut state = self.state();
        while let Some((length, rest)) = incoming[start..].split_first_chunk() {
            let length = length_of(i32::from_be_bytes(*length)).ok_or_else(|| nonsense("the length of an answer"))?;
            let Some(body) = rest.get(..length) else { break };
            start += 4 + length;
            let mut body = Reader(body);
            let header = wire::answer(&mut body).ok_or_else(|| nonsense("an answer"))?;
            if header.zxid > 0 {
                state.last_zxid = state.last_zxid.max(header.zxid);
            }
            match header.xid {
                wire::XID_NOTICE => {
                    let notice = wire::notice(&mut body).ok_or_else(|| nonsense("a notice"))?;
                    own.extend(state.notify(&notice));
                }
                wire::XID_PING => state.trust.ping_answered(now),
                wire::XID_SET_WATCHES => {}
                wire::XID_AUTH if header.error == 0 => {}
                wire::XID_AUTH => return Err(End::Over(Fault::login())),
                xid => {
                    // If it is not the next one's, that stays, and is in doubt with all those behind it.
                    let is_next = state.pending.front().is_some_and(|next| next.xid == xid);
                    let pending = if is_next { state.pending.pop_front() } else { None };
                    let pending = pending.ok_or_else(|| nonsense("the number of an answer"))?;
                    state.trust.answered(pending.sent, now);
                    let outcome = match header.error {
                        0 => match pending.request.decode(&mut body, header.zxid) {
                            Some(outcome) => outcome,
                            None => {
                                pending.resolve(Err(Trouble::Unsure(Fault::nonsense("an answer"))));
                                return Err(nonsense("an answer"));
                            }
                        },
                        code => Err(Refusal(code)),
                    };
                    match outcome {
                        Err(Refusal::SESSION_EXPIRED) => {
                            pending.resolve(Err(Trouble::Over(Fault::expired())));
                            return Err(End::Over(Fault::expired()));
                        }
                        Err(Refusal::SESSION_MOVED) => {
                            pending.resolve(Err(Trouble::Unsure(Fault::silent())));
                            return Err(End::Left(Fault::silent()));
                        }
                        outcome => {
                            let refusal = outcome.as_ref().err();
                            let proves = refusal.is_none_or(|refusal| refusal.went_through_the_quorum(header.zxid));
                            if pending.request.is_write() && proves {
                                state.trust.written(pending.sent);
                                state.last_proof = pending.sent;
                            }
                            pending.resolve(outcome.map_err(Trouble::Refused));
                        }
                    }
                }
            }
        }
        incoming.drain(..start);
        Ok(())
    }
}

fn nonsense(what: &'static str) -> End {
    End::Left(Fault::nonsense(what))
}

#[cfg(test)]
pub(crate) mod tests {
    use tenure_core::{Mode, Token};
    use tenure_testkit::{eventually, in_time};
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    use super::*;
    use crate::inner::Entry;
    use crate::session::Watcher;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A session that was asked for then, its connection, and the server's end of that.
    fn dialed(asked: Instant) -> (Arc<Session>, Dialed, DuplexStream) {
        let connected = wire::Connected { timeout_ms: TIMEOUT.as_millis() as i32, session: 1, password: Vec::new() };
        let (ours, theirs) = tokio::io::duplex(1024);
        let dialed = Dialed { carrier: Carrier::Other(Box::new(ours)), asked, connected, next_xid: 1 };
        let state = State::of(&dialed, Address::new("nowhere", 1));
        (Arc::new(Session::new(Access::World, state.timeout, state)), dialed, theirs)
    }

    /// A session that was asked for then.
    pub(crate) fn session_since(asked: Instant) -> Arc<Session> {
        dialed(asked).0
    }

    fn session() -> Arc<Session> {
        session_since(Instant::now())
    }

    /// A hold on this session.
    pub(crate) fn hold(session: &Arc<Session>) -> Entry {
        Entry {
            user: session.enter(),
            ending: false,
            parent: "/x".to_owned(),
            node: Some("y".to_owned()),
            sequence: 0,
            mode: Mode::Exclusive,
            token: Token::new(1),
            granted: true,
            lost: false,
            expires: session.until() + margin(TIMEOUT),
            unsure: false,
            asked: None,
            turn: Arc::default(),
        }
    }

    /// As a server says that `/x/y` was deleted.
    fn notice() -> Vec<u8> {
        let path = b"/x/y";
        let numbers = [wire::XID_NOTICE, -1, -1, 0, 2, 3, path.len() as i32];
        let body: Vec<u8> = numbers.into_iter().flat_map(i32::to_be_bytes).chain(*path).collect();
        [&(body.len() as i32).to_be_bytes()[..], &body].concat()
    }

    #[tokio::test]
    async fn a_hold_is_looked_at_though_nonsense_came_after_the_notice() {
        let inner = Inner::new(Settings::default(), tokio::runtime::Handle::current());
        let (session, id, own) = (session(), ClaimId::from_bytes([7; 16]), (Watched::Node, "/x/y".to_owned()));
        inner.book().insert(id, hold(&session));
        session.state().watchers.insert(own.clone(), vec![Watcher::Own(id)]);
        let mut incoming = [notice(), (-1_i32).to_be_bytes().to_vec()].concat();
        assert!(matches!(session.heard(&mut incoming, &Arc::downgrade(&inner)), Err(End::Left(_))));
        assert!(!session.state().watchers.contains_key(&own), "a watch tells once");
        eventually("it is looked at and watched again", || session.state().watchers.contains_key(&own)).await;
    }

    #[tokio::test]
    async fn whoever_watches_again_and_again_leaves_one_watcher() {
        let session = session();
        for _ in 0..10 {
            tokio::select! {
                biased;
                _ = session.watch(Watched::Children, "/x") => unreachable!("nobody answers"),
                () = std::future::ready(()) => {}
            }
        }
        let state = session.state();
        assert_eq!(state.watchers[&(Watched::Children, "/x".to_owned())].len(), 1);
    }

    #[tokio::test]
    async fn what_gets_another_ones_answer_is_in_doubt_and_not_over() {
        let session = session();
        let Ok([asked]) = session.send([Request::Sync { path: "/x".to_owned() }]) else { unreachable!("it is here") };
        let mut incoming: Vec<u8> = [16, 99, 0, 0, 0].into_iter().flat_map(i32::to_be_bytes).collect();
        assert!(matches!(session.heard(&mut incoming, &Weak::new()), Err(End::Left(_))));
        session.state().fail(&Trouble::Unsure(Fault::silent())); // as whoever leaves a connection does
        assert!(matches!(crate::session::answer(asked).await, Err(Trouble::Unsure(_))));
    }

    #[tokio::test]
    async fn a_lapse_is_told_before_the_server_hears_of_it() {
        let inner = Inner::new(Settings::default(), tokio::runtime::Handle::current());
        // Its window is over, and the leader has not ended it yet, whatever it heard last.
        let asked = Instant::now() - (TIMEOUT - margin(TIMEOUT) / 2);
        let ((session, dialed, mut server), id) = (dialed(asked), ClaimId::from_bytes([7; 16]));
        inner.book().insert(id, hold(&session));
        let (settings, inner_of_it) = (Arc::clone(&inner.settings), Arc::downgrade(&inner));
        let members = Members::new(&settings);
        tokio::spawn(drive(Arc::clone(&session), dialed, members, inner_of_it, settings));
        in_time("the farewell", server.read_u8()).await.unwrap();
        assert!(session.phase.borrow().is_over() && inner.book()[&id].lost, "its holder has been told");
        assert!(Instant::now() >= asked + TIMEOUT, "and has had the time to act on it");
    }

    #[tokio::test]
    async fn nobody_is_let_in_on_a_session_that_is_over() {
        let inner = Inner::new(Settings::default(), tokio::runtime::Handle::current());
        let (session, claim) = (session(), tenure_testkit::claim(tenure_core::Kind::Mutex, 1));
        inner.book().insert(claim.id, Entry { granted: false, ..hold(&session) });
        session.phase.send_replace(Phase::Over(Fault::expired()));
        assert!(!inner.granted(&claim, Token::new(1), Instant::NEVER) && !inner.book()[&claim.id].granted);
        session.phase.send_replace(Phase::Here);
        assert!(inner.granted(&claim, Token::new(1), Instant::NEVER) && inner.book()[&claim.id].granted);
    }
}
