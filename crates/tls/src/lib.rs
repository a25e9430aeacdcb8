//! What the stores that speak TLS have in common: certificates from files, one crypto provider, and words for what went wrong.
//!
//! Whatever is wrong with a file is said with its name, before anything is sent. Files are read at every new connection, so a
//! renewed certificate needs no restart.

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tenure_core::{Error, Result, Tls, bad_url};

/// Makes ring the crypto provider of this process, unless the program has chosen one.
pub fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Two threads may come here at once; then the other one's choice stands, and it is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// A PEM file that was read: its bytes, and what is in it.
pub struct Pem<T> {
    /// The file as it is.
    pub bytes: Vec<u8>,
    /// What it says.
    pub content: T,
}

/// A client's own certificate and its key.
pub struct Own {
    /// The certificate and those of its signers.
    pub chain: Pem<Vec<CertificateDer<'static>>>,
    /// Its key.
    pub key: Pem<PrivateKeyDer<'static>>,
}

/// The certificates to trust, if not the system's.
pub fn trusted(tls: &Tls) -> Result<Option<Pem<Vec<CertificateDer<'static>>>>> {
    tls.ca.as_deref().map(|path| certificates(path, "ca")).transpose()
}

/// The certificates that this system trusts.
pub fn system() -> Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return Err(bad_url("this system has no certificates of signers to trust")
            .with_hint("Install the package ca-certificates, or give the server's signer with ca=FILE"));
    }
    Ok(found)
}

/// The client's own certificate, if it has one.
pub fn own(tls: &Tls) -> Result<Option<Own>> {
    let (Some(cert_file), Some(key_file)) = (&tls.cert, &tls.key) else { return Ok(None) };
    let own = Own { chain: certificates(cert_file, "cert")?, key: private_key(key_file)? };
    install_provider();
    let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
    config.with_client_auth_cert(own.chain.content.clone(), own.key.content.clone_key()).map_err(|error| {
        let (cert, key) = (cert_file.display(), key_file.display());
        bad_url(format!("the certificate {cert} (cert=) and the key {key} (key=) cannot be used together"))
            .with_source(error)
            .with_hint("Do they belong together, and is it an X.509 certificate of version 3?")
    })?;
    Ok(Some(own))
}

/// Everything a connection needs. Blocks on files: small ones, at connecting.
pub fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>> {
    install_provider();
    let mut roots = RootCertStore::empty();
    match trusted(tls)? {
        Some(pem) => {
            for certificate in pem.content {
                roots.add(certificate).map_err(|error| {
                    bad_url("a certificate of the file in ca= cannot be trusted as a signer").with_source(error)
                })?;
            }
        }
        None => drop(roots.add_parsable_certificates(system()?)),
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    Ok(Arc::new(match own(tls)? {
        None => config.with_no_client_auth(),
        Some(own) => config
            .with_client_auth_cert(own.chain.content, own.key.content)
            .map_err(|error| bad_url("the client's certificate cannot be used").with_source(error))?,
    }))
}

/// The name that the server's certificate must have: the one that was given, or the host's.
pub fn server_name(tls: &Tls, host: &str) -> Result<ServerName<'static>> {
    let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
    ServerName::try_from(name).map_err(|_| {
        bad_url("the server's name is not one that a certificate can have")
            .with_hint("It is a host's name or an IP address, without a port; give another with server_name=NAME")
    })
}

/// Whether the settings of encryption, if there is any, fit together and name what a certificate can name.
pub fn check(tls: Option<&Tls>) -> Result<()> {
    let Some(tls) = tls else { return Ok(()) };
    tls.check()?;
    match tls.server_name.as_deref().map(ServerName::try_from) {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(_)) => Err(bad_url("the parameter server_name is not a name that a certificate can have")
            .with_hint("It is a host's name or an IP address, without a port")),
    }
}

/// What to do about what rustls says; `plain` is how the URL looks without TLS.
pub fn hint(fault: &rustls::Error, plain: &str) -> Option<String> {
    use rustls::{AlertDescription, CertificateError, Error as Tls};
    let text = match fault {
        Tls::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "Nobody here knows who signed its certificate: give the signer's with ca=FILE"
        }
        Tls::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            "Its certificate has another name: use that in the URL, or give it with server_name=NAME"
        }
        Tls::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "Its certificate has expired; renew it there"
        }
        Tls::InvalidCertificate(_) => "Its certificate cannot be trusted as it is",
        Tls::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure | AlertDescription::BadCertificate,
        ) => "It may want a certificate of the client's: give one with cert=FILE and key=FILE",
        Tls::AlertReceived(AlertDescription::UnknownCA | AlertDescription::CertificateUnknown) => {
            "It does not trust the client's certificate: look at cert=FILE and at the server's own CA"
        }
        Tls::InvalidMessage(_) => return Some(format!("That port may speak no TLS: write {plain}")),
        _ => return None,
    };
    Some(text.to_owned())
}

fn certificates(path: &Path, parameter: &str) -> Result<Pem<Vec<CertificateDer<'static>>>> {
    let bytes = file(path, parameter)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<std::result::Result<Vec<_>, _>>();
    match found {
        Ok(content) if !content.is_empty() => Ok(Pem { bytes, content }),
        Ok(_) => Err(unreadable(path, parameter, "has no certificate in it").with_hint(PEM)),
        Err(error) => Err(unreadable(path, parameter, "cannot be read as certificates").with_source(error).with_hint(PEM)),
    }
}

fn private_key(path: &Path) -> Result<Pem<PrivateKeyDer<'static>>> {
    let bytes = file(path, "key")?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(content) => Ok(Pem { bytes, content }),
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
    bad_url(format!("the file {} ({parameter}=) {what}", path.display()))
}

const PEM: &str = "It is a PEM file: text with -----BEGIN CERTIFICATE-----";
