//! Where the server is and how it is used: settings and URLs.

use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};
use tenure_core::{Address, Error, ErrorKind, Result, Secret, StoreUrl, Tls, bad_url, bad_value, check_limits};

use crate::tls;

/// The URL schemes of this store: both mean the same.
pub const SCHEMES: &[&str] = &["mysql", "mariadb"];

/// The parameters its URLs may have. Durations are written `50ms`, `30s`, `1m`; a plain number is seconds.
///
/// - `prefix=TEXT` (default `tenure_`): what the names of all tables and procedures begin with; programs with another
///   prefix do not meet.
/// - `connect_limit=TIME` (5 s): how long making a connection may take: name lookup, TCP, TLS and login.
/// - `answer_limit=TIME` (5 s): how long a request may go unanswered, a new connection included, before it is `Unavailable`.
/// - `patience=TIME` (30 s): how long whoever already waits in line puts up with a server that cannot be reached.
/// - `strict=yes`: refuse to connect where `doctor` would call something bad.
/// - `insecure_login=yes`: log in with a password though the connection is not encrypted and leaves this host. Without it that is
///   refused: whoever answers at the address can ask for the password in a way that shows it to them.
/// - `tls=yes`: encrypt every connection, and check the server's certificate.
/// - `ca=FILE`: trust the certificates in this PEM file and no others, instead of the system's.
/// - `cert=FILE`, `key=FILE`: the client's own certificate and its key, for servers that ask for one.
/// - `server_name=NAME`: the name the certificate must have, where it is not the host's.
pub const PARAMETERS: &[&str] = &[
    "prefix",
    "connect_limit",
    "answer_limit",
    "patience",
    "strict",
    "insecure_login",
    "tls",
    "ca",
    "cert",
    "key",
    "server_name",
];

/// How to reach and use the server. Start from [`Settings::default`] or [`Settings::from_url`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Where the server is.
    pub address: Address,
    /// Who logs in.
    pub user: String,
    /// The password.
    pub password: Option<Secret>,
    /// The database that has the tables.
    pub database: String,
    /// Encryption; none is none.
    pub tls: Option<Tls>,
    /// What the names of all tables and procedures begin with: a letter, then up to 30 of small letters, digits and `_`.
    pub prefix: String,
    /// How long making a connection may take.
    pub connect_limit: Duration,
    /// How long a request may go unanswered.
    pub answer_limit: Duration,
    /// How long whoever waits in line puts up with a server that cannot be reached.
    pub patience: Duration,
    /// Refuse to connect where `doctor` would call something bad.
    pub strict: bool,
    /// Log in with a password though the connection is neither encrypted nor to this host.
    pub insecure_login: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            address: Address::new("127.0.0.1", PORT),
            user: "root".to_owned(),
            password: None,
            database: "tenure".to_owned(),
            tls: None,
            prefix: "tenure_".to_owned(),
            connect_limit: Duration::from_secs(5),
            answer_limit: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            strict: false,
            insecure_login: false,
        }
    }
}

impl Settings {
    /// Reads a URL.
    pub fn from_url(url: &StoreUrl) -> Result<Settings> {
        if !SCHEMES.contains(&url.scheme()) {
            let what = format!("the MySQL store has no scheme {:?}", url.scheme());
            return Err(bad_url(what).with_hint(format!("It is one of {}", SCHEMES.join(", "))));
        }
        let mut tls = false;
        url.read_yes_no("tls", &mut tls)?;
        let fits = |name: &&&str| tls || !Tls::PARAMETERS.contains(name);
        let known: Vec<&str> = PARAMETERS.iter().filter(fits).copied().collect();
        url.allow_parameters(&known)?;
        let mut settings = Settings { address: server(url)?, database: database(url)?, ..Settings::default() };
        if let Some(user) = url.user() {
            settings.user = user.to_owned();
        }
        settings.password = url.password().map(Secret::new);
        if tls {
            settings.tls = Some(Tls::from_url(url)?);
        }
        if let Some(prefix) = url.parameter("prefix") {
            settings.prefix = prefix.to_owned();
        }
        url.read_limits(&mut settings.connect_limit, &mut settings.answer_limit, &mut settings.patience)?;
        url.read_yes_no("strict", &mut settings.strict)?;
        url.read_yes_no("insecure_login", &mut settings.insecure_login)?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values are within their limits, wherever they come from.
    pub(crate) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_name = self.prefix.starts_with(|c: char| c.is_ascii_lowercase()) && self.prefix.chars().all(plain);
        if !is_name || self.prefix.len() > LONGEST_PREFIX {
            return Err(bad_value("prefix", &self.prefix, "a small letter, then up to 30 of small letters, digits and _"));
        }
        check_limits(self.connect_limit, self.answer_limit, self.patience)?;
        tenure_tls::check(self.tls.as_ref())?;
        Ok(())
    }

    /// The store in words, as a URL without secrets.
    pub(crate) fn describe(&self) -> String {
        let Settings { user, address, database, .. } = self;
        let tls = if self.tls.is_some() { "?tls=yes" } else { "" };
        format!("mysql://{user}@{address}/{database}{tls}")
    }

    /// How the driver reaches the server. Never with `CLIENT_FOUND_ROWS`, which makes rows that are as they should be look
    /// changed; never by a Unix socket that the server names, which may be another one's here.
    pub(crate) fn options(&self) -> Result<Opts> {
        self.shows_nobody_the_password()?;
        let options = OptsBuilder::default()
            .ip_or_hostname(self.address.host.clone())
            .tcp_port(self.address.port)
            .user(Some(self.user.clone()))
            .pass(self.password.as_ref().map(|password| password.reveal().to_owned()))
            .db_name(Some(self.database.clone()))
            .prefer_socket(false)
            .client_found_rows(false)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(KEEPALIVE)) // a peer that vanished without a word is found out
            .stmt_cache_size(2) // `verbs::AtOnce`: all that is prepared
            .wait_timeout(Some(LONG_IDLE)) // else the driver would throw away what was idle
            .connect_attribute("program_name", "tenure")
            .ssl_opts(match &self.tls {
                None => None,
                Some(tls) => Some(tls::read(tls)?),
            });
        Ok(options.into())
    }
}

impl Settings {
    /// With `caching_sha2_password` the driver encrypts the password with a key that whoever answers sends it, and a server may ask for
    /// that whatever its account uses: so it is not asked where somebody else might answer, unless the user says so.
    fn shows_nobody_the_password(&self) -> Result<()> {
        if self.password.is_none() || self.tls.is_some() || self.insecure_login || self.address.is_this_host() {
            return Ok(());
        }
        let what = "a password is not sent over a connection that is not encrypted: whoever answers can ask for it";
        Err(Error::new(ErrorKind::BadOption, what).with_store(self.describe()).with_hint(
            "Write tls=yes, and ca=FILE if need be; or insecure_login=yes on a network where nobody else can answer",
        ))
    }
}

/// One server: those behind it are a proxy's business.
fn server(url: &StoreUrl) -> Result<Address> {
    let mut hosts = Address::list(url, PORT)?;
    if hosts.len() > 1 {
        return Err(bad_url(format!("{}: URLs name one server, not {}", url.scheme(), hosts.len()))
            .with_hint("Name the primary, or a proxy that finds it"));
    }
    Ok(hosts.remove(0))
}

fn database(url: &StoreUrl) -> Result<String> {
    // The path is not shown: whoever mistypes a URL may have put a secret there.
    let name = url.path().strip_prefix('/').unwrap_or(url.path());
    let plain = |c: char| c.is_alphanumeric() || "_-$".contains(c);
    if name.is_empty() || name.chars().count() > 64 || !name.chars().all(plain) {
        return Err(bad_url(format!("the path of a {}: URL is the name of a database", url.scheme()))
            .with_hint("Such as mysql://user:password@host:3306/tenure; letters, digits, _, - and $"));
    }
    Ok(name.to_owned())
}

const PORT: u16 = 3306;
const LONGEST_PREFIX: usize = 31;
const KEEPALIVE: Duration = Duration::from_secs(5);
const LONG_IDLE: usize = 8 * 3_600;

#[cfg(test)]
mod tests;
