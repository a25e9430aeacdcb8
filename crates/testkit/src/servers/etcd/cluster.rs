//! A cluster of etcd whose members can be killed, paused and cut off, one by one.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{CLIENTS, Certificates, Etcd, EtcdOptions, PEERS, Plan, USUAL, ctl, dir};
use crate::servers::site::{Site, Spot};
use crate::servers::wait_until;

/// Three members. They end when dropped.
///
/// Each is in a network namespace of its own, from which it can be cut off, if we are root and the machine allows that;
/// else they listen on 127.0.0.1, and [`cut`](EtcdCluster::cut) panics with the reason.
pub struct EtcdCluster {
    // Before the site, so that they have ended when their network goes.
    members: Vec<Etcd>,
    site: Site,
    options: EtcdOptions,
}

const MEMBERS: usize = 3;

impl EtcdCluster {
    /// Starts one; returns when all members know their leader.
    pub fn start() -> Self {
        Self::start_with(EtcdOptions::new())
    }

    /// The same with options.
    pub fn start_with(options: EtcdOptions) -> Self {
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(&options) {
                Ok(cluster) => {
                    ctl::authenticate(&cluster.options, |args| cluster.etcdctl(args));
                    return cluster;
                }
                Err(log) => said = log,
            }
        }
        panic!("no cluster of etcd comes together:\n{said}")
    }

    /// One on 127.0.0.1 for the whole test binary. Nobody may kill, pause or fill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
        // Nothing waits for its elections, so a machine that stands still for a moment need not cost one.
        let options = || EtcdOptions::new().loopback().election(Duration::from_secs(1));
        SHARED.get_or_init(|| EtcdCluster::start_with(options()))
    }

    /// `etcd://` and all members, or `etcds://` with TLS, with root's password if there is one.
    pub fn url(&self) -> String {
        ctl::url_of(&self.options, &self.members)
    }

    /// The URL with another user and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        ctl::url_as(&self.options, &format!("{user}:{password}@"), &self.members)
    }

    /// All members; kill, pause and restart them as any [`Etcd`].
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// One of them.
    pub fn member(&self, number: usize) -> &Etcd {
        &self.members[number]
    }

    /// The certificates of a cluster with TLS, which are the same for all; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.members[0].certificates()
    }

    /// What a member counts, as Prometheus reads it; panics if it does not answer.
    #[track_caller]
    pub fn metrics(&self, number: usize) -> String {
        self.members[number].metrics()
    }

    /// A counter's sum over all labels and all members; panics if one does not answer. See [`Etcd::count`].
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        self.members.iter().map(|member| member.count(name)).sum()
    }

    /// The number of the member that leads; waits until there is one.
    #[track_caller]
    pub fn leader(&self) -> usize {
        self.leader_among(|_| true)
    }

    /// The number of the member that leads in place of this one; waits until there is one.
    #[track_caller]
    pub fn leader_after(&self, before: usize) -> usize {
        self.leader_among(|number| number != before)
    }

    /// A member that does not lead.
    #[track_caller]
    pub fn follower(&self) -> usize {
        (self.leader() + 1) % MEMBERS
    }

    /// Waits until every member answers and knows a leader.
    #[track_caller]
    pub fn wait_healthy(&self) {
        let all = || self.members.iter().all(Etcd::is_healthy);
        assert!(wait_until(all), "not all members are healthy:\n{}", self.logs());
    }

    /// Kills all who live and starts all again; returns when all are healthy.
    pub fn restart_all(&self) {
        for member in &self.members {
            member.kill();
        }
        std::thread::scope(|scope| {
            for member in &self.members {
                scope.spawn(|| member.restart());
            }
        });
    }

    /// Whether members can be cut off. Only for a test that can say the same in another way: one that cannot should
    /// run into the panic of [`cut`](EtcdCluster::cut).
    pub fn can_be_cut(&self) -> bool {
        self.site.has_plugs()
    }

    /// Unplugs a member from the others and from us. Nobody is told: open connections go silent.
    #[track_caller]
    pub fn cut(&self, number: usize) {
        self.site.cut(number);
    }

    /// Unplugs a member from the others only: its clients are with the minority.
    #[track_caller]
    pub fn cut_peers(&self, number: usize) {
        self.site.cut_peers(number);
    }

    /// Unplugs a member from us only.
    #[track_caller]
    pub fn cut_clients(&self, number: usize) {
        self.site.cut_clients(number);
    }

    /// Plugs it in again, on both sides.
    #[track_caller]
    pub fn heal(&self, number: usize) {
        self.site.heal(number);
    }

    /// `etcdctl`, told where all members are and who we are: root, where there are users.
    pub fn etcdctl(&self, args: &[&str]) -> Command {
        ctl::command(&self.options, self.members[0].certificates.as_ref(), &self.members, args)
    }

    /// Runs `etcdctl` to its end and returns what it printed; panics if it failed.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        ctl::run(self.etcdctl(args))
    }

    #[track_caller]
    fn leader_among(&self, counts: impl Fn(usize) -> bool) -> usize {
        let mut leader = None;
        wait_until(|| {
            leader = (0..MEMBERS).find(|number| counts(*number) && self.members[*number].says_it_leads());
            leader.is_some()
        });
        leader.unwrap_or_else(|| panic!("no member leads:\n{}", self.logs()))
    }

    fn logs(&self) -> String {
        let log = |(number, member): (usize, &Etcd)| format!("-- member {number}\n{}", member.log());
        self.members.iter().enumerate().map(log).collect()
    }

    fn attempt(options: &EtcdOptions) -> Result<Self, String> {
        let site = if options.loopback { Site::Loopback("it was asked for".into()) } else { Site::network(MEMBERS) };
        let spots: Vec<Spot<3>> = (0..MEMBERS).map(|number| site.spot(number, USUAL)).collect();
        let name = |number: usize| format!("m{number}");
        let place = |(number, spot): (usize, &Spot<3>)| format!("{}=http://{}", name(number), spot.for_peers(PEERS));
        let cluster = spots.iter().enumerate().map(place).collect::<Vec<_>>().join(",");
        let dirs: Vec<_> = spots.iter().map(|_| dir(options)).collect();
        let addresses: Vec<_> = spots.iter().map(|spot| spot.for_clients(CLIENTS).ip()).collect();
        let certificates = options.tls.map(|_| Certificates::make_for(dirs[0].path(), &addresses));
        let plans = spots.into_iter().zip(dirs).enumerate().map(|(number, (spot, dir))| {
            let (name, cluster, certificates) = (name(number), cluster.clone(), certificates.clone());
            Plan { spot, dir, certificates, name, cluster }
        });
        // At once: none is healthy before most are there.
        let members = std::thread::scope(|scope| {
            let starting: Vec<_> = plans.map(|plan| scope.spawn(|| Etcd::launch(options, plan))).collect();
            let ended: Vec<_> = starting.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
            ended.into_iter().collect::<Result<Vec<Etcd>, String>>()
        })?;
        Ok(EtcdCluster { members, site, options: options.clone() })
    }
}
