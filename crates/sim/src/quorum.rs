//! A quorum in one thread and paused time: three nodes that count for themselves, one of them ahead of the others, and a network
//! on which each request and each answer takes its own time. What is asked is one thing only: do tokens rise in the order in
//! which grants return?

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Abilities, BoxFuture, Finding, async_trait};
use tenure_core::memory::Memory;
use tenure_core::quorum::{Node, Quorum, Settings};
use tenure_core::{
    Ask, Backend, Claim, Client, Clock, Environment, Grant, LockName, News, Renewal, Result, Token, Versioned, View, Wait,
};

use crate::rng::Rng;

/// What all clients of a run have in common.
struct World {
    rng: Mutex<Rng>,
    /// Every grant that returned, in that order.
    grants: Mutex<Vec<Token>>,
}

/// How many clients there are, and how often each takes the lock.
const CLIENTS: u64 = 3;
const ROUNDS: u32 = 8;

/// Runs one seed; the tokens of all grants, in the order in which they returned.
pub fn tokens_of_a_quorum(seed: u64) -> Vec<Token> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let clock = Clock::Simulated { origin: tokio::time::Instant::now() };
        let world = Arc::new(World { rng: Mutex::new(Rng::new(seed, 1)), grants: Mutex::default() });
        let stores: Vec<Memory> = (0..3).map(|_| Memory::with_clock(clock)).collect();
        let name = LockName::new("x").expect("it is a name");
        let ahead = Token::new(clock.wall_micros() + world.draw(|rng| rng.range(0, 2_000_000)));
        stores[0].node().raise(&name, ahead).await.expect("it is there");
        let clients = (0..CLIENTS).map(|number| {
            let nodes = stores.iter().map(|store| world.far_away(store.node())).collect();
            let environment = Environment::simulated(clock, seed ^ number << 32);
            let mut settings = Settings::default();
            (settings.fencing, settings.environment) = (true, environment.clone());
            settings.node_limit = world.draw(|rng| rng.millis(50, 400));
            let quorum = Quorum::new(nodes, settings).expect("three different nodes");
            Client::with_environment(Arc::new(quorum), environment).expect("a client asks nothing of its store")
        });
        let work = clients.map(|client| tokio::spawn(Arc::clone(&world).work(client)));
        for task in work.collect::<Vec<_>>() {
            task.await.expect("no panics here");
        }
        std::mem::take(&mut *world.grants.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

impl World {
    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn far_away(self: &Arc<Self>, inner: Arc<dyn Node>) -> Arc<dyn Node> {
        Arc::new(FarAway { world: Arc::clone(self), inner })
    }

    /// How long one message takes: mostly nothing to speak of.
    async fn travels(&self) {
        let latency = self.draw(|rng| if rng.chance(250) { rng.millis(5, 300) } else { rng.millis(0, 2) });
        tokio::time::sleep(latency).await;
    }

    async fn work(self: Arc<Self>, client: Client) {
        let mutex = client.mutex("x").expect("it is a name").ttl(Duration::from_secs(3)).expect("it is a ttl");
        for _ in 0..ROUNDS {
            tokio::time::sleep(self.draw(|rng| rng.millis(0, 50))).await;
            let wait = self.draw(|rng| rng.millis(100, 3_000));
            if let Ok(Some(guard)) = mutex.try_lock_for(wait).await {
                self.grants.lock().unwrap_or_else(PoisonError::into_inner).push(guard.token());
                tokio::time::sleep(self.draw(|rng| rng.millis(0, 40))).await;
                let _ = guard.release().await;
            }
        }
    }
}

/// A node behind the network.
struct FarAway {
    world: Arc<World>,
    inner: Arc<dyn Node>,
}

impl FarAway {
    fn there_and_back<'a, T: Send + 'a>(&'a self, request: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
        Box::pin(async move {
            self.world.travels().await;
            let answer = request.await;
            self.world.travels().await;
            answer
        })
    }
}

#[async_trait]
impl Node for FarAway {
    async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token> {
        self.there_and_back(async move { self.inner.raise(name, at_least).await }).await
    }

    fn vote(&self) -> Result<()> {
        self.inner.vote()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }
}

#[async_trait]
impl Backend for FarAway {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn attach(&self, news: News) {
        self.inner.attach(news);
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.there_and_back(async move { self.inner.acquire(claim, wait).await }).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.there_and_back(async move { self.inner.renew(claims).await }).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        self.there_and_back(async move { self.inner.release(claim).await }).await
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        self.inner.downgrade(claim).await
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.inner.view(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.inner.watch(name, seen).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.inner.ask(name, ask).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.inner.break_holds(name, only).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        self.inner.cell_get(name).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.inner.cell_set(name, expected, value).await
    }

    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }
}
