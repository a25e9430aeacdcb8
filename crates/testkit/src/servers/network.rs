//! A network of their own for the members of a cluster, with a plug for each.
//!
//! Every member has a network namespace with two interfaces: one to its clients, one to the other members. Both end in
//! a hub, a namespace with a bridge for each of the two networks, and one link leads from the hub to us. A plug is
//! pulled in the hub, where a link that leaves its bridge stays up and leads nowhere: nobody is told, connections stay
//! open at both ends and hear nothing more, as when a switch dies.
//!
//! Nobody but us may be in the way: a network's number is reserved like a port, so several test processes can have
//! networks at once. A process that is killed leaves its namespaces behind; whoever makes the next network finds that
//! their number belongs to nobody any more and removes them.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};

use super::process::demand;
use crate::Rng;

/// It is removed when dropped; drop the servers first.
pub(crate) struct Network {
    number: u16,
    members: usize,
    _mine: UnixListener,
}

/// Which of a member's two plugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plug {
    /// To the clients.
    Clients,
    /// To the other members.
    Peers,
}

/// As many as /28 fit into each half of 198.18.0.0/15, which is set aside for tests of networks.
const HOW_MANY: u64 = 4096;

/// Where `ip` keeps the namespaces that have names.
const NAMED: &str = "/run/netns";

impl Network {
    /// Makes one for so many members. The error says why this machine does not allow it.
    pub(crate) fn make(members: usize) -> Result<Self, String> {
        assert!(members <= 12, "a /28 has no room for {members} members");
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".to_owned());
        }
        demand("ip", "iproute2");
        demand("nsenter", "util-linux");
        remove_stale();
        let mut rng = Rng::from_entropy();
        let network = loop {
            let number = rng.below(HOW_MANY) as u16;
            if let Some(mine) = reserve(number) {
                break Network { number, members, _mine: mine };
            }
        };
        remove(network.number);
        network.wire().map(|()| network) // dropped on the way if that fails, and so is what there is of it
    }

    /// What runs before a program so that it is in a member's place; it keeps its process id.
    pub(crate) fn wrapper(&self, member: usize) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net={NAMED}/{}", self.space(member)).into()]
    }

    /// A member's address, for its clients or for the others.
    pub(crate) fn address(&self, member: usize, plug: Plug) -> Ipv4Addr {
        self.host(plug, 2 + member as u8)
    }

    /// Pulls a member's plug.
    pub(crate) fn pull(&self, member: usize, plug: Plug) {
        self.set(member, plug, "nomaster");
    }

    /// Puts it in again.
    pub(crate) fn put_in(&self, member: usize, plug: Plug) {
        self.set(member, plug, &format!("master {}", plug.bridge()));
    }

    fn set(&self, member: usize, plug: Plug, what: &str) {
        ip(&["-n", &self.hub()], &format!("link set {} {what}\n", plug.port(member))).expect("the link is there");
    }

    fn wire(&self) -> Result<(), String> {
        let (hub, uplink) = (self.hub(), uplink(self.number));
        let mut outside = format!("netns add {hub}\nlink add {uplink} type veth peer name us netns {hub}\n");
        let mut inside = String::from("link set lo up\n");
        for plug in [Plug::Clients, Plug::Peers] {
            inside += &format!("link add {0} type bridge\nlink set {0} up\n", plug.bridge());
        }
        inside += &format!("link set us master {}\nlink set us up\n", Plug::Clients.bridge());
        for member in 0..self.members {
            let space = self.space(member);
            outside += &format!("netns add {space}\n");
            for plug in [Plug::Clients, Plug::Peers] {
                let (port, bridge) = (plug.port(member), plug.bridge());
                outside += &format!("link add {port} netns {hub} type veth peer name {bridge} netns {space}\n");
                inside += &format!("link set {port} master {bridge}\nlink set {port} up\n");
            }
        }
        outside += &format!("addr add {}/28 dev {uplink}\nlink set {uplink} up\n", self.host(Plug::Clients, 1));
        ip(&[], &outside)?;
        ip(&["-n", &hub], &inside)?;
        for member in 0..self.members {
            let mut own = String::from("link set lo up\n");
            for plug in [Plug::Clients, Plug::Peers] {
                let (interface, address) = (plug.bridge(), self.address(member, plug));
                own += &format!("addr add {address}/28 dev {interface}\nlink set {interface} up\n");
            }
            ip(&["-n", &self.space(member)], &own)?;
        }
        Ok(())
    }

    fn host(&self, plug: Plug, host: u8) -> Ipv4Addr {
        let [high, low] = (self.number * 16).to_be_bytes();
        Ipv4Addr::new(198, if plug == Plug::Clients { 18 } else { 19 }, high, low + host)
    }

    fn hub(&self) -> String {
        format!("{}hub", prefix(self.number))
    }

    fn space(&self, member: usize) -> String {
        format!("{}{member}", prefix(self.number))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(self.number);
    }
}

impl Plug {
    fn bridge(self) -> &'static str {
        match self {
            Plug::Clients => "clients",
            Plug::Peers => "peers",
        }
    }

    fn port(self, member: usize) -> String {
        format!("{}{member}", self.bridge())
    }
}

/// Whoever has this has the number; the kernel takes it back when the process ends, however it ends.
fn reserve(number: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("tenure-testkit/network/{number}")).expect("a short name");
    UnixListener::bind_addr(&name).ok()
}

/// What the names of a network's namespaces begin with.
fn prefix(number: u16) -> String {
    format!("tenure-{number}-")
}

/// Our end of the link to the hub.
fn uplink(number: u16) -> String {
    format!("tenure{number}")
}

/// The namespaces of tests, by the number of their network.
fn spaces() -> Vec<(u16, String)> {
    let names = std::fs::read_dir(NAMED).into_iter().flatten().flatten();
    let ours = |name: String| Some((name.strip_prefix("tenure-")?.split_once('-')?.0.parse().ok()?, name));
    names.filter_map(|entry| ours(entry.file_name().into_string().ok()?)).collect()
}

/// Removes what processes have left that were killed.
fn remove_stale() {
    let mut numbers: Vec<u16> = spaces().into_iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        // Held until it is removed, so that nobody begins a network with that number meanwhile.
        if let Some(_mine) = reserve(number) {
            remove(number);
        }
    }
}

/// Removes whatever there is of a network. The link first: a namespace lives on while a dying server is in it, and our
/// end of the link with it.
fn remove(number: u16) {
    let link = uplink(number);
    if std::path::Path::new("/sys/class/net").join(&link).exists() {
        let _ = ip(&[], &format!("link del {link}\n"));
    }
    for (_, space) in spaces().into_iter().filter(|(of, _)| *of == number) {
        let _ = ip(&[], &format!("netns del {space}\n"));
    }
}

/// Has `ip` do some lines; the error is what it said.
fn ip(options: &[&str], lines: &str) -> Result<(), String> {
    let mut ip = Command::new("ip");
    ip.args(options).args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = ip.spawn().map_err(|error| format!("ip: {error}"))?;
    // Too little for a pipe to fill up; and one that ended early says why.
    let _ = child.stdin.take().expect("piped").write_all(lines.as_bytes());
    let output = child.wait_with_output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_nothing_and_removes_what_a_dead_process_has_left() {
        let network = match Network::make(2) {
            Ok(network) => network,
            // Then clusters are on 127.0.0.1, and whoever wants to cut one is told why he cannot.
            Err(why) => return assert!(!why.is_empty()),
        };
        let there = |number: u16| spaces().iter().filter(|(of, _)| *of == number).count();
        let number = network.number;
        assert_eq!(there(number), 3, "the hub and two members");
        drop(network);
        assert_eq!(there(number), 0);
        // As if its process had been killed: the namespace is there, and nobody has the number.
        ip(&[], &format!("netns add {}0\n", prefix(number))).unwrap();
        let other = Network::make(1).unwrap();
        assert_eq!((there(number), there(other.number)), (if other.number == number { 2 } else { 0 }, 2));
    }
}
