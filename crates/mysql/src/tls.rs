//! TLS as mysql_async wants it: the files' bytes, and a name that need not be the host's.

use mysql_async::{ClientIdentity, SslOpts};
use tenure_core::{Result, Tls};

/// Reads the files. Whatever is wrong with one is said with its name, before anything is sent.
pub(crate) fn read(tls: &Tls) -> Result<SslOpts> {
    tenure_tls::install_provider();
    let roots: Vec<Vec<u8>> = match tenure_tls::trusted(tls)? {
        Some(pem) => vec![pem.bytes],
        None => tenure_tls::system()?.into_iter().map(|certificate| certificate.to_vec()).collect(),
    };
    let own = tenure_tls::own(tls)?;
    let identity = own.map(|own| ClientIdentity::new(own.chain.bytes.into(), own.key.bytes.into()));
    let options = SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(roots.into_iter().map(Into::into).collect())
        .with_client_identity(identity);
    Ok(match &tls.server_name {
        // It is checked as the host's would be; only the name is another.
        Some(name) => options.with_danger_tls_hostname_override(Some(name.clone())),
        None => options,
    })
}

#[cfg(test)]
mod tests;
