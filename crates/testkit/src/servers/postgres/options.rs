//! How a PostgreSQL is to be started.

use crate::servers::ClientCertificate;

/// How a PostgreSQL is to be started. The default keeps what it was told when it is killed, but not when the machine
/// loses its power: it does not wait for the disk.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    pub(super) fsync: bool,
    pub(super) password: Option<String>,
    pub(super) settings: Vec<(String, String)>,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) skewed: bool,
    pub(super) disk: Option<u64>,
    pub(super) standby_of: Option<String>,
}

impl PostgresOptions {
    /// `fsync=off`, everybody is trusted, and all else as PostgreSQL has it by itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the disk at every commit, as in production.
    pub fn fsync(self) -> Self {
        PostgresOptions { fsync: true, ..self }
    }

    /// Whoever comes by TCP needs a password (SCRAM); this one is the superuser's. It goes into a URL as it is, so only
    /// letters and digits.
    pub fn password(self, password: &str) -> Self {
        PostgresOptions { password: Some(password.to_owned()), ..self }
    }

    /// With so many connections at most; PostgreSQL by itself has 100.
    pub fn max_connections(self, many: u32) -> Self {
        self.set("max_connections", &many.to_string())
    }

    /// With a setting of `postgresql.conf`: `.set("lock_timeout", "2s")`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With TLS and fresh certificates. Whoever comes by TCP without TLS is sent away.
    pub fn tls(self, clients: ClientCertificate) -> Self {
        PostgresOptions { tls: Some(clients), ..self }
    }

    /// With a wall clock that the test can set.
    pub fn skewed(self) -> Self {
        PostgresOptions { skewed: true, ..self }
    }

    /// With its data on a disk of so many bytes, which the test can fill. A new server has 40 MB; its replicas' disks are
    /// not small. Needs root, or unprivileged user namespaces.
    pub fn disk(self, bytes: u64) -> Self {
        PostgresOptions { disk: Some(bytes), ..self }
    }
}
