//! An ensemble of ZooKeeper whose members can be killed, paused and cut off, one by one.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::{CLIENTS, Certificates, ELECTION, PEERS, Plan, TLS, USUAL, ZooKeeper, ZooKeeperOptions, dir};
use crate::servers::site::{Site, Spot};
use crate::servers::wait_until;

/// Three members. They end when dropped.
///
/// Each is in a network namespace of its own, from which it can be cut off, if we are root and the machine allows that;
/// else they listen on 127.0.0.1, and [`cut`](Ensemble::cut) panics with the reason.
pub struct Ensemble {
    // Before the site, so that they have ended when their network goes.
    members: Vec<ZooKeeper>,
    site: Site,
}

const MEMBERS: usize = 3;

impl Ensemble {
    /// Starts one; returns when all members serve.
    pub fn start() -> Self {
        Self::start_with(ZooKeeperOptions::new())
    }

    /// The same with options.
    pub fn start_with(options: ZooKeeperOptions) -> Self {
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(&options) {
                Ok(ensemble) => return ensemble,
                Err(log) => said = log,
            }
        }
        panic!("no ensemble of ZooKeeper comes together:\n{said}")
    }

    /// One on 127.0.0.1 for the whole test binary. Nobody may kill, pause or fill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Ensemble> = OnceLock::new();
        SHARED.get_or_init(|| Ensemble::start_with(ZooKeeperOptions::new().loopback().calm()))
    }

    /// `zk://` and all members.
    pub fn url(&self) -> String {
        format!("zk://{}", self.hosts())
    }

    /// All members, as other clients want them: `h1:p1,h2:p2,h3:p3`.
    pub fn hosts(&self) -> String {
        self.hosts_with(CLIENTS)
    }

    /// `zks://` and all members; panics unless they speak TLS.
    pub fn tls_url(&self) -> String {
        let _there = self.certificates();
        format!("zks://{}", self.hosts_with(TLS))
    }

    /// All members; kill, pause and restart them as any [`ZooKeeper`].
    pub fn members(&self) -> &[ZooKeeper] {
        &self.members
    }

    /// One of them.
    pub fn member(&self, number: usize) -> &ZooKeeper {
        &self.members[number]
    }

    /// The certificates of an ensemble with TLS, which are the same for all; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.members[0].certificates()
    }

    /// All that a member counts; panics if it does not answer.
    #[track_caller]
    pub fn mntr(&self, number: usize) -> BTreeMap<String, String> {
        self.members[number].mntr()
    }

    /// The sum of a counter over all members; panics if one does not answer. See [`ZooKeeper::count`].
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

    /// Waits until every member serves.
    #[track_caller]
    pub fn wait_healthy(&self) {
        let all = || self.members.iter().all(ZooKeeper::is_healthy);
        assert!(wait_until(all), "not all members serve:\n{}", self.logs());
    }

    /// Kills all who live and starts all again; returns when all serve.
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
    /// run into the panic of [`cut`](Ensemble::cut).
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

    fn hosts_with(&self, port: usize) -> String {
        let hosts: Vec<String> = self.members.iter().map(|member| member.spot.for_clients(port).to_string()).collect();
        hosts.join(",")
    }

    #[track_caller]
    fn leader_among(&self, counts: impl Fn(usize) -> bool) -> usize {
        let mut leader = None;
        wait_until(|| {
            let leads = |number: &usize| self.members[*number].mode().as_deref() == Some("leader");
            leader = (0..MEMBERS).filter(|number| counts(*number)).find(leads);
            leader.is_some()
        });
        leader.unwrap_or_else(|| panic!("no member leads:\n{}", self.logs()))
    }

    fn logs(&self) -> String {
        let log = |(number, member): (usize, &ZooKeeper)| format!("-- member {number}\n{}", member.log());
        self.members.iter().enumerate().map(log).collect()
    }

    fn attempt(options: &ZooKeeperOptions) -> Result<Self, String> {
        let site = if options.loopback { Site::Loopback("it was asked for".into()) } else { Site::network(MEMBERS) };
        let spots: Vec<Spot<4>> = (0..MEMBERS).map(|number| site.spot(number, USUAL)).collect();
        let place = |(number, spot): (usize, &Spot<4>)| {
            let (peers, election) = (spot.for_peers(PEERS), spot.for_peers(ELECTION).port());
            format!("server.{}={peers}:{election}\n", number + 1)
        };
        let everybody: String = spots.iter().enumerate().map(place).collect();
        let dirs: Vec<_> = spots.iter().map(|_| dir(options)).collect();
        let addresses: Vec<_> = spots.iter().map(|spot| spot.for_clients(CLIENTS).ip()).collect();
        let certificates = options.tls.map(|_| Certificates::make_for(dirs[0].path(), &addresses));
        let plans = spots.into_iter().zip(dirs).enumerate().map(|(number, (spot, dir))| {
            let (ensemble, certificates) = (Some((number + 1, everybody.clone())), certificates.clone());
            Plan { spot, dir, certificates, ensemble }
        });
        // At once: none serves before most are there.
        let members = std::thread::scope(|scope| {
            let starting: Vec<_> = plans.map(|plan| scope.spawn(|| ZooKeeper::launch(options, plan))).collect();
            let ended: Vec<_> = starting.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
            ended.into_iter().collect::<Result<Vec<ZooKeeper>, String>>()
        })?;
        Ok(Ensemble { members, site })
    }
}
