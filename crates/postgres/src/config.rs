//! Settings, and the URLs they come from.

use std::time::Duration;

use tenure_core::{Address, Result, Secret, StoreUrl, Tls, bad_url, bad_value, check_limits};

use crate::schema::Layout;

/// The schemes of this store's URLs.
pub const SCHEMES: &[&str] = &["postgres", "postgresql"];

/// The parameters of its URLs.
pub const PARAMETERS: &[&str] = &[
    "schema",
    "prefix",
    "owner",
    "liveness",
    "connect_limit",
    "answer_limit",
    "patience",
    "strict",
    "insecure_login",
    "max_sessions",
    "assume_direct",
    "tls",
    "ca",
    "cert",
    "key",
    "server_name",
];

/// Where the database is, and how it is used. `Debug` shows no password.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The servers, tried in turn until one is the primary.
    pub servers: Vec<Address>,
    /// The user; without one, that of this process.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// The database; without one, that with the user's name.
    pub database: Option<String>,
    /// Encryption.
    pub tls: Option<Tls>,
    /// The schema that the tables are in.
    pub schema: String,
    /// What the names of all tables and functions begin with. Programs with another prefix do not meet.
    pub prefix: String,
    /// The role that made the tables and functions, if it is none that is trusted anyway: this user, a superuser, and unless this user is
    /// a superuser the owner of the schema or of the database.
    pub owner: Option<String>,
    /// What keeps a hold alive. A prefix is used in one way only.
    pub liveness: Liveness,
    /// How long making a connection may take.
    pub connect_limit: Duration,
    /// How long a request may go unanswered, a new connection included.
    pub answer_limit: Duration,
    /// How long whoever already waits in line puts up with a server that cannot be reached.
    pub patience: Duration,
    /// Refuse to connect where `doctor` would call something bad.
    pub strict: bool,
    /// Without TLS: give the password also to a server of another host that asks for it in clear or as MD5, and not by SCRAM alone.
    pub insecure_login: bool,
    /// With sessions: how many claims may have a session of their own at a time, to wait on or because they had to wait.
    pub max_sessions: usize,
    /// With sessions: no pooler lends a connection to others between two statements, whatever it looks like.
    pub assume_direct: bool,
}

/// What keeps a hold alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// A row with a time to live, which is renewed. Works through every pooler.
    #[default]
    Lease,
    /// A session of the server's, with its advisory locks.
    Session,
}

impl Liveness {
    /// As in URLs and in the table `setup`.
    pub fn as_str(self) -> &'static str {
        match self {
            Liveness::Lease => "lease",
            Liveness::Session => "session",
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            servers: vec![Address::new("127.0.0.1", PORT)],
            user: None,
            password: None,
            database: None,
            tls: None,
            schema: "public".to_owned(),
            prefix: "tenure_".to_owned(),
            owner: None,
            liveness: Liveness::Lease,
            connect_limit: Duration::from_secs(5),
            answer_limit: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            strict: false,
            insecure_login: false,
            max_sessions: 50,
            assume_direct: false,
        }
    }
}

impl Settings {
    /// Reads a URL.
    pub fn from_url(url: &StoreUrl) -> Result<Settings> {
        if !SCHEMES.contains(&url.scheme()) {
            let what = format!("the PostgreSQL store has no scheme {:?}", url.scheme());
            return Err(bad_url(what).with_hint(format!("It is one of {}", SCHEMES.join(", "))));
        }
        let mut encrypted = false;
        url.allow_parameters(PARAMETERS)?;
        url.read_yes_no("tls", &mut encrypted)?;
        if !encrypted {
            let plain: Vec<&str> = PARAMETERS.iter().copied().filter(|name| !Tls::PARAMETERS.contains(name)).collect();
            url.allow_parameters(&plain).map_err(|error| {
                let hint = "The files of TLS go with tls=yes only; without it nothing is encrypted";
                if url_has_tls_files(url) { error.with_hint(hint) } else { error }
            })?;
        }
        let mut settings = Settings { servers: Address::list(url, PORT)?, ..Settings::default() };
        settings.user = url.user().map(str::to_owned);
        settings.password = url.password().map(Secret::new);
        settings.database = database(url)?;
        settings.tls = if encrypted { Some(Tls::from_url(url)?) } else { None };
        for (name, field) in [("schema", &mut settings.schema), ("prefix", &mut settings.prefix)] {
            if let Some(text) = url.parameter(name) {
                *field = text.to_owned();
            }
        }
        settings.owner = url.parameter("owner").map(str::to_owned);
        settings.liveness = match url.parameter("liveness") {
            None | Some("lease") => Liveness::Lease,
            Some("session") => Liveness::Session,
            Some(other) => return Err(bad_value("liveness", other, "lease or session")),
        };
        url.read_limits(&mut settings.connect_limit, &mut settings.answer_limit, &mut settings.patience)?;
        url.read_yes_no("strict", &mut settings.strict)?;
        url.read_yes_no("insecure_login", &mut settings.insecure_login)?;
        url.read_yes_no("assume_direct", &mut settings.assume_direct)?;
        if let Some(text) = url.parameter("max_sessions") {
            let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
            settings.max_sessions = number.ok_or_else(|| bad_value("max_sessions", text, "a number from 1 to 10000"))?;
        }
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values are within their limits, wherever they come from.
    pub(crate) fn check(&self) -> Result<Layout> {
        check_limits(self.connect_limit, self.answer_limit, self.patience)?;
        tenure_tls::check(self.tls.as_ref())?;
        if self.servers.is_empty() {
            return Err(bad_url("there is no server to connect to"));
        }
        Layout::new(&self.schema, &self.prefix)
    }

    /// The store in words, as a URL without secrets.
    pub(crate) fn describe(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let database = self.database.as_deref().unwrap_or_default();
        format!("postgres://{user}{}/{database}", hosts.join(","))
    }

    /// Whether a connection to this server may give the password only where that shows it to nobody.
    pub(crate) fn is_scram_only(&self, address: &Address) -> bool {
        self.tls.is_none() && self.password.is_some() && !self.insecure_login && !address.is_this_host()
    }

    /// How the driver reaches a server. Nothing is sent at startup that a pooler might not know.
    pub(crate) fn driver(&self, address: &Address) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host(&address.host).port(address.port).application_name("tenure");
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(password.reveal());
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        // A peer that vanished without a word is found out by probes, and by what it does not acknowledge.
        config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(3);
        config.tcp_user_timeout(self.answer_limit.max(KEEPALIVE * 2));
        config.connect_timeout(self.connect_limit);
        config
    }
}

fn url_has_tls_files(url: &StoreUrl) -> bool {
    Tls::PARAMETERS.iter().any(|name| url.parameter(name).is_some())
}

/// The database: the path without its slash. It is not shown: whoever mistypes a URL may have put a secret there.
fn database(url: &StoreUrl) -> Result<Option<String>> {
    let path = url.path().strip_prefix('/').unwrap_or(url.path());
    if path.contains('/') || path.chars().any(char::is_control) {
        return Err(bad_url("the path of a postgres: URL is the name of a database")
            .with_hint("Such as /app. If a slash belongs to a password or a name, write it as %2F"));
    }
    Ok((!path.is_empty()).then(|| path.to_owned()))
}

const PORT: u16 = 5432;
const KEEPALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
