//! What is found out about the servers, for `doctor`.
//!
//! Most of it is asked with the word `srvr`, the one that servers answer unless told not to; behind TLS they do not, and then
//! only the session itself says something.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::Finding;
use tenure_core::{Address, DEFAULT_TTL, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::inner::Inner;

/// How long a member may take to answer a word.
const WORD_LIMIT: Duration = Duration::from_secs(2);
/// The oldest version that has everything that is used.
const OLDEST: (u32, u32, u32) = (3, 5, 3);

/// What a member says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    version: Option<(u32, u32, u32)>,
    mode: Option<String>,
}

impl Inner {
    /// Looks at every member and at the session.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn examine(self: &Arc<Self>) -> Result<Vec<Finding>> {
        let user = self.session(DEFAULT_TTL).await?;
        let mut findings = vec![session(user.0.timeout)];
        let login = match &self.settings.login {
            None => Finding::warning(
                "access",
                "no login: every node is everybody's, and anybody may break a lock. Give user and password in the URL",
            ),
            Some(_) => Finding::good("access", "nodes belong to the login that made them"),
        };
        findings.push(login);
        if self.settings.tls.is_none() && self.settings.login.is_some() {
            findings.push(Finding::warning(
                "encryption",
                "the login travels in the clear: use zks:// and the servers' secureClientPort",
            ));
        }
        if self.settings.tls.is_some() {
            findings.push(Finding::good("encryption", "TLS"));
        } else {
            let mut said = Vec::new();
            for address in &self.settings.servers {
                let answer = tokio::time::timeout(WORD_LIMIT, word(address, "srvr")).await;
                said.push((address.to_string(), answer.ok().and_then(std::result::Result::ok).map(|text| read(&text))));
            }
            findings.extend(members(&said));
        }
        Ok(findings)
    }
}

async fn word(address: &Address, word: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn read(text: &str) -> Said {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = field("Zookeeper version:").and_then(|text| {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    });
    Said { version, mode: field("Mode:").map(str::to_owned) }
}

fn session(granted: Duration) -> Finding {
    if granted == DEFAULT_TTL {
        return Finding::good("session timeout", format!("{granted:?}, as was asked for"));
    }
    let how = if granted < DEFAULT_TTL { "at most" } else { "at least" };
    let says = format!(
        "asked for {DEFAULT_TTL:?}, the servers grant {how} {granted:?}: that is what holds are trusted for and what a dead holder \
         costs. minSessionTimeout and maxSessionTimeout change it, 2 and 20 ticks if nobody has set them"
    );
    Finding::warning("session timeout", says)
}

fn members(said: &[(String, Option<Said>)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let answered: Vec<_> = said.iter().filter_map(|(at, said)| said.as_ref().map(|said| (at, said))).collect();
    for (at, said) in said {
        match said {
            None => findings.push(Finding::warning(
                format!("{at}: member"),
                "it does not answer: if it is down, the others must carry on",
            )),
            Some(said) if said.mode.is_none() => findings.push(Finding::warning(
                format!("{at}: member"),
                "it does not answer srvr: 4lw.commands.whitelist does not allow it, or it has no quorum",
            )),
            Some(Said { mode: Some(mode), .. }) if mode == "read-only" => {
                findings.push(Finding::bad(format!("{at}: member"), "it is read-only: cut off from its quorum"));
            }
            Some(_) => {}
        }
        if let Some(version) = said.as_ref().and_then(|said| said.version)
            && version < OLDEST
        {
            findings.push(Finding::bad(
                format!("{at}: version"),
                "ZooKeeper 3.5.3 or newer is needed: older ones have no containers",
            ));
        }
    }
    let versions: BTreeSet<_> = answered.iter().filter_map(|(_, said)| said.version).collect();
    if let Some((major, minor, patch)) = versions.first().filter(|version| **version >= OLDEST) {
        findings.push(Finding::good("version", format!("{major}.{minor}.{patch}")));
    }
    let alone = answered.iter().any(|(_, said)| said.mode.as_deref() == Some("standalone"));
    let leads = answered.iter().any(|(_, said)| said.mode.as_deref() == Some("leader"));
    findings.push(match (alone, leads) {
        (true, _) => Finding::warning(
            "ensemble",
            "one server: while it is down, no lock can be had, and every session ends. Three carry on when one is lost",
        ),
        (_, true) => Finding::good("ensemble", format!("{} members in the URL, one of them leads", said.len())),
        _ => Finding::warning(
            "ensemble",
            "none of the members in the URL says that it leads: name all of them, so that each can be reached",
        ),
    });
    findings
}

#[cfg(test)]
mod tests {
    use tenure_core::backend::Level;

    use super::*;

    const SRVR: &str = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25\n\
                        Latency min/avg/max: 0/0.0/0\nMode: follower\nNode count: 5\n";

    #[test]
    fn a_members_words_are_read() {
        assert_eq!(read(SRVR), Said { version: Some((3, 8, 0)), mode: Some("follower".into()) });
        assert_eq!(read("srvr is not executed because it is not in the whitelist.\n"), Said::default());
    }

    #[test]
    fn what_could_hurt_is_said() {
        let said = |mode: &str, version| Some(Said { version: Some(version), mode: Some(mode.into()) });
        let levels = |all: &[(String, Option<Said>)]| members(all).iter().map(|finding| finding.level).max();
        let leader = ("a".to_owned(), said("leader", (3, 8, 0)));
        assert_eq!(levels(std::slice::from_ref(&leader)), Some(Level::Good));
        assert_eq!(levels(&[leader.clone(), ("b".into(), None)]), Some(Level::Warning));
        assert_eq!(levels(&[("a".into(), said("standalone", (3, 8, 0)))]), Some(Level::Warning));
        assert_eq!(levels(&[leader.clone(), ("b".into(), said("follower", (3, 4, 14)))]), Some(Level::Bad));
        assert_eq!(levels(&[leader, ("b".into(), said("read-only", (3, 8, 0)))]), Some(Level::Bad));
        assert_eq!(session(DEFAULT_TTL).level, Level::Good);
        assert!(session(Duration::from_secs(4)).says.contains("4s"));
    }
}
