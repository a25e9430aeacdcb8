//! Redlock: core's [`Quorum`] over independent servers.
//!
//! A server is one node, with a vote. It has none while it may have forgotten: for `largest_ttl` from its start, unless the
//! operator declares that it keeps what it acknowledged. A server that restarts breaks every connection to it, so that
//! whoever connects sees the new run id and how long it has been up; a vote is looked at after the grant, when the
//! connection that carried it has said so. Longer ttls than `largest_ttl` are refused, or the rule would protect nobody.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::backend::{Abilities, Backend, Fencing, async_trait};
use tenure_core::lease::Lowered;
use tenure_core::quorum::{self, Node, Quorum};
use tenure_core::{Error, ErrorKind, Kind, LockName, Result, Token};

use crate::backend::{ABILITIES, Redis};
use tenure_core::Address;

use crate::config::{Settings, Topology};
use crate::ear::Run;
use crate::inner::Inner;

/// What Redlock does. With `fencing=majority` its tokens rise as those of one server do.
pub const REDLOCK_ABILITIES: Abilities = Abilities {
    store: "redlock",
    kinds: &[Kind::Mutex, Kind::RwLock, Kind::Election],
    fencing: Fencing::None,
    cells: false,
    ..ABILITIES
};

/// Connects to the servers that a Redlock is made of. A minority of them may be down.
pub(crate) async fn connect(settings: &Settings) -> Result<Quorum> {
    let Topology::Redlock(addresses) = &settings.topology else { unreachable!("only called for a Redlock") };
    settings.check()?;
    let nodes: Vec<Arc<Redis>> = addresses
        .iter()
        .map(|address| Ok(Arc::new(Redis { inner: Inner::new(settings.of_node(address))? })))
        .collect::<Result<_>>()?;
    for (place, node) in nodes.iter().enumerate() {
        let before = nodes[..place].iter().map(|sibling| Arc::downgrade(&sibling.inner)).collect();
        let _ = node.inner.siblings.set(before);
    }
    let attempts: Vec<_> = nodes.iter().map(|node| node.inner.reach()).collect();
    let failures: Vec<Error> = join_all(attempts).await.into_iter().filter_map(Result::err).collect();
    let (many, reached) = (nodes.len(), nodes.len() - failures.len());
    if reached <= many / 2 {
        let mut failures = failures;
        if failures.iter().all(|error| !error.is_transient()) {
            return Err(failures.swap_remove(0)); // a wrong password is one everywhere
        }
        let said: Vec<String> = failures.iter().map(Error::to_string).collect();
        let what = format!("{reached} of {many} nodes could be reached, and a majority must ({})", said.join("; "));
        return Err(Error::new(ErrorKind::Unavailable, what).with_store(settings.describe()));
    }
    let mut rules = quorum::Settings::default();
    (rules.node_limit, rules.fencing, rules.store) = (settings.node_limit, settings.fencing, REDLOCK_ABILITIES.store);
    Quorum::new(nodes.into_iter().map(|node| node as Arc<dyn Node>).collect(), rules)
}

#[async_trait]
impl Node for Redis {
    async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token> {
        self.inner.raise(name, at_least).await
    }

    fn vote(&self) -> Result<()> {
        let settings = &self.inner.fleet.settings;
        let none = |why: String| Err(Error::new(ErrorKind::Unavailable, why).with_store(self.describe()));
        let Some(run) = self.address().and_then(|address| self.inner.ear.run(address)) else {
            self.reach_in_the_background(); // it was down when we connected, and without a vote nobody asks it
            return none("it was not reached yet".to_owned());
        };
        if let Some(twin) = self.twin(&run) {
            return none(format!("it is the same server as {twin}, which has its vote"));
        }
        if settings.durable {
            return Ok(());
        }
        match run.up_for().map(|up| settings.largest_ttl.saturating_sub(up)) {
            Some(Duration::ZERO) => Ok(()),
            Some(dark) => {
                let (longest, left) = (settings.largest_ttl, dark.as_secs() + 1);
                let why = format!("it started less than {longest:?} ago, may have forgotten, and has no vote for {left} s");
                none(why).map_err(|error: Error| error.with_hint("durable=yes says that it forgets nothing"))
            }
            None => none("it does not say how long it has been up: its user lacks the right to INFO".to_owned()),
        }
    }

    fn identity(&self) -> String {
        let run = self.address().and_then(|address| self.inner.ear.run(address)).filter(|run| !run.id.is_empty());
        run.map_or_else(|| self.describe(), |run| run.id)
    }
}

impl Redis {
    /// Connects, if nobody does so already. The link itself sees to pauses between attempts.
    fn reach_in_the_background(&self) {
        if self.inner.reaching.swap(true, Ordering::Relaxed) {
            return;
        }
        let (inner, reaching) = (Arc::clone(&self.inner), Lowered(Arc::clone(&self.inner.reaching)));
        self.inner.spawn(async move {
            let _reaching = reaching;
            let _ = inner.reach().await;
        });
    }

    /// Another name for this very server among those named before it. Most are found at connecting; one that was down then
    /// is found here.
    fn twin(&self, run: &Run) -> Option<String> {
        let siblings = self.inner.siblings.get()?.iter().filter_map(Weak::upgrade);
        let same = |sibling: &Arc<Inner>| {
            let node = sibling.fleet.known(0)?;
            (!run.id.is_empty() && sibling.ear.run(&node.address)?.id == run.id).then(|| node.address.to_string())
        };
        siblings.into_iter().find_map(|sibling| same(&sibling))
    }

    /// Where a node is.
    fn address(&self) -> Option<&Address> {
        match &self.inner.fleet.settings.topology {
            Topology::Single(address) => Some(address),
            _ => None,
        }
    }
}
