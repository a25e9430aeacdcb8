//! Ports that stay ours, also while nobody listens on them.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self, UnixListener};

use crate::Rng;

/// A port of 127.0.0.1 that no other test takes, in this process or another, until this is dropped.
///
/// A server that was killed and comes back later needs the port it had, so a port that was merely free a moment ago is
/// not enough. Whoever has the abstract socket with the port's number in its name has the port; the kernel takes it back
/// when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _mine: UnixListener,
}

/// Below the ports that the kernel gives to outgoing connections, which ask nobody.
const LOWEST: u64 = 10_000;
const HOW_MANY: u64 = 22_000;

impl Port {
    /// A free one.
    pub(crate) fn reserve() -> Self {
        let mut rng = Rng::from_entropy();
        loop {
            let number = (LOWEST + rng.below(HOW_MANY)) as u16;
            let name = net::SocketAddr::from_abstract_name(format!("tenure-testkit/port/{number}")).expect("a short name");
            // Reserved first and tried second: the other way round, two could find it free.
            let Ok(mine) = UnixListener::bind_addr(&name) else { continue };
            // To listen there ourselves would be a surer way to know, but a process that another thread is just starting
            // inherits the socket, and then the port stays taken for a moment.
            let port = Port { number, _mine: mine };
            if TcpStream::connect(port.address()).is_err() {
                return port;
            }
        }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Its number, with the host.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}
