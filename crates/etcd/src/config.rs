//! Where the members are and how they are used: settings and URLs.

use std::time::Duration;

use tenure_core::{Address, Result, Secret, StoreUrl, Tls, bad_url, bad_value, check_limits};

/// The URL schemes of this store. With `etcds` every connection is encrypted.
pub const SCHEMES: &[&str] = &["etcd", "etcds"];

/// The parameters its URLs may have. Durations are written `50ms`, `30s`, `1m`; a plain number is seconds.
///
/// - `prefix=TEXT` (default `tenure`): what every key begins with; programs with another prefix do not meet.
/// - `connect_limit=TIME` (2 s): how long making a connection to one member may take: name lookup, TCP and TLS.
/// - `answer_limit=TIME` (5 s): how long a request may go unanswered, by whichever member, before it is `Unavailable`.
/// - `patience=TIME` (30 s): how long whoever already waits in line puts up with a cluster that cannot be reached.
/// - `strict=yes`: refuse to connect where `doctor` would call something bad.
/// - `layout=concurrency`: the keys of etcd's own `concurrency.Mutex` and `etcdctl lock`, mutexes only. Default `tenure`.
///
/// With TLS:
/// - `ca=FILE`: trust the certificates in this PEM file and no others, instead of the system's.
/// - `cert=FILE`, `key=FILE`: the client's own certificate and its key, for servers that ask for one.
/// - `server_name=NAME`: the name the certificate must have, where it is not the host's.
pub const PARAMETERS: &[&str] =
    &["prefix", "connect_limit", "answer_limit", "patience", "strict", "layout", "ca", "cert", "key", "server_name"];

/// How to reach and use the members. Start from [`Settings::default`] or [`Settings::from_url`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Where the members are; any of them will do, and the others are tried when it will not.
    pub members: Vec<Address>,
    /// The user; none where the cluster has no users.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// Encryption; none is none.
    pub tls: Option<Tls>,
    /// What every key begins with: 1 to 64 of letters, digits and `_ . : / -`.
    pub prefix: String,
    /// How claims are laid out in keys.
    pub layout: Layout,
    /// How long making a connection to one member may take.
    pub connect_limit: Duration,
    /// How long a request may go unanswered.
    pub answer_limit: Duration,
    /// How long whoever waits in line puts up with a cluster that cannot be reached.
    pub patience: Duration,
    /// Refuse to connect where `doctor` would call something bad.
    pub strict: bool,
}

/// How claims are laid out in keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: every kind, one key a claim, all claims of a client on one lease for each ttl.
    #[default]
    Tenure,
    /// That of etcd's `concurrency.Mutex` and of `etcdctl lock`, so that old and new programs exclude each other: mutexes only,
    /// and a lease for each claim.
    Concurrency,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            members: vec![Address::new("127.0.0.1", PORT)],
            user: None,
            password: None,
            tls: None,
            prefix: "tenure".to_owned(),
            layout: Layout::Tenure,
            connect_limit: Duration::from_secs(2),
            answer_limit: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            strict: false,
        }
    }
}

impl Settings {
    /// Reads a URL.
    pub fn from_url(url: &StoreUrl) -> Result<Settings> {
        let tls = match url.scheme() {
            "etcd" => false,
            "etcds" => true,
            other => {
                return Err(bad_url(format!("the etcd store has no scheme {other:?}")).with_hint("It is etcd or etcds"));
            }
        };
        let fits = |name: &&str| tls || !Tls::PARAMETERS.contains(name);
        url.allow_parameters(&PARAMETERS.iter().copied().filter(fits).collect::<Vec<_>>())?;
        if !matches!(url.path(), "" | "/") {
            // It is not shown: whoever mistypes a URL may have put a secret there.
            return Err(bad_url("an etcd: URL has no path").with_hint("Use prefix=TEXT to keep programs apart"));
        }
        let mut settings = Settings { members: Address::list(url, PORT)?, ..Settings::default() };
        settings.user = url.user().map(str::to_owned);
        settings.password = url.password().map(Secret::new);
        if tls {
            settings.tls = Some(Tls::from_url(url)?);
        }
        if let Some(prefix) = url.parameter("prefix") {
            settings.prefix = prefix.to_owned();
        }
        settings.layout = match url.parameter("layout") {
            None | Some("tenure") => Layout::Tenure,
            Some("concurrency") => Layout::Concurrency,
            Some(other) => return Err(bad_value("layout", other, "tenure or concurrency")),
        };
        url.read_limits(&mut settings.connect_limit, &mut settings.answer_limit, &mut settings.patience)?;
        url.read_yes_no("strict", &mut settings.strict)?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values are within their limits, wherever they come from.
    pub(crate) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.chars().all(plain) {
            return Err(bad_value("prefix", &self.prefix, "1 to 64 of letters, digits and _ . : / -"));
        }
        check_limits(self.connect_limit, self.answer_limit, self.patience)?;
        if self.members.is_empty() {
            return Err(bad_url("no member is named").with_hint("Write etcd://host1,host2,host3"));
        }
        if self.password.is_some() && self.user.is_none() {
            return Err(bad_url("a password needs a user").with_hint("Write etcd://user:password@host"));
        }
        tenure_tls::check(self.tls.as_ref())?;
        Ok(())
    }

    /// The store in words, as a URL without secrets.
    pub(crate) fn describe(&self) -> String {
        let hosts = self.members.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        format!("etcd{}://{user}{hosts}", if self.tls.is_some() { "s" } else { "" })
    }
}

const PORT: u16 = 2379;

#[cfg(test)]
mod tests;
