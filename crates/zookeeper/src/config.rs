//! Where the servers are and how they are used: settings and URLs.

use std::time::Duration;

use tenure_core::{Address, Result, Secret, StoreUrl, Tls, bad_url, bad_value};

use crate::layout::{Layout, check_path};

/// The URL schemes of this store. With `zks` every connection is encrypted.
pub const SCHEMES: &[&str] = &["zk", "zks", "zookeeper"];

/// The parameters its URLs may have. Durations are written `50ms`, `30s`, `1m`; a plain number is seconds.
///
/// - `root=PATH` (default `/tenure`): the node beneath which the locks are; programs with another root do not meet.
/// - `layout=curator`: Curator's own nodes, at the path that Curator would use: `InterProcessMutex` and
///   `InterProcessReadWriteLock`, so that old and new programs exclude each other. Default `tenure`. `root` is then empty.
/// - `auth=digest` (default with a user) or `auth=sasl`: how user and password are used: as ZooKeeper's digest identity for ACLs,
///   or for SASL DIGEST-MD5 with a user of the server's JAAS file.
/// - `connect_limit=TIME` (5 s): how long finding a member and opening a session may take.
/// - `answer_limit=TIME` (5 s): how long a request may go unanswered, a new connection included, before it is `Unavailable`.
/// - `patience=TIME` (30 s): how long whoever already waits in line puts up with servers that cannot be reached.
///
/// With TLS (`zks://`):
/// - `ca=FILE`: trust the certificates in this PEM file and no others, instead of the system's.
/// - `cert=FILE`, `key=FILE`: the client's own certificate and its key, for servers that ask for one.
/// - `server_name=NAME`: the name the certificate must have, where it is not the host's.
pub const PARAMETERS: &[&str] =
    &["root", "layout", "auth", "connect_limit", "answer_limit", "patience", "ca", "cert", "key", "server_name"];

/// The port for clients, and the usual one with TLS.
const PORT: u16 = 2181;
const TLS_PORT: u16 = 2281;

/// How to reach and use the servers. Start from [`Settings::default`] or [`Settings::from_url`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The members of the ensemble; any of them will do.
    pub servers: Vec<Address>,
    /// The node that everything is beneath, as with any ZooKeeper client; empty for none.
    pub chroot: String,
    /// Encryption; none is none.
    pub tls: Option<Tls>,
    /// Who we are; none is nobody, and then every node is everybody's.
    pub login: Option<Login>,
    /// The node beneath which the locks are.
    pub root: String,
    /// How locks are written.
    pub layout: Layout,
    /// How long finding a member and opening a session may take.
    pub connect_limit: Duration,
    /// How long a request may go unanswered.
    pub answer_limit: Duration,
    /// How long whoever waits in line puts up with servers that cannot be reached.
    pub patience: Duration,
}

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Login {
    /// ZooKeeper's own: an identity for ACLs, which any name and password make.
    Digest {
        /// The name.
        user: String,
        /// The password. It is sent as it is: use TLS.
        password: Secret,
    },
    /// SASL DIGEST-MD5: a user of the server's JAAS file.
    Sasl {
        /// The name.
        user: String,
        /// The password. It is not sent.
        password: Secret,
    },
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            servers: vec![Address::new("127.0.0.1", PORT)],
            chroot: String::new(),
            tls: None,
            login: None,
            root: "/tenure".to_owned(),
            layout: Layout::Tenure,
            connect_limit: Duration::from_secs(5),
            answer_limit: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// Reads a URL.
    pub fn from_url(url: &StoreUrl) -> Result<Settings> {
        let tls = match url.scheme() {
            "zk" | "zookeeper" => false,
            "zks" => true,
            other => {
                let what = format!("the ZooKeeper store has no scheme {other:?}");
                return Err(bad_url(what).with_hint(format!("It is one of {}", SCHEMES.join(", "))));
            }
        };
        let known: Vec<&str> = PARAMETERS.iter().copied().filter(|name| tls || !Tls::PARAMETERS.contains(name)).collect();
        url.allow_parameters(&known)?;
        let mut settings = Settings {
            servers: Address::list(url, if tls { TLS_PORT } else { PORT })?,
            chroot: url.path().trim_end_matches('/').to_owned(),
            ..Settings::default()
        };
        if tls {
            settings.tls = Some(Tls::from_url(url)?);
        }
        settings.login = login(url)?;
        settings.layout = match url.parameter("layout") {
            None | Some("tenure") => Layout::Tenure,
            Some("curator") => Layout::Curator,
            Some(other) => return Err(bad_value("layout", other, "tenure or curator")),
        };
        if settings.layout == Layout::Curator {
            settings.root = String::new();
        }
        if let Some(root) = url.parameter("root") {
            settings.root = root.trim_end_matches('/').to_owned();
        }
        url.read_limits(&mut settings.connect_limit, &mut settings.answer_limit, &mut settings.patience)?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values are within their limits, wherever they come from.
    pub(crate) fn check(&self) -> Result<()> {
        if self.servers.is_empty() {
            return Err(bad_url("a ZooKeeper URL names at least one server").with_hint("zk://host1,host2,host3"));
        }
        for (name, path) in [("the path of the URL", &self.chroot), ("the parameter root", &self.root)] {
            if !path.is_empty() {
                check_path(path).map_err(|why| {
                    bad_url(format!("{name} is no path of ZooKeeper's: it {why}")).with_hint("Such as /apps/tenure")
                })?;
            }
        }
        if self.root.is_empty() && self.layout == Layout::Tenure {
            return Err(bad_url("the parameter root cannot be empty").with_hint("Such as root=/tenure"));
        }
        for (name, value, least) in [
            ("connect_limit", self.connect_limit, Duration::from_millis(1)),
            ("answer_limit", self.answer_limit, Duration::from_millis(1)),
            ("patience", self.patience, Duration::ZERO),
        ] {
            if value < least || value > 24 * HOUR {
                return Err(bad_value(name, &format!("{value:?}"), "from 1ms to 24h"));
            }
        }
        tenure_tls::check(self.tls.as_ref())?;
        Ok(())
    }

    /// The store in words, as a URL without secrets.
    pub(crate) fn describe(&self) -> String {
        let scheme = if self.tls.is_some() { "zks" } else { "zk" };
        let user = match &self.login {
            None => String::new(),
            Some(Login::Digest { user, .. } | Login::Sasl { user, .. }) => format!("{user}@"),
        };
        format!("{scheme}://{user}{}{}", self.hosts(), self.chroot)
    }

    /// The members, for errors.
    pub(crate) fn hosts(&self) -> String {
        self.servers.iter().map(Address::to_string).collect::<Vec<_>>().join(",")
    }

    /// The node that never exists: deleting it is how a session proves itself. No name is written like this.
    pub(crate) fn proof(&self) -> String {
        format!("{}{}/%proof", self.chroot, self.root)
    }
}

fn login(url: &StoreUrl) -> Result<Option<Login>> {
    let sasl = match url.parameter("auth") {
        None | Some("digest") => false,
        Some("sasl") => true,
        Some(other) => return Err(bad_value("auth", other, "digest or sasl")),
    };
    let user = match (url.user(), url.password()) {
        (None, None) if url.parameter("auth").is_none() => return Ok(None),
        (Some(user), Some(_)) => user.to_owned(),
        _ => {
            return Err(bad_url("a login is a user and a password, both").with_hint("zk://user:password@host1,host2,host3"));
        }
    };
    if user.contains(':') {
        return Err(bad_url("the user of a ZooKeeper login has no colon"));
    }
    let password = Secret::new(url.password().unwrap_or_default());
    Ok(Some(if sasl { Login::Sasl { user, password } } else { Login::Digest { user, password } }))
}

const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use tenure_core::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<Settings> {
        Settings::from_url(&url.parse().unwrap())
    }

    #[test]
    fn a_url_says_where_and_how() {
        let settings = read("zk://app:s%40crit@a,b:2182,[::1]/apps/x/?root=/locks&answer_limit=2s").unwrap();
        assert_eq!(settings.hosts(), "a:2181,b:2182,[::1]:2181");
        assert_eq!((settings.chroot.as_str(), settings.root.as_str()), ("/apps/x", "/locks"));
        assert_eq!(settings.answer_limit, Duration::from_secs(2));
        assert!(
            matches!(&settings.login, Some(Login::Digest { user, password }) if user == "app" && password.reveal() == "s@crit")
        );
        assert_eq!(settings.describe(), "zk://app@a:2181,b:2182,[::1]:2181/apps/x");
        assert!(!format!("{settings:?}").contains("s@crit"));
        assert_eq!(settings.proof(), "/apps/x/locks/%proof");
    }

    #[test]
    fn tls_has_its_port_and_its_parameters() {
        assert_eq!(read("zks://a?ca=/x.pem").unwrap().hosts(), "a:2281");
        assert_eq!(read("zk://a?ca=/x.pem").unwrap_err().kind(), ErrorKind::BadUrl);
        assert_eq!(read("zks://a?cert=/x.pem").unwrap_err().kind(), ErrorKind::BadUrl);
    }

    #[test]
    fn curators_layout_has_no_root_of_its_own() {
        let settings = read("zk://a?layout=curator").unwrap();
        assert_eq!((settings.layout, settings.root.as_str()), (Layout::Curator, ""));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for url in [
            "zk://",
            "zk://a?root=",
            "zk://a?root=locks",
            "zk://a?root=/a//b",
            "zk://a/../b",
            "zk://a?auth=sasl",
            "zk://a?auth=kerberos",
            "zk://user@a",
            "zk://a?layout=menagerie",
            "zk://a?connect_limit=0s",
            "zk://a?prefix=x",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::BadUrl, "{url}");
        }
    }
}
