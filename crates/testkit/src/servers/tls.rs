//! Certificates for servers that speak TLS, fresh for each of them.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::process::run;

/// Where the certificates of one server are, as PEM files. They go with the server.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Who signed them all.
    pub ca: PathBuf,
    /// The server's, for `127.0.0.1` and `localhost`, and for the addresses of all members if it is a cluster's.
    pub server: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
    /// A client's.
    pub client: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
}

/// What a server with TLS asks of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// No certificate.
    Ignored,
    /// One that the same CA signed.
    Demanded,
}

const CONFIGURATION: &str = "
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[client]
extendedKeyUsage = clientAuth
[server]
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost";

impl Certificates {
    /// Makes them in a server's directory.
    pub(crate) fn make(dir: &Path) -> Self {
        Self::make_for(dir, &[])
    }

    /// Makes them in a server's directory, for some more addresses.
    pub(crate) fn make_for(dir: &Path, addresses: &[IpAddr]) -> Self {
        let mut text = CONFIGURATION.to_owned();
        for address in addresses {
            write!(text, ", IP:{address}").expect("a String takes everything");
        }
        let [ca, server, server_key, client, client_key] =
            ["ca.pem", "server.pem", "server.key", "client.pem", "client.key"].map(|name| dir.join(name));
        let configuration = dir.join("openssl.cnf");
        std::fs::write(&configuration, text + "\n").expect("the directory is ours");
        for name in ["ca", "server", "client"] {
            run("openssl", "openssl", |openssl| {
                openssl.current_dir(dir).args(["req", "-x509", "-config"]).arg(&configuration);
                openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"]);
                openssl.args(["-extensions", name, "-subj", &format!("/CN=tenure test {name}")]);
                openssl.args(["-out", &format!("{name}.pem"), "-keyout", &format!("{name}.key")]);
                if name != "ca" { openssl.args(["-CA", "ca.pem", "-CAkey", "ca.key"]) } else { openssl }
            });
        }
        Certificates { ca, server, server_key, client, client_key }
    }
}
