//! How a MariaDB is to be started.

use crate::servers::ClientCertificate;

/// How a MariaDB is to be started. The default keeps what it was told when it is killed, but not when the machine loses
/// its power: it does not wait for the disk.
#[derive(Clone, Debug, Default)]
pub struct MariaDbOptions {
    pub(super) fsync: bool,
    pub(super) password: Option<String>,
    pub(super) settings: Vec<(String, String)>,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) skewed: bool,
    pub(super) binlog: bool,
    pub(super) disk: Option<u64>,
    /// The cluster's address.
    pub(super) galera: Option<String>,
}

impl MariaDbOptions {
    /// `innodb_flush_log_at_trx_commit=2` and `innodb_flush_method=nosync`, no password, and all else as MariaDB has it by itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the disk at every commit, as in production: `innodb_flush_log_at_trx_commit=1`, and MariaDB's own way to flush.
    pub fn fsync(self) -> Self {
        MariaDbOptions { fsync: true, ..self }
    }

    /// Root needs a password by TCP. It goes into a URL as it is, so only letters and digits.
    pub fn password(self, password: &str) -> Self {
        MariaDbOptions { password: Some(password.to_owned()), ..self }
    }

    /// With so many connections at most; MariaDB by itself has 151.
    pub fn max_connections(self, many: u32) -> Self {
        self.set("max_connections", &many.to_string())
    }

    /// With a setting of a configuration file: `.set("wait_timeout", "5")`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With TLS and fresh certificates. Whoever comes by TCP without TLS is sent away.
    pub fn tls(self, clients: ClientCertificate) -> Self {
        MariaDbOptions { tls: Some(clients), ..self }
    }

    /// With a wall clock that the test can set.
    pub fn skewed(self) -> Self {
        MariaDbOptions { skewed: true, ..self }
    }

    /// With a binary log, so that replicas can follow it.
    pub fn binlog(self) -> Self {
        MariaDbOptions { binlog: true, ..self }
    }

    /// With its data on a disk of so many bytes, which the test can fill. A new server has 20 MB, and its log grows to
    /// 96 MB unless `innodb_log_file_size` says another size; its replicas' disks are not small. Needs root, or
    /// unprivileged user namespaces.
    pub fn disk(self, bytes: u64) -> Self {
        MariaDbOptions { disk: Some(bytes), ..self }
    }
}
