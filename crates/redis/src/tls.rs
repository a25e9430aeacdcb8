//! What TLS needs: certificates, one crypto provider, and a name that need not be the host's.

use std::net::SocketAddr;
use std::path::Path;

use redis::{ClientTlsConfig, RedisFuture, TlsCertificates};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tenure_core::{Error, ErrorKind, Result};

use crate::config::{Address, Tls};

/// Makes ring the crypto provider of this process, unless the program has chosen one.
pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Two threads may come here at once; then the other one's choice stands, and it is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Reads the files. Whatever is wrong with one is said with its name, before anything is sent.
pub(crate) fn read(tls: &Tls) -> Result<TlsCertificates> {
    let root_cert = tls.ca.as_deref().map(|path| certificates(path, "ca").map(|(bytes, _)| bytes)).transpose()?;
    let client_tls = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(own_certificate(cert, key)?),
        _ => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

fn own_certificate(cert_file: &Path, key_file: &Path) -> Result<ClientTlsConfig> {
    let ((client_cert, chain), (client_key, key)) = (certificates(cert_file, "cert")?, private_key(key_file)?);
    install_provider();
    let config = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    config.with_client_auth_cert(chain, key).map_err(|error| {
        let (cert, key) = (cert_file.display(), key_file.display());
        bad(format!("the certificate {cert} (cert=) and the key {key} (key=) cannot be used together"))
            .with_source(error)
            .with_hint("Do they belong together, and is it an X.509 certificate of version 3?")
    })?;
    Ok(ClientTlsConfig { client_cert, client_key })
}

/// Whether a certificate could have this name at all.
pub(crate) fn check_name(tls: &Tls) -> Result<()> {
    match tls.server_name.as_deref().map(ServerName::try_from) {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(_)) => Err(bad("the parameter server_name is not a name that a certificate can have")
            .with_hint("It is a host's name or an IP address, without a port")),
    }
}

/// Finds the server whose certificate has another name than its host: asked for that name, it answers with the host's
/// addresses.
pub(crate) struct Behind(pub(crate) Address);

impl redis::io::AsyncDNSResolver for Behind {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _name: &'b str,
        _port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((self.0.host.as_str(), self.0.port)).await?;
            Ok(Box::new(found) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

fn certificates(path: &Path, parameter: &str) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>)> {
    let bytes = file(path, parameter)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<std::result::Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok((bytes, found)),
        Ok(_) => Err(unreadable(path, parameter, "has no certificate in it").with_hint(PEM)),
        Err(error) => Err(unreadable(path, parameter, "cannot be read as certificates").with_source(error).with_hint(PEM)),
    }
}

fn private_key(path: &Path) -> Result<(Vec<u8>, PrivateKeyDer<'static>)> {
    let bytes = file(path, "key")?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok((bytes, key)),
        Err(error) => Err(unreadable(path, "key", "cannot be read as a private key")
            .with_source(error)
            .with_hint("It is a PEM file with an unencrypted PKCS#8, PKCS#1 or SEC1 key")),
    }
}

fn file(path: &Path, parameter: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        unreadable(path, parameter, "cannot be opened")
            .with_source(error)
            .with_hint("Does the file exist, and may this user read it?")
    })
}

fn unreadable(path: &Path, parameter: &str, what: &str) -> Error {
    bad(format!("the file {} ({parameter}=) {what}", path.display()))
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadUrl, what)
}

const PEM: &str = "It is a PEM file: text with -----BEGIN CERTIFICATE-----";

#[cfg(test)]
mod tests;
