//! A store's address: `scheme://user:password@hosts/path?parameter=value`, parsed once, its secrets never shown.

use std::fmt;

use crate::{Error, ErrorKind, Result};

/// A store's address. `Debug` and `Display` show everything but the password.
///
/// ```
/// use tenure_core::StoreUrl;
/// let url: StoreUrl = "redis://app:hunter2@cache:6379/0?tls=yes".parse()?;
/// assert_eq!((url.scheme(), url.hosts(), url.path()), ("redis", "cache:6379", "/0"));
/// assert_eq!(url.parameter("tls"), Some("yes"));
/// assert_eq!(url.to_string(), "redis://app:***@cache:6379/0?tls=yes");
/// # Ok::<(), tenure_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    hosts: String,
    path: String,
    parameters: Vec<(String, String)>,
}

impl StoreUrl {
    /// What comes before the first colon, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user's name, where there is one.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, where there is one. Never print it.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Whether a password is in it, as the login's or in a parameter.
    pub fn has_password(&self) -> bool {
        self.password.is_some() || self.parameters.iter().any(|(name, _)| name.to_ascii_lowercase().contains("pass"))
    }

    /// The host or hosts with their ports, as they stand there; empty where there is none.
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    /// What comes after the hosts, with its leading slash.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a store that is a file: `sqlite:///var/lib/x.db` and `sqlite:/var/lib/x.db` are absolute,
    /// `sqlite://x.db` and `sqlite:x.db` are relative to the current directory.
    pub fn file_path(&self) -> String {
        format!("{}{}", self.hosts, self.path)
    }

    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Refuses a user and password, for stores that have none: `sqlite://a@b/x.db` is a directory with an `@`, not a login.
    pub fn refuse_login(&self) -> Result<()> {
        if self.user.is_none() && self.password.is_none() {
            return Ok(());
        }
        let what = format!("{}: URLs have no user and no password", self.scheme);
        Err(Error::new(ErrorKind::BadUrl, what).with_hint("If the @ belongs to the path, write it as %40"))
    }

    /// Refuses parameters that the store does not know, so that a typing error is not a silent default.
    pub fn allow_parameters(&self, known: &[&str]) -> Result<()> {
        match self.parameters.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let what = format!("{}: URLs have no parameter {name:?}", self.scheme);
                Err(Error::new(ErrorKind::BadUrl, what).with_hint(format!("Known parameters: {list}")))
            }
        }
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // No part of the text goes into these errors: it may hold a password.
        let bad = |why: &str| Error::new(ErrorKind::BadUrl, format!("the store's URL {why}"));
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| bad("has no scheme").with_hint("It looks like sqlite:///var/lib/locks.db or redis://host"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(plain) {
            return Err(bad("does not begin with a scheme"));
        }
        if rest.contains('#') {
            return Err(bad("has a '#', which would cut it short; write %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            let hint = "In a user's name or password write ? as %3F and @ as %40; in a parameter write @ as %40";
            return Err(bad("has an '@' after a '?'").with_hint(hint));
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        if authority.contains(':') && !authority.contains('@') && path.contains('@') {
            return Err(bad("has an '@' after a '/'").with_hint("In a user's name or password write / as %2F and @ as %40"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let decoded = |text: &str| decode(text).ok_or_else(|| bad("has a '%' that is not followed by two hex digits"));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (None, None),
        };
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(bad(&format!("has the parameter {name:?} more than once")).with_hint("Say which value is meant"));
            }
            parameters.push((name, value));
        }
        Ok(StoreUrl {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()),
            hosts: decoded(hosts)?,
            path: decoded(path)?,
            parameters,
        })
    }
}

/// Undoes percent-escapes; `None` if they are not well-formed.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        bytes.push(digit(*high)? << 4 | digit(*low)?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() || self.path.starts_with('/') || self.path.is_empty() {
            f.write_str("//")?;
        }
        if self.user.is_some() || self.password.is_some() {
            f.write_str(self.user.as_deref().unwrap_or_default())?;
            f.write_str(if self.password.is_some() { ":***@" } else { "@" })?;
        }
        f.write_str(&self.hosts)?;
        f.write_str(&self.path)?;
        for (place, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={}", if place == 0 { '?' } else { '&' }, if is_secret(name) { "***" } else { value })?;
        }
        Ok(())
    }
}

/// Parameters that stores use for secrets, whatever their scheme.
fn is_secret(name: &str) -> bool {
    ["pass", "pwd", "secret", "token", "key", "auth", "credential"]
        .iter()
        .any(|word| name.to_ascii_lowercase().contains(word))
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> StoreUrl {
        text.parse().unwrap()
    }

    #[test]
    fn files_are_absolute_or_relative() {
        for (text, path) in [
            ("sqlite:///var/lib/a.db", "/var/lib/a.db"),
            ("sqlite:/var/lib/a.db", "/var/lib/a.db"),
            ("sqlite://a.db", "a.db"),
            ("sqlite:dir/a.db", "dir/a.db"),
            ("sqlite://dir/a%20b.db", "dir/a b.db"),
        ] {
            assert_eq!(parse(text).file_path(), path, "{text}");
        }
    }

    #[test]
    fn unknown_parameters_are_named_with_the_known_ones() {
        let error = parse("sqlite:a.db?colour=red").allow_parameters(&["network", "busy"]).unwrap_err().to_string();
        assert!(error.contains("colour") && error.contains("network, busy"), "{error}");
    }

    #[test]
    fn a_parameter_that_is_there_twice_is_refused() {
        for text in ["redis://cache?tls=no&tls=yes", "redis://cache?tls=yes&db=1&tls=yes", "redis://cache?tls&%74ls=no"] {
            let error = text.parse::<StoreUrl>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadUrl);
            assert!(error.to_string().contains("\"tls\" more than once"), "{error}");
        }
    }

    /// Each of these is what a password with that letter in it may look like.
    #[test]
    fn a_password_that_is_not_escaped_is_not_shown() {
        for text in ["redis://app:hun?ter2@cache", "redis://app:hun?ter2@cache:6379/0?tls=yes", "redis://app:hun/ter2@cache"]
            .into_iter()
            .chain([
                "redis://app:hun#ter2@cache",
                "redis://app:hun%ter2@cache",
                "redis://:?ter2@cache",
                "redis:?hun&ter2@cache",
            ])
        {
            let error = text.parse::<StoreUrl>().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hun") && !shown.contains("ter2") && !shown.contains("cache"), "{text}: {shown}");
        }
        assert_eq!(parse("redis://cache?name=a%40b").parameter("name"), Some("a@b"));
    }

    proptest! {
        #[test]
        fn a_password_is_never_shown(user in "[a-z]{1,8}", password in "[A-Z]{6,12}") {
            let url = parse(&format!("x://{user}:{password}@host/?api_key={password}"));
            prop_assert_eq!(url.password(), Some(&*password));
            let shown = format!("{url} {url:?}");
            prop_assert!(!shown.contains(&password));
        }

        #[test]
        fn rubbish_never_panics_and_its_error_never_quotes_it(text in "\\PC{0,40}") {
            if let Err(error) = format!("{text}hunter2%zz").parse::<StoreUrl>() {
                prop_assert!(!error.to_string().contains("hunter2"));
            }
        }
    }
}
