//! Which store, and a client of it.
//!
//! The flag wins over the environment, and a URL over a file. clap never sees the variables' values, so no help text, no
//! usage error and no completion can show a password.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use tenure::{Client, Instant, StoreUrl, Wait};

use crate::child::Signals;
use crate::duration;
use crate::failure::Failure;
use crate::print::Printer;

/// The options of every command that talks to a store.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// URL of sqlite, postgres, mysql, redis, zk, etcd, … [env: TENURE_STORE]
    ///
    /// sqlite:///path/to/file, postgres://host/database, mysql://host/database, redis://host (or redis+sentinel, redis+cluster,
    /// redlock), zk://h1,h2,h3, etcd://h1,h2,h3, or none for your user's default file.
    #[arg(long, value_name = "URL", global = true, help_heading = "Global options", conflicts_with = "store_file")]
    store: Option<String>,

    /// A file whose first line is the URL [env: TENURE_STORE_FILE]
    #[arg(long, value_name = "FILE", global = true, help_heading = "Global options")]
    store_file: Option<PathBuf>,

    /// Say on stderr which store is used
    #[arg(short, long, global = true, help_heading = "Global options")]
    verbose: bool,
}

/// A store that was chosen, but not connected to yet.
#[derive(Debug)]
pub(crate) enum Source {
    /// The user's default file.
    Default,
    /// By its URL.
    Url(String),
    /// By the first line of a file: where it is, and what it says.
    File(PathBuf, String),
}

impl StoreArgs {
    /// Which store is meant.
    pub(crate) fn source(&self) -> Result<Source, Failure> {
        if let Some(url) = &self.store {
            return Ok(Source::Url(url.clone()));
        }
        if let Some(path) = &self.store_file {
            return Source::read("--store-file", path);
        }
        if let Some(url) = set(STORE) {
            let url = url.into_string().map_err(|_| Failure::new(format!("{STORE} is not UTF-8 text")))?;
            return Ok(Source::Url(url));
        }
        match set(STORE_FILE) {
            Some(path) => Source::read("--store-file", Path::new(&path)),
            None => Ok(Source::Default),
        }
    }

    /// Which store is meant, after a warning if a password of it can be read by others.
    pub(crate) fn named(&self, printer: &Printer) -> Result<Source, Failure> {
        let source = self.source()?;
        if self.store.as_deref().is_some_and(has_password) {
            printer.warning("the store's password is in the command line, where everybody on this host can read it");
        }
        source.warn("store", printer);
        Ok(source)
    }

    /// Connects to it, for as long as the caller will wait.
    pub(crate) async fn connect(&self, wait: Wait, printer: &Printer) -> Result<Client, Failure> {
        let client = self.named(printer)?.connect_within(wait).await?;
        self.tell(&client, printer);
        Ok(client)
    }

    /// Connects to it for as long as the caller will wait, and until a signal comes. Gives what is left of the wait, too.
    ///
    /// # Cancel safety
    /// As connecting.
    pub(crate) async fn open(
        &self,
        wait: Wait,
        quiet: bool,
        signals: &mut Signals,
        printer: &Printer,
    ) -> Result<Opened, Failure> {
        let source = if quiet { self.source()? } else { self.named(printer)? };
        let deadline = wait.deadline(Instant::now());
        let client = tokio::select! {
            biased;
            signal = signals.quit() => return Ok(Opened::Quit(signal)),
            client = source.connect_within(wait) => client?,
        };
        if !quiet {
            self.tell(&client, printer);
        }
        Ok(Opened::Client(source, client, wait.left(deadline, Instant::now())))
    }

    fn tell(&self, client: &Client, printer: &Printer) {
        if self.verbose {
            printer.remark("store", format!("the store is {}", client.describe()));
        }
    }
}

/// What came of opening a store.
pub(crate) enum Opened {
    /// A client of it, and what is left of the wait.
    Client(Source, Client, Wait),
    /// A signal told us to end.
    Quit(Signal),
}

/// How long connecting may take where the caller will not wait.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Whether there is a password in a URL.
pub(crate) fn has_password(url: &str) -> bool {
    url.parse::<StoreUrl>().is_ok_and(|url| url.has_password())
}

impl Source {
    /// Reads the first line of a file that a flag has named.
    pub(crate) fn read(flag: &str, path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| Failure::new(format!("{flag} {shown}: {error}")))?;
        let url = text.lines().next().unwrap_or_default().trim();
        if url.is_empty() {
            return Err(Failure::new(format!("{flag} {shown}: its first line should be a URL, and is empty")));
        }
        Ok(Source::File(std::path::absolute(path)?, url.to_owned()))
    }

    /// Warns if others may read the password in its file.
    pub(crate) fn warn(&self, what: &str, printer: &Printer) {
        let Source::File(path, url) = self else { return };
        let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
        if mode & 0o004 != 0 && has_password(url) {
            let path = path.display();
            printer
                .warning(format!("everybody on this host can read the {what}'s password in {path}: run chmod 600 {path}"));
        }
    }

    /// Connects to it.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        refuse_memory(self.url().unwrap_or_default())?;
        Ok(match self {
            Source::Default => tenure::connect_default().await?,
            Source::Url(url) | Source::File(_, url) => tenure::connect(url).await?,
        })
    }

    /// Connects to it, or says that it could not within this time.
    async fn connect_within(&self, wait: Wait) -> Result<Client, Failure> {
        let limit = match wait {
            Wait::No => self.connect_limit().map_or(AT_ONCE, |limit| limit.max(AT_ONCE)),
            Wait::For(limit) => limit,
            Wait::Forever => return self.connect().await,
        };
        tokio::time::timeout(limit, self.connect()).await.unwrap_or_else(|_| {
            let what = format!("could not connect to {} within {}", self.shown(), duration::show(limit));
            Err(Failure { kind: "unavailable", ..Failure::new(what) }.with_hint(
                "-w bounds connecting too; with -n it may take 2s, or the URL's connect_limit. `tenure doctor` says what is wrong",
            ))
        })
    }

    /// How long connecting may take, if the URL says so.
    fn connect_limit(&self) -> Option<Duration> {
        tenure::parse_duration(self.url()?.parse::<StoreUrl>().ok()?.parameter("connect_limit")?)
    }

    /// The store in words, without secrets.
    fn shown(&self) -> String {
        let shown = |url: &str| url.parse::<StoreUrl>().map_or_else(|_| "the store".to_owned(), |url| url.to_string());
        self.url().map_or_else(|| "the default file".to_owned(), shown)
    }

    /// The URL, where there is one.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Source::Default => None,
            Source::Url(url) | Source::File(_, url) => Some(url),
        }
    }

    /// What a command's own `tenure` calls need to meet the same store, wherever they run. A URL that came from a file
    /// stays in its file.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        match self {
            Source::Default => match tenure::sqlite::default_path().ok().as_ref().and_then(|path| path.to_str()) {
                Some(path) => vec![(STORE.into(), file_url(path).into()), (STORE_FILE.into(), OsString::new())],
                None => Vec::new(), // it is found again as we found it
            },
            Source::Url(url) => vec![(STORE.into(), anchored(url).into()), (STORE_FILE.into(), OsString::new())],
            Source::File(path, _) => vec![(STORE.into(), OsString::new()), (STORE_FILE.into(), path.into())],
        }
    }
}

/// Refuses what other processes have no part in.
pub(crate) fn refuse_memory(url: &str) -> Result<(), Failure> {
    if !url.parse::<StoreUrl>().is_ok_and(|url| url.scheme() == "memory") {
        return Ok(());
    }
    Err(Failure {
        kind: "unsupported",
        ..Failure::new("memory:// is in this process only: no other process would be excluded")
    }
    .with_hint("Name a file, sqlite:///path/to/file.db, or a server such as redis://host"))
}

/// The same URL, with a relative path made absolute: the command may change its directory.
fn anchored(text: &str) -> String {
    let Ok(url) = text.parse::<StoreUrl>() else { return text.to_owned() };
    let path = PathBuf::from(url.file_path());
    if url.scheme() != "sqlite" || path.as_os_str().is_empty() || path.is_absolute() {
        return text.to_owned();
    }
    let Some(path) = std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok()) else {
        return text.to_owned();
    };
    let query = text.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
    format!("{}{query}", file_url(&path))
}

/// The URL of a file.
fn file_url(path: &str) -> String {
    let escape = |c| if matches!(c, '%' | '?' | '#') { format!("%{:02X}", c as u32) } else { c.to_string() };
    format!("sqlite://{}", path.chars().map(escape).collect::<String>())
}

/// A variable that is set to something.
pub(crate) fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

const STORE: &str = "TENURE_STORE";
const STORE_FILE: &str = "TENURE_STORE_FILE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_files_are_anchored() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(anchored("sqlite://a.db"), format!("sqlite://{here}/a.db"));
        assert_eq!(anchored("sqlite:d/a%20%25.db?x=1"), format!("sqlite://{here}/d/a %25.db?x=1"));
        for same in ["sqlite:///a/b.db", "sqlite:/a/b.db", "memory://x", "redis://u:p@h/0", "nonsense"] {
            assert_eq!(anchored(same), same);
        }
    }

    #[test]
    fn a_password_is_found_wherever_it_is() {
        for secret in ["redis://app:hunter2@cache/0", "redis+sentinel://a,b/main?sentinel_password=hunter2"] {
            assert!(has_password(secret), "{secret}");
        }
        for plain in ["redis://app@cache/0", "sqlite:///x", "zk://h?auth=digest", "etcds://h?key=/etc/key.pem"] {
            assert!(!has_password(plain), "{plain}");
        }
    }
}
