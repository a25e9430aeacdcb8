//! What is found out about a cluster, at connecting and for `doctor`.

use tenure_core::backend::{Finding, Level};
use tenure_core::{Address, Error, ErrorKind, Result};

use crate::error::Next;
use crate::inner::Inner;
use crate::proto::{RangeRequest, StatusResponse};

/// A server's version.
type Version = (u32, u32, u32);

impl Inner {
    /// Looks whether a member answers and we may read there, to learn early what is wrong.
    pub(crate) async fn reach(&self) -> Result<()> {
        if self.settings.user.is_some() {
            self.read_nothing().await?; // which logs in: members may not tell a stranger who leads
        }
        self.asks.go_to_leader().await;
        self.keep.follow(&self.asks);
        self.read_nothing().await?;
        if self.settings.strict
            && let Some(bad) = self.examine().await?.into_iter().find(|finding| finding.level == Level::Bad)
        {
            let what = format!("strict=yes, and {} is bad: {}", bad.what, bad.says);
            return Err(Error::new(ErrorKind::Backend, what).with_store(self.settings.describe()));
        }
        Ok(())
    }

    async fn read_nothing(&self) -> Result<()> {
        let request = RangeRequest::one(&self.schema.nothing());
        Ok(self.asks.range("connecting", request).await.map(drop)?)
    }

    pub(crate) async fn examine(&self) -> Result<Vec<Finding>> {
        let status = self.asks.call("asking for the status", |wire| async move { wire.status().await }).await;
        let mut findings = match status {
            Ok(answer) => vec![version(&answer.value.version), alarms(&answer.value)],
            Err(failure) if failure.next == Next::Denied => {
                vec![Finding::warning("etcd version", ROOT_ONLY.to_owned())]
            }
            Err(failure) => return Err(failure.error),
        };
        findings.push(login(self));
        let members = self.asks.call("asking for the members", |wire| async move { wire.members().await }).await;
        match members {
            Ok(answer) => {
                let voting = answer.value.members.iter().filter(|member| !member.is_learner).count();
                findings.push(how_many(voting, self.settings.members.len()));
            }
            Err(failure) => findings.push(Finding::warning("members", failure.error.to_string())),
        }
        Ok(findings)
    }
}

fn version(text: &str) -> Finding {
    let what = "etcd version";
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or_default());
    let number: Version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if number < (3, 4, 0) {
        return Finding::bad(what, format!("{text} is too old: 3.4 or newer is needed"));
    }
    for (flaw, mended) in FLAWS {
        let Some(mended) = mended.iter().find(|mended| (mended.0, mended.1) == (number.0, number.1)) else { continue };
        if number < *mended {
            let says = format!("{text} {flaw}; {}.{}.{} mends it", mended.0, mended.1, mended.2);
            return Finding::warning(what, says);
        }
    }
    Finding::good(what, text.to_owned())
}

fn alarms(status: &StatusResponse) -> Finding {
    let what = "alarms";
    if status.errors.is_empty() {
        return Finding::good(what, "none");
    }
    let says = format!(
        "{}. With NOSPACE nothing can be locked: etcdctl compact, etcdctl defrag, etcdctl alarm disarm",
        status.errors.join(", ")
    );
    Finding::bad(what, says)
}

fn how_many(voting: usize, named: usize) -> Finding {
    let what = "members";
    match voting {
        1 => Finding::warning(what, "one member: when it is down, nobody can lock. Use three or five"),
        even if even.is_multiple_of(2) => {
            let says = format!("{even} members survive no more failures than {} do", even - 1);
            Finding::warning(what, says)
        }
        odd if named == 1 => {
            let says = format!("{odd} members, and the URL names one: name them all, so that any of them may be down");
            Finding::warning(what, says)
        }
        odd => Finding::good(what, format!("{odd}; {} may be down", odd / 2)),
    }
}

fn login(inner: &Inner) -> Finding {
    let settings = &inner.settings;
    let local = settings.members.iter().all(Address::is_this_host);
    let what = "access";
    let certificate = settings.tls.as_ref().is_some_and(|tls| tls.cert.is_some());
    match (settings.tls.is_some(), settings.user.is_some() || certificate) {
        _ if local => Finding::good(what, "this host only"),
        (true, true) => Finding::good(what, "encrypted, with a login"),
        (true, false) => Finding::warning(what, "encrypted, but whoever reaches it can break every lock. Use a user"),
        (false, true) => {
            let says = "the password crosses the network in the clear. Use etcds://, or a network you trust";
            Finding::warning(what, says)
        }
        (false, false) => {
            let says = "no login and no encryption: whoever reaches it can break every lock. Use users and etcds://";
            Finding::warning(what, says)
        }
    }
}

/// Versions 3.5.28 to 3.5.31 and 3.6.0 to 3.6.11 do that.
const ROOT_ONLY: &str =
    "this server tells its version and its alarms to root only, so nothing is known of them. Ask as root once";

/// What is wrong with old servers, the worst first; and the first of each line that is mended.
const FLAWS: [(&str, &[Version]); 2] = [
    (
        "may end leases that are kept alive, when a leader that stood still for longer than a ttl goes on: then two may hold at \
         once until the first is told, and only the fencing token tells them apart",
        &[(3, 4, 31), (3, 5, 13)],
    ),
    (
        "may answer a keepalive with yes while it ends the lease. Holds are proved by their keys, so nobody is misled for long",
        &[(3, 4, 38), (3, 5, 23), (3, 6, 5)],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_named() {
        for (text, level) in [
            ("3.3.25", Level::Bad),
            ("3.4.23", Level::Warning),
            ("3.4.31", Level::Warning),
            ("3.4.38", Level::Good),
            ("3.5.22", Level::Warning),
            ("3.5.23", Level::Good),
            ("3.6.4", Level::Warning),
            ("3.6.5-rc.0", Level::Good),
            ("3.7.0", Level::Good),
        ] {
            assert_eq!(version(text).level, level, "{text}");
        }
        assert!(version("3.5.12").says.ends_with("3.5.13 mends it"), "the worst is said");
        assert!(version("3.5.13").says.ends_with("3.5.23 mends it"));
    }

    #[test]
    fn members_are_counted() {
        assert_eq!(how_many(3, 3).level, Level::Good);
        assert_eq!(how_many(3, 1).level, Level::Warning);
        assert_eq!(how_many(1, 1).level, Level::Warning);
        assert_eq!(how_many(4, 4).level, Level::Warning);
    }
}
