//! What a node says: the note first, so that an election's value is the first line in zkCli, and then who it is.

use std::time::Duration;

use tenure_core::{Ask, Claim, Note, Origin, Token};

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) note: Note,
    pub(crate) origin: Origin,
    pub(crate) ttl: Duration,
    /// The token, where it is not the number of the transaction that made the node.
    pub(crate) token: Option<Token>,
    /// Somebody asked the holder to let go.
    pub(crate) asked: Option<Ask>,
    /// It waited, and is in now.
    pub(crate) entered: bool,
}

impl Ticket {
    /// What a claim's first node says.
    pub(crate) fn of(claim: &Claim) -> Ticket {
        let Claim { note, origin, ttl, .. } = claim;
        Ticket { note: note.clone(), origin: origin.clone(), ttl: *ttl, token: None, asked: None, entered: false }
    }

    /// Whether it is known from this alone that the claim is in: only holders are asked to let go.
    pub(crate) fn says_that_it_is_in(&self) -> bool {
        self.entered || self.asked.is_some()
    }

    /// As lines of text. Notes and hosts have no control characters, so a line is a line.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Origin { host, pid } = &self.origin;
        let mut text = format!("{}\nhost={host}\npid={pid}\nttl={}\n", self.note.as_str(), self.ttl.as_millis());
        if let Some(token) = self.token {
            text += &format!("token={token}\n");
        }
        if self.entered {
            text += "entered\n";
        }
        if let Some(Ask { reason, by }) = &self.asked {
            text += &format!("asked_by={}\nasked_pid={}\nasked={}\n", by.host, by.pid, reason.as_str());
        }
        text.into_bytes()
    }

    /// Reads it; what somebody else wrote says little, but is shown.
    pub(crate) fn decode(data: &[u8]) -> Ticket {
        let text = String::from_utf8_lossy(data);
        let mut lines = text.lines();
        let note = lines.next().and_then(|line| Note::new(line).ok()).unwrap_or_else(Note::none);
        let mut ticket = Ticket {
            note,
            origin: Origin { host: "?".into(), pid: 0 },
            ttl: Duration::ZERO,
            token: None,
            asked: None,
            entered: false,
        };
        let (mut by, mut reason) = (Origin { host: "?".into(), pid: 0 }, None);
        for line in lines {
            match line.split_once('=').unwrap_or((line, "")) {
                ("host", host) => ticket.origin.host = host.into(),
                ("pid", pid) => ticket.origin.pid = pid.parse().unwrap_or_default(),
                ("ttl", ms) => ticket.ttl = Duration::from_millis(ms.parse().unwrap_or_default()),
                ("token", token) => ticket.token = token.parse().ok().map(Token::new),
                ("entered", _) => ticket.entered = true,
                ("asked_by", host) => by.host = host.into(),
                ("asked_pid", pid) => by.pid = pid.parse().unwrap_or_default(),
                ("asked", text) => reason = Note::new(text).ok(),
                _ => {}
            }
        }
        ticket.asked = reason.map(|reason| Ask { reason, by });
        ticket
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_comes_back(note in "\\PC{0,40}", reason in "\\PC{0,40}", host in "[a-z.-]{1,20}", pid: u32, ttl in 0u64..90_000_000) {
            prop_assume!(Note::new(&note).is_ok() && Note::new(&reason).is_ok());
            let origin = Origin { host: host.as_str().into(), pid };
            let ask = Ask { reason: Note::new(&reason).unwrap(), by: origin.clone() };
            let ticket = Ticket {
                note: Note::new(&note).unwrap(),
                origin,
                ttl: Duration::from_millis(ttl),
                token: Some(Token::new(7)),
                asked: Some(ask),
                entered: true,
            };
            prop_assert_eq!(Ticket::decode(&ticket.encode()), ticket);
        }

        #[test]
        fn rubbish_is_shown_as_far_as_it_goes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            Ticket::decode(&bytes);
        }
    }

    #[test]
    fn whoever_was_asked_to_let_go_is_in() {
        let says = |text: &[u8]| Ticket::decode(text).says_that_it_is_in();
        assert!(!says(b"\nhost=h\n") && says(b"\nhost=h\nentered\n") && says(b"\nasked_by=h\nasked_pid=3\nasked=\n"));
    }

    #[test]
    fn an_elections_value_is_the_first_line() {
        let ticket = Ticket { asked: None, ..Ticket::decode(b"10.0.0.7:8080\nhost=h\npid=3\n") };
        assert_eq!(ticket.note.as_str(), "10.0.0.7:8080");
        assert!(ticket.encode().starts_with(b"10.0.0.7:8080\n"));
    }
}
