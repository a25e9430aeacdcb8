//! Which store, and a client of it.
//!
//! The flag wins over the environment, and a URL over a file. clap never sees the variables' values, so no help text, no
//! usage error and no completion can show a password.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use tenure::{Client, StoreUrl};

use crate::failure::Failure;

/// The options of every command that talks to a store.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// URL of sqlite, postgres, mysql, redis, zk, etcd, … [env: TENURE_STORE]
    ///
    /// sqlite:///path/to/file, postgres://host/database, mysql://host/database, redis://host (or redis+sentinel, redis+cluster,
    /// redlock), zk://h1,h2,h3, etcd://h1,h2,h3, or none for your own default file.
    #[arg(long, value_name = "URL", global = true, help_heading = "Global options", conflicts_with = "store_file")]
    store: Option<String>,

    /// A file whose first line is the URL [env: TENURE_STORE_FILE]
    #[arg(long, value_name = "FILE", global = true, help_heading = "Global options")]
    store_file: Option<PathBuf>,
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

    /// Connects to it.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.source()?.connect().await
    }

    /// Whether a password stands on the command line, where `ps` shows it to everybody.
    pub(crate) fn shows_a_secret(&self) -> bool {
        self.store.as_deref().is_some_and(has_a_secret)
    }
}

/// Whether there is a password in a URL.
pub(crate) fn has_a_secret(url: &str) -> bool {
    url.parse::<StoreUrl>().is_ok_and(|url| url.password().is_some())
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

    /// Connects to it.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        Ok(match self {
            Source::Default => tenure::connect_default().await?,
            Source::Url(url) | Source::File(_, url) => tenure::connect(url).await?,
        })
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
            Source::Default => match tenure::sqlite::default_path().to_str() {
                Some(path) => vec![(STORE.into(), file_url(path).into()), (STORE_FILE.into(), OsString::new())],
                None => Vec::new(), // it is found again as we found it
            },
            Source::Url(url) => vec![(STORE.into(), anchored(url).into()), (STORE_FILE.into(), OsString::new())],
            Source::File(path, _) => vec![(STORE.into(), OsString::new()), (STORE_FILE.into(), path.into())],
        }
    }
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
    fn a_secret_in_argv_is_seen() {
        let with = |url: &str| StoreArgs { store: Some(url.into()), store_file: None }.shows_a_secret();
        assert!(with("redis://app:hunter2@cache/0"));
        assert!(!with("redis://app@cache/0") && !with("sqlite:///x"));
    }
}
