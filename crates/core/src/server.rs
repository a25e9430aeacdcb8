//! Where a server is and how it is reached: what every store with a server has in common.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::{Error, ErrorKind, Result, StoreUrl, parse_duration};

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Address {
    /// A server's address; IPv6 without brackets.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Address { host: host.into(), port }
    }

    /// Whether it is surely this host's own.
    pub fn is_this_host(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The hosts of a URL. Nothing of the text is shown in errors: in a URL without an `@` it may be a password.
    pub fn list(url: &StoreUrl, default_port: u16) -> Result<Vec<Address>> {
        let text = url.hosts();
        let hint = format!(
            "A server is HOST or HOST:PORT, IPv6 in brackets, several with commas; a login stands before an @: \
             {}://user:password@host:{default_port}",
            url.scheme()
        );
        let hint = hint.as_str();
        let parts = text.split(',').enumerate().map(|(place, part)| {
            let which =
                || if text.contains(',') { format!("server {} of the URL", place + 1) } else { "the URL".to_owned() };
            let (host, port) = match part.strip_prefix('[') {
                Some(rest) => {
                    let (host, rest) = rest.split_once(']').ok_or_else(|| bad_url(format!("{} has no ']'", which())))?;
                    host.parse::<std::net::Ipv6Addr>()
                        .map_err(|_| bad_url(format!("{} has no IPv6 address in its brackets", which())))?;
                    (host, rest)
                }
                None => part.split_at(part.find(':').unwrap_or(part.len())),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
            if host.is_empty() || !host.chars().all(plain) {
                return Err(bad_url(format!("{} has no host that could be looked up", which())).with_hint(hint));
            }
            let port = match port.strip_prefix(':') {
                None if port.is_empty() => Ok(default_port),
                None => Err(()),
                Some(port) => port.parse::<u16>().map_err(drop).and_then(|port| if port == 0 { Err(()) } else { Ok(port) }),
            };
            let port = port.map_err(|()| {
                bad_url(format!("{} has a port that is no number from 1 to 65535", which())).with_hint(hint)
            })?;
            Ok(Address::new(host, port))
        });
        parts.collect()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A password: `Debug` shows nothing of it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a password.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The password itself, for the one place that sends it. Never print it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Encryption. The files are read at every new connection, so a renewed certificate needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// A PEM file with the certificates to trust, instead of the system's.
    pub ca: Option<PathBuf>,
    /// A PEM file with the client's own certificate; then `key` too.
    pub cert: Option<PathBuf>,
    /// A PEM file with its key.
    pub key: Option<PathBuf>,
    /// The name the server's certificate must have, where it is not the host's.
    pub server_name: Option<String>,
}

impl Tls {
    /// The parameters that [`from_url`](Tls::from_url) reads.
    pub const PARAMETERS: [&str; 4] = ["ca", "cert", "key", "server_name"];

    /// What a URL says about it.
    pub fn from_url(url: &StoreUrl) -> Result<Tls> {
        let file = |name| url.parameter(name).map(PathBuf::from);
        let server_name = url.parameter("server_name").map(str::to_owned);
        Ok(Tls { ca: file("ca"), cert: file("cert"), key: file("key"), server_name })
    }

    /// Whether its parts fit together.
    pub fn check(&self) -> Result<()> {
        if self.cert.is_some() == self.key.is_some() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::BadUrl, "a client's certificate and its key come together")
            .with_hint("Give both cert=FILE and key=FILE, or neither"))
    }
}

impl StoreUrl {
    /// Reads a parameter that is a duration into `field`, if it is there.
    pub fn read_duration(&self, name: &str, field: &mut Duration) -> Result<()> {
        if let Some(text) = self.parameter(name) {
            *field = parse_duration(text).ok_or_else(|| bad_value(name, text, "a duration such as 50ms, 30s or 1m30s"))?;
        }
        Ok(())
    }

    /// Reads the limits that every server's settings have, those of them that are there.
    pub fn read_limits(&self, connect: &mut Duration, answer: &mut Duration, patience: &mut Duration) -> Result<()> {
        self.read_duration("connect_limit", connect)?;
        self.read_duration("answer_limit", answer)?;
        self.read_duration("patience", patience)
    }

    /// Reads a parameter that is `yes` or `no` into `field`, if it is there.
    pub fn read_yes_no(&self, name: &str, field: &mut bool) -> Result<()> {
        *field = match self.parameter(name) {
            None => *field,
            Some("yes") => true,
            Some("no") => false,
            Some(other) => return Err(bad_value(name, other, "yes or no")),
        };
        Ok(())
    }
}

/// A parameter has a value that it cannot have; `known` says which it can.
pub fn bad_value(name: &str, value: &str, known: &str) -> Error {
    bad_url(format!("the parameter {name} cannot be {value:?}")).with_hint(format!("It is {known}"))
}

/// An error of a URL or of settings: what is wrong with them.
pub fn bad_url(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadUrl, what)
}

/// A duration among the settings is not within its limits.
pub fn check_duration(name: &str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if value < least || value > most {
        return Err(bad_value(name, &format!("{value:?}"), &format!("from {least:?} to {most:?}")));
    }
    Ok(())
}

/// The same for those that every server's settings have.
pub fn check_limits(connect: Duration, answer: Duration, patience: Duration) -> Result<()> {
    let (least, hour) = (Duration::from_millis(1), Duration::from_secs(3_600));
    check_duration("connect_limit", connect, least, hour)?;
    check_duration("answer_limit", answer, least, hour)?;
    check_duration("patience", patience, Duration::ZERO, 24 * hour)
}

/// A connection in the making on a runtime that is always running, whether or not its asker is still there. A renewal is given up
/// after a sixth of its ttl, and where connecting takes longer than that, the next one goes on with it instead of beginning
/// anew for ever.
#[derive(Debug)]
pub struct HalfMade<T>(Option<JoinHandle<T>>);

impl<T> Default for HalfMade<T> {
    fn default() -> Self {
        HalfMade(None)
    }
}

impl<T: Send + 'static> HalfMade<T> {
    /// Goes on with the one that was begun, or begins. `None` if that runtime has ended.
    ///
    /// # Cancel safety
    /// Dropped, it goes on for whoever comes next.
    pub async fn finish(&mut self, home: &Handle, begin: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let made = self.0.get_or_insert_with(|| home.spawn(begin)).await.ok();
        self.0 = None;
        made
    }
}
