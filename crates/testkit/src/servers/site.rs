//! Where the members of a cluster live: in a network of their own, from which each can be cut off, or on ports of
//! 127.0.0.1 where the machine does not allow that.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;

use super::Port;
use super::network::{Network, Plug};

/// The place of all members.
pub(crate) enum Site {
    /// Each in a network namespace.
    Network(Network),
    /// All on 127.0.0.1, and why.
    Loopback(String),
}

/// The place of one member, with `N` ports.
pub(crate) struct Spot<const N: usize> {
    /// What runs before the server.
    pub(crate) wrapper: Vec<OsString>,
    clients: Ipv4Addr,
    peers: Ipv4Addr,
    numbers: [u16; N],
    _mine: Vec<Port>,
}

impl Site {
    /// A network for so many if the machine allows it. One that does not says so every time; one that is busy may fail once.
    pub(crate) fn network(members: usize) -> Self {
        let make = || Network::make(members);
        make().or_else(|_| make()).or_else(|_| make()).map_or_else(Site::Loopback, Site::Network)
    }

    /// The place of a member. In a network the ports are the usual ones; elsewhere they are free ones.
    pub(crate) fn spot<const N: usize>(&self, member: usize, usual: [u16; N]) -> Spot<N> {
        match self {
            Site::Network(network) => Spot {
                wrapper: network.wrapper(member),
                clients: network.address(member, Plug::Clients),
                peers: network.address(member, Plug::Peers),
                numbers: usual,
                _mine: vec![],
            },
            Site::Loopback(_) => Spot::on_loopback(),
        }
    }

    /// Whether members can be cut off.
    pub(crate) fn has_plugs(&self) -> bool {
        matches!(self, Site::Network(_))
    }

    /// Cuts a member off from everybody: both plugs are pulled.
    pub(crate) fn cut(&self, member: usize) {
        self.cut_peers(member);
        self.cut_clients(member);
    }

    /// Cuts a member off from the others; its clients still reach it.
    pub(crate) fn cut_peers(&self, member: usize) {
        self.plugs().pull(member, Plug::Peers);
    }

    /// Cuts a member off from its clients; the others still reach it.
    pub(crate) fn cut_clients(&self, member: usize) {
        self.plugs().pull(member, Plug::Clients);
    }

    /// Puts both plugs in again.
    pub(crate) fn heal(&self, member: usize) {
        for plug in [Plug::Peers, Plug::Clients] {
            self.plugs().put_in(member, plug);
        }
    }

    fn plugs(&self) -> &Network {
        match self {
            Site::Network(network) => network,
            Site::Loopback(why) => panic!(
                "a member can be cut off only from a network of its own, and this cluster is on 127.0.0.1: {why}; run \
                 the test as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"
            ),
        }
    }
}

impl<const N: usize> Spot<N> {
    /// With free ports of 127.0.0.1.
    pub(crate) fn on_loopback() -> Self {
        let mine: Vec<Port> = (0..N).map(|_| Port::reserve()).collect();
        let numbers = std::array::from_fn(|index| mine[index].number());
        Spot { wrapper: vec![], clients: Ipv4Addr::LOCALHOST, peers: Ipv4Addr::LOCALHOST, numbers, _mine: mine }
    }

    /// Where clients find one of its ports.
    pub(crate) fn for_clients(&self, port: usize) -> SocketAddr {
        SocketAddr::from((self.clients, self.numbers[port]))
    }

    /// Where the other members find one of its ports.
    pub(crate) fn for_peers(&self, port: usize) -> SocketAddr {
        SocketAddr::from((self.peers, self.numbers[port]))
    }
}

/// A directory in memory where the machine has one that is for all, else on the disk.
pub(crate) fn tempdir_in_memory(prefix: &str) -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(prefix);
    builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir()).expect("there is a temporary directory")
}
