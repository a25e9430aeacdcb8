//! How a ZooKeeper is to be started.

use std::time::Duration;

use crate::servers::ClientCertificate;

/// How a ZooKeeper is to be started, alone or as an ensemble. The default keeps what it was told when it is killed, but
/// not when the machine loses its power: it does not wait for the disk, and its data are in memory where the machine has
/// a place for that.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    pub(super) disk: bool,
    pub(super) loopback: bool,
    pub(super) tick: Duration,
    pub(super) superuser: Option<String>,
    pub(super) sasl: Vec<(String, String)>,
    pub(super) tls: Option<ClientCertificate>,
    pub(super) lines: Vec<(String, String)>,
    pub(super) java: Vec<String>,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        ZooKeeperOptions {
            disk: false,
            loopback: false,
            tick: Duration::from_millis(200),
            superuser: None,
            sasl: vec![],
            tls: None,
            lines: vec![],
            java: vec![],
        }
    }
}

impl ZooKeeperOptions {
    /// Ticks of 200 ms: sessions of 0.4 to 60 seconds, and a leader that is missed after one second. Nobody has to say
    /// who he is.
    pub fn new() -> Self {
        Self::default()
    }

    /// With data on the disk, for which it waits at every write.
    pub fn disk(self) -> Self {
        ZooKeeperOptions { disk: true, ..self }
    }

    /// On ports of 127.0.0.1 also where the members could have a network of their own.
    pub fn loopback(self) -> Self {
        ZooKeeperOptions { loopback: true, ..self }
    }

    /// The unit of its clock. Sessions expire by it, at least two long, and five are how long a leader may be silent.
    pub fn tick(self, tick: Duration) -> Self {
        ZooKeeperOptions { tick, ..self }
    }

    /// An ensemble that nobody hurts: a machine that stands still for a second costs no election.
    pub fn calm(self) -> Self {
        self.arg("syncLimit", "100")
    }

    /// With a password for `super`, who may do everything (scheme `digest`).
    pub fn superuser(self, password: &str) -> Self {
        ZooKeeperOptions { superuser: Some(password.to_owned()), ..self }
    }

    /// With somebody who can say who he is by SASL's DIGEST-MD5; others need not.
    pub fn sasl_user(mut self, name: &str, password: &str) -> Self {
        self.sasl.push((name.to_owned(), password.to_owned()));
        self
    }

    /// With TLS, on a port of its own beside the other, and fresh certificates.
    pub fn tls(self, clients: ClientCertificate) -> Self {
        ZooKeeperOptions { tls: Some(clients), ..self }
    }

    /// With a line of `zoo.cfg`: `.arg("minSessionTimeout", "5000")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With an argument for `java`: `.java("-Djute.maxbuffer=4096")`.
    pub fn java(mut self, argument: &str) -> Self {
        self.java.push(argument.to_owned());
        self
    }
}
