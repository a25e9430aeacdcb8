//! TLS as the redis crate wants it: the files' bytes, and a name that need not be the host's.

use std::net::SocketAddr;

use redis::{ClientTlsConfig, RedisFuture, TlsCertificates};
use tenure_core::{Address, Result, Tls};

/// Reads the files. Whatever is wrong with one is said with its name, before anything is sent.
pub(crate) fn read(tls: &Tls) -> Result<TlsCertificates> {
    let root_cert = tenure_tls::trusted(tls)?.map(|pem| pem.bytes);
    let own = tenure_tls::own(tls)?;
    let client_tls = own.map(|own| ClientTlsConfig { client_cert: own.chain.bytes, client_key: own.key.bytes });
    Ok(TlsCertificates { client_tls, root_cert })
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

#[cfg(test)]
mod tests;
