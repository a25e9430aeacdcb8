//! The faults, which store they apply to, and what is promised while they last.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::site::{Site, Store};
use crate::Rng;
use crate::proxy::{After, Cut, Fault as Wire, Proxy, Toward, Which};
use crate::servers::Step;
use crate::taker::Taker;

/// What goes wrong during a round. Every round also drops futures at random polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // `words` says it
pub enum Fault {
    None,
    Resets,
    RepliesLost,
    RequestsLost,
    Latency,
    Partition,
    ClientStopped,
    ClientKilled,
    ServerPaused,
    ServerKilled,
    ClockForward,
    ClockBack,
    RuntimeBlocked,
}

use Fault::{
    ClientKilled, ClientStopped, ClockBack, ClockForward, Latency, None as Nothing, Partition, RepliesLost, RequestsLost,
    Resets, RuntimeBlocked, ServerKilled, ServerPaused,
};

/// What a store promises under a fault, beyond what it always promises: that tokens rise and the fence holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Windows do not overlap.
    Exclusion,
    /// Windows may overlap, for this reason.
    FenceOnly(&'static str),
    /// The fault cannot happen to the store, for this reason.
    DoesNotApply(&'static str),
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 13] = [
        Nothing,
        Resets,
        RepliesLost,
        RequestsLost,
        Latency,
        Partition,
        ClientStopped,
        ClientKilled,
        RuntimeBlocked,
        ServerPaused,
        ServerKilled,
        ClockForward,
        ClockBack,
    ];

    /// Its name on the command line, and what it does.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Nothing => ("none", "no fault, only futures that are dropped"),
            Resets => ("resets", "every connection of two of three clients is cut every 20 to 80 ms"),
            RepliesLost => {
                ("replies-lost", "the server handles a request and its reply is lost, with silence or a reset after it")
            }
            RequestsLost => ("requests-lost", "a request is lost, with silence or a reset after it"),
            Latency => ("latency", "requests and replies take up to 200 ms longer, or are held and then delivered together"),
            Partition => {
                ("partition", "packets of two of three clients vanish, in one direction or both, for up to 2.5 ttls")
            }
            ClientStopped => ("client-stopped", "SIGSTOP of a client's process for 1.2 to 3 ttls, then SIGCONT"),
            ClientKilled => ("client-killed", "SIGKILL of a client's process"),
            RuntimeBlocked => ("runtime-blocked", "every worker thread of the clients' runtime is blocked for up to 900 ms"),
            ServerPaused => ("server-paused", "SIGSTOP of the server for up to 2 ttls, then SIGCONT"),
            ServerKilled => ("server-killed", "SIGKILL of the server, and a restart with the same data"),
            ClockForward => ("clock-forward", "the server's wall clock is set forward by 1 to 5 s"),
            ClockBack => ("clock-back", "the server's wall clock is set back by up to 1 s"),
        }
    }

    /// Whether it is done to a server, and so to everybody there.
    pub(super) fn hits_server(self) -> bool {
        matches!(self, ServerPaused | ServerKilled | ClockForward | ClockBack)
    }

    /// Whether a client runs in a process of its own.
    pub(super) fn hits_process(self) -> bool {
        matches!(self, ClientStopped | ClientKilled)
    }

    /// Whether it is done on the wire.
    pub(super) fn hits_network(self) -> bool {
        matches!(self, Resets | RepliesLost | RequestsLost | Latency | Partition)
    }

    /// Whether asks reach the store in the order in which they are made, and waiters are heard in time.
    pub(super) fn keeps_order(self) -> bool {
        self == Nothing
    }

    /// Whether it stops those who would notice a loss.
    pub(super) fn stops_observers(self) -> bool {
        matches!(self, ClientStopped | RuntimeBlocked)
    }

    /// What `store` promises under it.
    pub fn cell(self, store: Store) -> Cell {
        const CLOCK: &str = "the server's wall clock is set forward";
        const SESSION: &str = "a session that ends frees its locks before its holder can know";
        match store {
            Store::Memory if self.hits_network() => Cell::DoesNotApply("calls within a process cross no network"),
            Store::Memory if self.hits_process() => Cell::DoesNotApply("the store is reached by one process only"),
            Store::Memory | Store::Sqlite if self.hits_network() => {
                Cell::DoesNotApply("a file of one host is not reached over a network")
            }
            Store::Memory | Store::Sqlite if matches!(self, ClockForward | ClockBack) => {
                Cell::DoesNotApply("holds are measured by CLOCK_BOOTTIME, which nobody can set")
            }
            Store::Memory | Store::Sqlite if self.hits_server() => Cell::DoesNotApply("there is no server"),
            Store::ZooKeeper | Store::Etcd if matches!(self, ClockForward | ClockBack) => {
                Cell::DoesNotApply("the leader counts on its monotonic clock, which nobody can set")
            }
            Store::PostgresSessions if matches!(self, Resets | RepliesLost | RequestsLost | Partition | ServerKilled) => {
                Cell::FenceOnly(SESSION)
            }
            Store::Redis | Store::Redlock | Store::Postgres | Store::Mysql if self == ClockForward => Cell::FenceOnly(CLOCK),
            _ => Cell::Exclusion,
        }
    }
}

/// What a fault can be done to.
pub(super) struct Target {
    pub(super) site: Arc<Site>,
    pub(super) proxies: Arc<Vec<Proxy>>,
    pub(super) taker: Option<Taker>,
    pub(super) clients: tokio::runtime::Handle,
    pub(super) ttl: Duration,
}

impl Target {
    /// Does it, for as long as it lasts.
    pub(super) async fn suffer(&mut self, fault: Fault, rng: &mut Rng) {
        let ttl = self.ttl;
        match fault {
            Nothing => tokio::time::sleep(Duration::from_millis(600)).await,
            Resets => {
                for _ in 0..12 {
                    tokio::time::sleep(between(rng, 20, 80)).await;
                    let (cut, seed) = (if rng.one_in(4) { Cut::Fin } else { Cut::Reset }, rng.next_u64());
                    self.on_proxies(seed, move |proxy| {
                        proxy.cut(Which::All, cut);
                    })
                    .await;
                }
            }
            RepliesLost => self.lose(Toward::Client, rng).await,
            RequestsLost => self.lose(Toward::Server, rng).await,
            Latency => {
                for _ in 0..3 {
                    let toward = direction(rng);
                    let wire = match rng.below(3) {
                        0 => Wire::Delay(toward, between(rng, 10, 100)),
                        1 => Wire::Jitter(toward, between(rng, 50, 200)),
                        _ => Wire::Hold(toward),
                    };
                    let lasts = if matches!(wire, Wire::Hold(_)) { between(rng, 50, 400) } else { between(rng, 150, 300) };
                    self.set(wire, lasts, rng).await;
                }
            }
            Partition => {
                let (toward, lasts) = (direction(rng), ttl.mul_f64(0.5 + rng.below(200) as f64 / 100.0));
                self.set(Wire::Blackhole(toward), lasts, rng).await;
            }
            ClientStopped => {
                let taker = self.taker.as_ref().expect("such a round has a second process");
                taker.stop();
                tokio::time::sleep(ttl.mul_f64(1.2 + rng.below(180) as f64 / 100.0)).await;
                taker.resume();
            }
            ClientKilled => self.taker.as_mut().expect("such a round has a second process").kill(),
            RuntimeBlocked => {
                for _ in 0..3 {
                    let lasts = between(rng, 30, 900);
                    // More than there are workers, so that none is left.
                    for _ in 0..4 {
                        self.clients.spawn(async move { std::thread::sleep(lasts) });
                    }
                    tokio::time::sleep(lasts + between(rng, 10, 100)).await;
                }
            }
            ServerPaused => {
                let (seed, lasts) = (rng.next_u64(), ttl.mul_f64(0.2 + rng.below(180) as f64 / 100.0));
                self.on_site(move |site| site.pause(seed)).await;
                tokio::time::sleep(lasts).await;
                self.on_site(Site::resume).await;
            }
            ServerKilled => {
                let (seed, away) = (rng.next_u64(), between(rng, 0, 300));
                self.on_site(move |site| {
                    site.kill(seed);
                    std::thread::sleep(away); // the fault itself is a length of time
                    site.restart();
                })
                .await;
            }
            ClockForward | ClockBack => {
                for _ in 0..2 {
                    let seed = rng.next_u64();
                    let step = match fault {
                        ClockForward => Step::Forward(between(rng, 1000, 5000)),
                        _ => Step::Back(between(rng, 50, 500)),
                    };
                    self.on_site(move |site| site.step_clock(seed, step)).await;
                    tokio::time::sleep(between(rng, 100, 400)).await;
                }
            }
        }
    }

    async fn lose(&self, toward: Toward, rng: &mut Rng) {
        for _ in 0..6 {
            let (after, times) = (if rng.one_in(2) { After::Reset } else { After::Silence }, 1 + rng.below(3) as u32);
            self.set(Wire::Lose(toward, times, after), between(rng, 30, 200), rng).await;
        }
    }

    /// Sets a fault of the network on some of the servers' proxies for so long.
    async fn set(&self, wire: Wire, lasts: Duration, rng: &mut Rng) {
        for proxy in some_of(&self.proxies, rng.next_u64()) {
            proxy.set(Which::All, wire);
        }
        tokio::time::sleep(lasts).await;
        self.on_proxies(0, Proxy::heal).await;
    }

    /// Proxies wait for what they do, and so does whoever asks them.
    async fn on_proxies(&self, seed: u64, act: impl Fn(&Proxy) + Send + 'static) {
        let proxies = Arc::clone(&self.proxies);
        let acting = tokio::task::spawn_blocking(move || match seed {
            0 => proxies.iter().for_each(act),
            seed => some_of(&proxies, seed).for_each(act),
        });
        acting.await.expect("a proxy does what it is told");
    }

    async fn on_site(&self, act: impl FnOnce(&Site) + Send + 'static) {
        let site = Arc::clone(&self.site);
        tokio::task::spawn_blocking(move || act(&site)).await.expect("a server does what it is told");
    }
}

/// Some of several servers, at least one; the one where there is no other.
pub(super) fn some_of<T>(all: &[T], seed: u64) -> impl Iterator<Item = &T> {
    let chosen = 1 + seed % ((1 << all.len()) - 1).max(1);
    all.iter().enumerate().filter(move |(place, _)| chosen >> place & 1 == 1).map(|(_, one)| one)
}

fn direction(rng: &mut Rng) -> Toward {
    [Toward::Server, Toward::Client, Toward::Both][rng.below(3) as usize]
}

fn between(rng: &mut Rng, from_ms: u64, to_ms: u64) -> Duration {
    Duration::from_millis(from_ms + rng.below(to_ms - from_ms))
}
