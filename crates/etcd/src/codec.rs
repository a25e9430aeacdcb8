//! What is in a claim's value: text that `etcdctl get` shows to people and reads back to us.
//!
//! The first line is the note and nothing else: an election's value is what `etcdctl elect --listen` prints first. The lines
//! after it say who it is and for how long, one word and its value each; words that are unknown are skipped, so that a newer
//! program may say more.

use std::time::Duration;

use crate::schema::shown;
use tenure_core::{Ask, Claim, Clock, Fingerprint, Mode, Note, Origin};

/// A claim's value, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) note: Note,
    pub(crate) claim: Fingerprint,
    /// Which claim it is, by a hash of its secret id; empty where another program wrote it.
    pub(crate) id: String,
    pub(crate) origin: Origin,
    pub(crate) ttl: Duration,
    pub(crate) lock_delay: Duration,
    /// When it asked, in microseconds by its own wall clock: shown, never compared.
    pub(crate) since: u64,
    /// A reader now, whatever its key says.
    pub(crate) shared: bool,
    /// Released or broken, and only keeps the name closed.
    pub(crate) closing: bool,
    pub(crate) asked: Option<Ask>,
}

impl Value {
    /// What a new claim says.
    pub(crate) fn of(claim: &Claim) -> Self {
        Value {
            note: claim.note.clone(),
            claim: claim.id.fingerprint(),
            id: shown(claim.id),
            origin: claim.origin.clone(),
            ttl: claim.ttl,
            lock_delay: claim.lock_delay,
            since: Clock::Boot.wall_micros(),
            shared: false,
            closing: false,
            asked: None,
        }
    }

    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Value { note, claim, id, origin, ttl, lock_delay, since, .. } = self;
        let mut text = format!(
            "{}\nclaim {claim} {id}\nby {} {}\nttl {} {}\nsince {since}\n",
            note.as_str(),
            origin.pid,
            plain(&origin.host),
            ttl.as_millis(),
            lock_delay.as_millis()
        );
        if self.shared {
            text += "mode shared\n";
        }
        if self.closing {
            text += "closing\n";
        }
        if let Some(ask) = &self.asked {
            text += &format!("asked {} {}\nwhy {}\n", ask.by.pid, plain(&ask.by.host), ask.reason.as_str());
        }
        text.into_bytes()
    }

    /// Reads a value; whatever it does not say has a default, also where somebody else wrote it.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n');
        let note = Note::new(lines.next().unwrap_or_default()).unwrap_or_else(|_| Note::none());
        let mut value = Value {
            note,
            claim: Fingerprint(0),
            id: String::new(),
            origin: Origin { host: "?".into(), pid: 0 },
            ttl: Duration::ZERO,
            lock_delay: Duration::ZERO,
            since: 0,
            shared: false,
            closing: false,
            asked: None,
        };
        let mut asked = None;
        for line in lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "claim" => {
                    let (claim, id) = rest.split_once(' ').unwrap_or((rest, ""));
                    value.claim = Fingerprint(u32::from_str_radix(claim, 16).unwrap_or_default());
                    value.id = id.to_owned();
                }
                "by" => value.origin = origin(rest),
                "ttl" => {
                    let (ttl, delay) = rest.split_once(' ').unwrap_or((rest, "0"));
                    let millis = |text: &str| Duration::from_millis(text.parse().unwrap_or_default());
                    (value.ttl, value.lock_delay) = (millis(ttl), millis(delay));
                }
                "since" => value.since = rest.parse().unwrap_or_default(),
                "mode" => value.shared = rest == "shared",
                "closing" => value.closing = true,
                "asked" => asked = Some(origin(rest)),
                "why" => {
                    let reason = Note::new(rest).unwrap_or_else(|_| Note::none());
                    value.asked = asked.take().map(|by| Ask { reason, by });
                }
                _ => {}
            }
        }
        value
    }

    /// How it stands in line, for a key that says `mode`.
    pub(crate) fn mode(&self, mode: Mode) -> Mode {
        if self.shared { Mode::Shared } else { mode }
    }
}

fn plain(host: &str) -> String {
    host.chars().filter(|letter| !letter.is_control()).collect()
}

fn origin(text: &str) -> Origin {
    let (pid, host) = text.split_once(' ').unwrap_or((text, "?"));
    Origin { host: host.into(), pid: pid.parse().unwrap_or_default() }
}

#[cfg(test)]
mod tests;
