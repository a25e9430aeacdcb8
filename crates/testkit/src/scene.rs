//! What one case has to work with: a fresh store, clients of it, and second processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Reach};
use tenure_core::{Backend, Client, ErrorKind, Kind, MIN_TTL, Mode, Result, View};
use tokio::time::{sleep, timeout};

use crate::harness::client_of;
use crate::history::{History, expect_sound, expect_sound_but_order};
use crate::suite::boxed::{Case, MutexCase, Playing};
use crate::taker::Taker;
use crate::wait::eventually_ok;
use crate::{Faults, Faulty, Harness, Sabotage, Shape, eventually_async};

/// A case's surroundings. What kind of store it is nobody sees, and so a case is compiled once for all of them.
pub struct Scene {
    store: Box<dyn Store>,
    taker: &'static str,
    /// How many grants each client has found by itself, however long ago it was dropped.
    polled: Mutex<Vec<Box<dyn Fn() -> u64 + Send + Sync>>>,
    /// Something was done to the server or to a process after which messages may be lost.
    harmed: Arc<AtomicBool>,
}

/// A [`Harness`] of whatever type.
trait Store: Send + Sync {
    fn backend(&self) -> BoxFuture<'_, Arc<dyn Backend>>;
    fn residue(&self) -> BoxFuture<'_, usize>;
    fn leases(&self) -> BoxFuture<'_, usize>;
    fn url(&self) -> Option<String>;
    fn open<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Arc<dyn Backend>>>;
    fn sabotage(&self, how: Sabotage) -> BoxFuture<'_, bool>;
    fn keeps_order(&self) -> bool;
    fn numbers_readers_apart(&self) -> bool;
    fn tells_holders(&self) -> bool;
    fn names(&self) -> Vec<String>;
    fn lists(&self) -> bool;
    fn is_settled<'a>(&'a self, name: &'a str) -> BoxFuture<'a, bool>;
    fn client(&self) -> BoxFuture<'_, Client>;
}

impl<H: Harness> Store for H {
    fn backend(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
        Box::pin(Harness::backend(self))
    }

    fn residue(&self) -> BoxFuture<'_, usize> {
        Box::pin(Harness::residue(self))
    }

    fn leases(&self) -> BoxFuture<'_, usize> {
        Box::pin(Harness::leases(self))
    }

    fn url(&self) -> Option<String> {
        Harness::url(self)
    }

    fn open<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Arc<dyn Backend>>> {
        Box::pin(H::open(url))
    }

    fn sabotage(&self, how: Sabotage) -> BoxFuture<'_, bool> {
        Box::pin(Harness::sabotage(self, how))
    }

    fn client(&self) -> BoxFuture<'_, Client> {
        Box::pin(Harness::client(self))
    }

    fn keeps_order(&self) -> bool {
        Harness::keeps_order(self)
    }

    fn numbers_readers_apart(&self) -> bool {
        Harness::numbers_readers_apart(self)
    }

    fn tells_holders(&self) -> bool {
        Harness::tells_holders(self)
    }

    fn names(&self) -> Vec<String> {
        Harness::names(self)
    }

    fn lists(&self) -> bool {
        Harness::lists(self)
    }

    fn is_settled<'a>(&'a self, name: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(Harness::is_settled(self, name))
    }
}

impl Scene {
    /// A client of its own.
    pub async fn client(&self) -> Client {
        let client = self.store.client().await;
        self.polled.lock().expect("no case panics there").push(Box::new(client.grants_by_poll_later()));
        client
    }

    /// The case does something to its own process after which messages may be lost.
    pub fn may_lose_messages(&self) {
        self.harmed.store(true, Ordering::Relaxed);
    }

    /// Whether anything was done after which requests and messages may be lost.
    fn may_fail(&self) -> bool {
        self.harmed.load(Ordering::Relaxed) || !self.loses_nothing()
    }

    /// Nobody had to find out by itself that it was let in, unless messages may have been lost: by what the case has done, or by a network
    /// that loses them. One that is still on its way arrives.
    async fn expect_nothing_polled(&self) {
        if self.may_fail() {
            return;
        }
        let polled = || self.polled.lock().expect("no case panics there").iter().map(|polled| polled()).sum::<u64>();
        let told = timeout(ON_ITS_WAY, async {
            while polled() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        });
        if told.await.is_err() {
            panic!("{} grants were found by a look, and no message told of them", polled());
        }
    }

    /// All was kept that this store promises.
    #[track_caller]
    pub fn expect_sound(&self, history: History) {
        let apart = self.store.numbers_readers_apart();
        let history = if apart { history } else { history.where_readers_may_share() };
        if self.store.keeps_order() { expect_sound(&history) } else { expect_sound_but_order(&history) }
    }

    /// Whether a holder is told at once what others do to its hold.
    pub fn tells_holders(&self) -> bool {
        self.store.tells_holders()
    }

    /// Whether names can be listed; asserts that the store honestly says so where they cannot.
    pub async fn lists(&self, client: &Client) -> bool {
        if !self.store.lists() {
            let refused = client.list("", None, 1).await.expect_err("a store without lists gives none");
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        self.store.lists()
    }

    /// Names every one of which is a lock of its own.
    pub fn names(&self) -> Vec<String> {
        self.store.names()
    }

    /// Whether a request arrives once, and its answer too.
    pub fn loses_nothing(&self) -> bool {
        self.store.keeps_order()
    }

    /// How much there is in the store right now.
    pub async fn residue(&self) -> usize {
        self.store.residue().await
    }

    /// Whether nothing is left, of clients that are closed.
    async fn is_empty(&self) -> bool {
        self.residue().await == 0 && self.store.leases().await == 0
    }

    /// Does something bad to the store; `false` if this store cannot be treated like that.
    pub async fn sabotage(&self, how: Sabotage) -> bool {
        self.harmed.store(true, Ordering::Relaxed);
        self.store.sabotage(how).await
    }

    /// Two clients of the store.
    pub async fn two_clients(&self) -> (Client, Client) {
        (self.client().await, self.client().await)
    }

    /// Whether the store has this kind; asserts that it honestly says so where it has not.
    pub async fn offers(&self, kind: Kind) -> bool {
        Need::Kind(kind).is_met(self).await
    }

    /// A client whose store has faults, and their switches.
    pub async fn faulty_client(&self) -> (Client, Arc<Faults>) {
        let (backend, faults) = Faulty::new(self.store.backend().await);
        (client_of(Arc::new(backend)), faults)
    }

    /// The same, and it does not hear what the store says on its own account.
    pub async fn deaf_client(&self) -> (Client, Arc<Faults>) {
        let (backend, faults) = Faulty::new(self.store.backend().await);
        faults.lose_news(true);
        (client_of(Arc::new(backend)), faults)
    }

    /// A second process with a client of this store.
    pub async fn taker(&self) -> Taker {
        let url = self.store.url().expect("a store that other processes reach has a URL");
        Taker::spawn(self.taker, &url).harming(&self.harmed).until_ready().await
    }

    /// Several of them, started side by side.
    pub async fn takers(&self, many: usize) -> Vec<Taker> {
        let url = self.store.url().expect("a store that other processes reach has a URL");
        let mut starting: Vec<_> = (0..many).map(|_| Taker::spawn(self.taker, &url).harming(&self.harmed)).collect();
        for taker in &mut starting {
            taker.ready().await;
        }
        starting
    }

    /// Waits until nobody holds the name and nobody waits for it.
    pub async fn is_free(&self, client: &Client, name: &str) {
        self.shows(client, name, &format!("{name:?} is free"), View::is_free).await;
    }

    /// Waits until so many wait for the name.
    pub async fn line_is(&self, client: &Client, name: &str, long: usize) {
        self.shows(client, name, &format!("{long} wait for {name:?}"), |view| view.line.len() == long).await;
    }

    /// The same, and each of them would be skipped if it died.
    pub async fn line_is_settled(&self, client: &Client, name: &str, long: usize) {
        self.line_is(client, name, long).await;
        eventually_async("all of them wait for good", async || self.store.is_settled(name).await).await;
    }

    /// Closes the clients, and waits until nothing is left in the store.
    pub async fn leaves_nothing(&self, clients: impl IntoIterator<Item = Client>) {
        for client in clients {
            client.close().await.expect("a client can be closed");
        }
        eventually_async("nothing is left in the store", async || self.is_empty().await).await;
    }

    /// The same for what a dead process or time alone has ended: a store without a server is cleaned by whoever uses it,
    /// so somebody comes by now and then.
    pub async fn leaves_nothing_in_the_end(&self, clients: impl IntoIterator<Item = Client>) {
        for client in clients {
            client.close().await.expect("a client can be closed");
        }
        let visited = async || {
            let visitor = self.client().await;
            let held = visitor.mutex("visitor").expect("every store has a mutex").lock().await.expect("the store works");
            held.release().await.expect("the store works");
            visitor.close().await.expect("a client can be closed");
            self.residue().await == 0 // a dead process has its leases for their whole time
        };
        eventually_async("nothing is left in the store, though somebody comes by", visited).await;
    }
}

impl Scene {
    /// Waits until a look at the name shows that. A look may fail where something was done to the store.
    async fn shows(&self, client: &Client, name: &str, what: &str, holds: impl Fn(&View) -> bool) {
        let looks = async || match client.view(name).await {
            Ok(view) if holds(&view) => Ok(()),
            Err(error) if !self.may_fail() => panic!("{what}: {error}, and nothing was done to the store"),
            other => Err(other),
        };
        eventually_ok(what, looks).await;
    }
}

/// What a case needs of a store. A store that lacks it must say so itself: then *that* is what the case asserts.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Only what every store has.
    Nothing,
    /// This kind.
    Kind(Kind),
    /// Cells.
    Cells,
    /// Names that stay closed though nobody holds them.
    Delays,
    /// Writers that become readers in place.
    Downgrade,
    /// Other processes.
    Processes,
}

impl Need {
    /// Whether the store has it; asserts that it honestly says so where it has not.
    async fn is_met(self, scene: &Scene) -> bool {
        let client = scene.client().await;
        let abilities = client.abilities();
        match self {
            Need::Nothing => true,
            Need::Kind(kind) if abilities.kinds.contains(&kind) => true,
            Need::Kind(kind) => {
                for shape in Shape::ALL.into_iter().filter(|shape| shape.kind() == kind) {
                    let refused = shape.make(&client, "absent").expect_err("a kind that is not offered cannot be made");
                    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
                }
                false
            }
            Need::Cells if abilities.cells => true,
            Need::Cells => {
                let refused = client.cell("absent").expect_err("a store without cells makes none");
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
                false
            }
            Need::Delays if abilities.delays => true,
            Need::Delays => {
                let refused = client.mutex("absent").expect("every store has a mutex").lock_delay(MIN_TTL);
                assert_eq!(refused.expect_err("a store without delays makes none").kind(), ErrorKind::Unsupported);
                false
            }
            Need::Downgrade if abilities.downgrade => true,
            Need::Downgrade => {
                if abilities.kinds.contains(&Kind::RwLock) {
                    let mut held = client.rw_lock("absent").unwrap().write().await.unwrap();
                    let refused = held.downgrade().await.expect_err("a store without downgrades makes none");
                    assert_eq!((refused.kind(), held.mode()), (ErrorKind::Unsupported, Mode::Exclusive), "{refused}");
                    held.release().await.unwrap();
                }
                false
            }
            Need::Processes if abilities.reach > Reach::Process => true,
            Need::Processes => {
                assert_eq!(scene.store.url(), None, "a store that only one process reaches has no URL for others");
                assert!(scene.store.open("anything").await.is_err());
                false
            }
        }
    }
}

/// Runs one case on a fresh store, in a runtime of two workers.
pub fn run<H: Harness>(taker: &'static str, need: Need, case: Case) {
    play(start::<H>, taker, need, &|scene| case(scene));
}

/// Runs one case of the mutex on another kind.
pub fn run_as<H: Harness>(taker: &'static str, shape: Shape, case: MutexCase) {
    play(start::<H>, taker, Need::Kind(shape.kind()), &|scene| case(scene, shape));
}

/// What the `taker` test does: nothing, unless it was started to be one.
pub fn serve<H: Harness>() {
    crate::taker::serve(|url| Box::pin(H::open(url)));
}

fn start<H: Harness>() -> BoxFuture<'static, Box<dyn Store>> {
    Box::pin(async { Box::new(H::start().await) as Box<dyn Store> })
}

fn play(
    start: fn() -> BoxFuture<'static, Box<dyn Store>>,
    taker: &'static str,
    need: Need,
    case: &dyn for<'a> Fn(&'a Scene) -> Playing<'a>,
) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let scene = Scene { store: start().await, taker, polled: Mutex::default(), harmed: Arc::default() };
        if need.is_met(&scene).await {
            timeout(HANGS, case(&scene)).await.expect("the case ends");
            scene.expect_nothing_polled().await;
        }
    });
    // Tasks that a failed case left behind may be in a busy loop: do not wait for them.
    runtime.shutdown_background();
}

/// Longer than any message takes that was not lost.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_secs(5);
/// Beyond every limit that a case waits for by itself, and all the steps of the longest on the slowest store together.
const HANGS: Duration = Duration::from_secs(900);
