//! How a Redis is to be started.

use crate::servers::ClientCertificate;

/// How a Redis is to be started; the default remembers nothing, like a cache.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    pub(super) aof: Option<Fsync>,
    pub(super) password: Option<String>,
    pub(super) users: Vec<String>,
    pub(super) lines: Vec<(String, String)>,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) skewed: bool,
    pub(super) cluster: bool,
    pub(super) sentinel: bool,
}

/// When the append-only file is brought to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Once a second, which is what people run.
    EverySecond,
    /// Before every answer.
    Always,
}

impl RedisOptions {
    /// No persistence, no password, nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// With an append-only file.
    pub fn aof(self, fsync: Fsync) -> Self {
        RedisOptions { aof: Some(fsync), ..self }
    }

    /// With a password for the default user. It goes into a URL as it is, so only letters and digits.
    pub fn password(self, password: &str) -> Self {
        RedisOptions { password: Some(password.to_owned()), ..self }
    }

    /// With another user; `rules` is a line of an ACL file after `user`: `alice on >secret ~tenure:* +@all`.
    pub fn user(mut self, rules: &str) -> Self {
        self.users.push(rules.to_owned());
        self
    }

    /// With a line of `redis.conf`: `.arg("maxmemory", "2mb")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With TLS, on a port of its own beside the other, and fresh certificates.
    pub fn tls(self, clients: ClientCertificate) -> Self {
        RedisOptions { tls: Some(clients), ..self }
    }

    /// With a wall clock that the test can set.
    pub fn skewed(self) -> Self {
        RedisOptions { skewed: true, ..self }
    }

    /// As a node of a cluster. `RedisCluster` makes whole ones.
    pub fn cluster(self) -> Self {
        RedisOptions { cluster: true, ..self }
    }
}
