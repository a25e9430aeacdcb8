//! From a socket to a connection that the server has let in: its greeting, TLS, and who we are.
//!
//! The ways to prove that are those of the driver, which makes all other connections: `mysql_native_password`,
//! `caching_sha2_password`, and MariaDB's `ed25519`. Where the server wants another, both say so alike.

use std::collections::HashMap;
use std::sync::Arc;

use mysql_async::consts::CapabilityFlags;
use mysql_async::{DriverError, Error, Result};
use mysql_common::crypto;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, HandshakePacket, HandshakeResponse, SslRequest};
use mysql_common::proto::MySerialize;
use rustls::pki_types::ServerName;
use tenure_core::Secret;
use tenure_core::session::{Drive, MovingStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::packets::{Packets, nonsense};
use super::queue::Queue;
use super::reply::failure_in;
use crate::config::Settings;

/// What is spoken here. Never with `CLIENT_FOUND_ROWS`, which makes rows that are as they should be look changed.
const SPOKEN: CapabilityFlags = CapabilityFlags::CLIENT_LONG_PASSWORD
    .union(CapabilityFlags::CLIENT_PROTOCOL_41)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_MULTI_STATEMENTS)
    .union(CapabilityFlags::CLIENT_MULTI_RESULTS)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA)
    .union(CapabilityFlags::CLIENT_CONNECT_ATTRS)
    .union(CapabilityFlags::CLIENT_CONNECT_WITH_DB);

const LARGEST_PACKET: u32 = 1 << 30;
/// `utf8mb4_general_ci`, which every server has.
const CHARACTERS: u8 = 45;
/// The bytes of a greeting that a password is hashed with.
const NONCE: usize = 20;
/// How the key begins that a MySQL 8 without TLS has passwords encrypted with, and what can be at most.
const PUBLIC_KEY: &[u8] = b"-----BEGIN PUBLIC KEY-----";
const LONGEST_ENCRYPTED: usize = 200;

/// What a server says first.
struct Greeting {
    spoken: CapabilityFlags,
    version: (u16, u16, u16),
    nonce: Vec<u8>,
    wants: AuthPlugin<'static>,
}

/// What TLS needs.
pub(super) struct Encryption {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Encryption {
    /// Reads the files, if it is wanted. Whatever is wrong with one is said with its name, before anything is sent.
    pub(super) fn wanted(settings: &Settings) -> tenure_core::Result<Option<Self>> {
        let Some(tls) = &settings.tls else { return Ok(None) };
        let connector = TlsConnector::from(tenure_tls::client_config(tls)?);
        Ok(Some(Encryption { connector, name: tenure_tls::server_name(tls, &settings.address.host)? }))
    }
}

/// Logs in, and gives what must be driven from then on.
///
/// # Cancel safety
/// Dropped, the socket is closed.
pub(super) async fn log_in(
    stream: MovingStream,
    tls: Option<Encryption>,
    settings: &Settings,
    queue: &Arc<Queue>,
) -> Result<Box<dyn Drive>> {
    let mut packets = Packets::new(stream);
    let greeting = greeting(&packets.next().await?)?;
    let Some(tls) = tls else {
        let packets = prove(packets, greeting, settings, false).await?;
        return Ok(Box::new(Connection::new(packets, queue)));
    };
    let packets = encrypt(packets, &greeting, tls).await?;
    let packets = prove(packets, greeting, settings, true).await?;
    Ok(Box::new(Connection::new(packets, queue)))
}

fn greeting(packet: &[u8]) -> Result<Greeting> {
    if let Some(failure) = failure_in(packet)? {
        return Err(Error::Server(failure)); // it has no room, or does not like our host
    }
    let said: HandshakePacket<'_> = ParseBuf(packet).parse(())?;
    let mut nonce = said.scramble_1_ref().to_vec();
    nonce.extend_from_slice(said.scramble_2_ref().unwrap_or_default());
    nonce.resize(NONCE, 0); // without the zero behind it
    let wants = match said.auth_plugin() {
        Some(AuthPlugin::CachingSha2Password) => AuthPlugin::CachingSha2Password,
        _ => AuthPlugin::MysqlNativePassword, // if the account is not of that sort, it will say so
    };
    let version = said.maria_db_server_version_parsed().or_else(|| said.server_version_parsed()).unwrap_or_default();
    Ok(Greeting { spoken: said.capabilities(), version, nonce, wants })
}

/// Goes on with TLS.
async fn encrypt(
    mut packets: Packets<MovingStream>,
    greeting: &Greeting,
    Encryption { connector, name }: Encryption,
) -> Result<Packets<tokio_rustls::client::TlsStream<MovingStream>>> {
    if !greeting.spoken.contains(CapabilityFlags::CLIENT_SSL) {
        return Err(DriverError::NoClientSslFlagFromServer.into());
    }
    let spoken = (greeting.spoken & SPOKEN) | CapabilityFlags::CLIENT_SSL;
    packets.send(&bytes_of(&SslRequest::new(spoken, LARGEST_PACKET, CHARACTERS))).await?;
    Ok(packets.by(|stream| connector.connect(name, stream)).await?)
}

/// Says who we are, and proves it.
async fn prove<S: AsyncRead + AsyncWrite + Unpin>(
    mut packets: Packets<S>,
    greeting: Greeting,
    settings: &Settings,
    is_encrypted: bool,
) -> Result<Packets<S>> {
    let Greeting { spoken, version, mut nonce, mut wants } = greeting;
    let password = settings.password.as_ref().map(Secret::reveal).filter(|password| !password.is_empty());
    let proof = wants.gen_data(password, &nonce);
    let mut spoken = spoken & SPOKEN;
    spoken.set(CapabilityFlags::CLIENT_SSL, is_encrypted);
    let who = HandshakeResponse::new(
        proof.as_deref(),
        version,
        Some(settings.user.as_bytes()),
        Some(settings.database.as_bytes()),
        Some(wants.clone()),
        spoken,
        Some(HashMap::from([("program_name".to_owned(), "tenure".to_owned())])),
        LARGEST_PACKET,
    );
    packets.send(&bytes_of(&who)).await?;
    let mut was_asked_otherwise = false;
    loop {
        let packet = packets.next().await?;
        if let Some(failure) = failure_in(&packet)? {
            return Err(Error::Server(failure));
        }
        match (packet.first(), packet.get(1)) {
            (Some(0x00), _) => return Ok(packets),
            (Some(0xfe), Some(_)) if !was_asked_otherwise => {
                was_asked_otherwise = true;
                let (plugin, rest) = switched(&packet[1..])?;
                (wants, nonce) = (plugin, rest.to_vec());
                packets.send(wants.gen_data(password, &nonce).as_deref().unwrap_or_default()).await?;
            }
            (Some(0x01), Some(0x03)) if wants == AuthPlugin::CachingSha2Password => {} // it remembers us
            (Some(0x01), Some(0x04)) if wants == AuthPlugin::CachingSha2Password => {
                let mut password = [password.unwrap_or_default().as_bytes(), b"\0"].concat();
                if !is_encrypted {
                    packets.send(&[0x02]).await?;
                    let packet = packets.next().await?;
                    if let Some(failure) = failure_in(&packet)? {
                        return Err(Error::Server(failure));
                    }
                    let key = packet.strip_prefix(&[0x01]).filter(|key| key.starts_with(PUBLIC_KEY));
                    let key = key.filter(|_| password.len() <= LONGEST_ENCRYPTED).ok_or_else(|| nonsense("no key"))?;
                    password.iter_mut().zip(nonce.iter().cycle()).for_each(|(byte, with)| *byte ^= with);
                    password = crypto::encrypt(&password, key);
                }
                packets.send(&password).await?;
            }
            _ => return Err(nonsense("neither yes nor no to who we are").into()),
        }
    }
}

/// What the server wants instead, if that can be proved here, and the bytes to do it with. Some have a zero behind them, and others
/// may end with one.
fn switched(packet: &[u8]) -> Result<(AuthPlugin<'static>, &[u8])> {
    let end = packet.iter().position(|byte| *byte == 0).ok_or_else(|| nonsense("half a request"))?;
    let nonce = match &packet[end + 1..] {
        [nonce @ .., 0] if nonce.len() == NONCE => nonce,
        nonce => nonce,
    };
    let plugin = match AuthPlugin::from_bytes(&packet[..end]) {
        AuthPlugin::CachingSha2Password => AuthPlugin::CachingSha2Password,
        AuthPlugin::MysqlNativePassword => AuthPlugin::MysqlNativePassword,
        AuthPlugin::Ed25519 => AuthPlugin::Ed25519,
        other => {
            let name = String::from_utf8_lossy(other.as_bytes()).into_owned();
            return Err(DriverError::UnknownAuthPlugin { name }.into());
        }
    };
    Ok((plugin, nonce))
}

fn bytes_of(packet: &impl MySerialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
