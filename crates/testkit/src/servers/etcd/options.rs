//! How an etcd is to be started.

use std::time::Duration;

use crate::servers::ClientCertificate;

/// How an etcd is to be started, alone or as a cluster. The default keeps what it was told when it is killed, but not
/// when the machine loses its power: its data are in memory where the machine has a place for that.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(super) disk: bool,
    pub(super) loopback: bool,
    pub(super) election: Duration,
    pub(super) password: Option<String>,
    pub(super) users: Vec<User>,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) args: Vec<String>,
}

/// Somebody who is not root.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
    pub(super) prefix: String,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        EtcdOptions {
            disk: false,
            loopback: false,
            election: Duration::from_millis(500),
            password: None,
            users: vec![],
            tls: None,
            args: vec![],
        }
    }
}

impl EtcdOptions {
    /// Data in memory, no password, no TLS, and a leader that is missed after half a second, so that the shortest
    /// lease is one second.
    pub fn new() -> Self {
        Self::default()
    }

    /// With data on the disk, for which it waits at every write.
    pub fn disk(self) -> Self {
        EtcdOptions { disk: true, ..self }
    }

    /// On ports of 127.0.0.1 also where the members could have a network of their own.
    pub fn loopback(self) -> Self {
        EtcdOptions { loopback: true, ..self }
    }

    /// How long a leader must be silent until another is elected; a tenth of that is the heartbeat. The shortest lease
    /// is one and a half of it, in whole seconds.
    pub fn election(self, timeout: Duration) -> Self {
        EtcdOptions { election: timeout, ..self }
    }

    /// With authentication, and this password for `root`. It goes into a URL as it is, so only letters and digits.
    pub fn password(self, password: &str) -> Self {
        EtcdOptions { password: Some(password.to_owned()), ..self }
    }

    /// With another user, who may read and write what begins with the prefix. Needs [`password`](EtcdOptions::password).
    pub fn user(mut self, name: &str, password: &str, prefix: &str) -> Self {
        self.users.push(User { name: name.to_owned(), password: password.to_owned(), prefix: prefix.to_owned() });
        self
    }

    /// With TLS for clients and fresh certificates; without it there is no TLS, and with it nothing else.
    pub fn tls(self, clients: ClientCertificate) -> Self {
        EtcdOptions { tls: Some(clients), ..self }
    }

    /// With room for so many bytes; then it takes no more (`NOSPACE`) until it is compacted, defragmented and disarmed.
    pub fn quota(self, bytes: u64) -> Self {
        self.arg("quota-backend-bytes", &bytes.to_string())
    }

    /// With a flag: `.arg("auth-token-ttl", "2")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push(format!("--{name}={value}"));
        self
    }
}
