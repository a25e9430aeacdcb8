//! Real databases, hurt in every way that is known: what a store promises holds, and where it promises nothing (a clock that
//! jumps, a replica that lagged) exclusion is *seen* to break and the fence to hold.
//!
//! The same faults for every store whose server is a database: the store's author writes a [`Store`], and [`faults!`](crate::faults!) makes
//! one real test of every case. What only one server has (its way to replicate) is tested beside it.
//!
//! - `record`: a crowd, and holds taken by hand, whose every step goes through the history checker; other stores use it too
//! - `database`: what the two servers have in common when they are to be hurt
//! - one file for each sort of fault
//!
//! Every case has a server of its own, and ends with looking at what is left in it: no row, no lock, no open transaction.

pub mod clients;
pub mod clock;
pub mod connections;
mod database;
pub mod disk;
pub mod isolation;
mod record;
pub mod replies;
pub mod restart;
pub mod silence;

pub use database::{Database, Wish};
pub use record::{Crowd, OnRecord, Record};

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Client, Result};

use crate::harness::client_of;
use crate::proxy::Proxy;
use crate::taker::Taker;
use crate::{Harness, eventually_async};

/// Longer than any test: whoever has it loses it by a fault, not by the machine's slowness.
pub const LONG: Duration = Duration::from_secs(600);

/// A store over a database, in the words of the cases.
pub trait Store: Send + Sync + 'static {
    /// Its server.
    type Server: Database;

    /// A backend of the store at this URL.
    fn open(url: &str) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send;
}

/// Makes every case a test for one store: `faults!(Mine)` gives tests called `restart::nothing_is_forgotten` and so on, and
/// one called `taker`, which is the way into a second process.
#[macro_export]
macro_rules! faults {
    ($store:ty) => {
        type TheStore = $store;

        /// Not a case: what some start in a second process. Does nothing by itself.
        #[test]
        fn taker() {
            $crate::faults::serve::<TheStore>();
        }

        $crate::__faults! {
            clients => [
                a_killed_holder_costs_its_ttl
                a_stopped_holder_is_lost_and_fenced
                killed_waiters_are_skipped
                a_waiter_that_gives_up_unheard_leaves_the_line
            ]
            clock => [
                exclusion_is_seen_to_break_when_it_is_set_to_later
                nobody_gets_in_early_when_it_is_set_to_earlier
                a_crowd_outlives_a_clock_that_jumps
            ]
            connections => [
                the_server_ends_them_again_and_again
                a_storm_of_resets_breaks_nothing
                others_take_all_of_them
            ]
            disk => [a_full_disk_refuses_and_keeps]
            isolation => [sixteen_processes_at_every_level]
            replies => [
                a_grant_is_found_again
                a_place_in_line_is_found_again
                a_release_is_confirmed_in_the_end
                a_renewal_is_tried_again_in_time
                frozen_connections_are_replaced
            ]
            restart => [nothing_is_forgotten a_restored_backup_does_not_start_over]
            silence => [
                a_paused_server_loses_nobody_within_the_ttl
                holders_are_lost_before_others_get_in
                a_client_that_went_deaf_gets_in
                an_ask_that_nobody_answers_leaves_nothing
            ]
        }
    };
}

/// The tests of [`faults!`](crate::faults!).
#[doc(hidden)]
#[macro_export]
macro_rules! __faults {
    ($($sort:ident => [ $($case:ident)+ ])+) => {
        $(
            mod $sort {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        $crate::faults::$sort::$case::<super::TheStore>().await;
                    }
                )+
            }
        )+
    };
}

/// A server, and a proxy in front of it.
pub(crate) struct Stage<S: Store> {
    pub(crate) server: S::Server,
    pub(crate) proxy: Proxy,
}

impl<S: Store> Stage<S> {
    /// The tables are there already, so no client's first request is what makes them.
    pub(crate) async fn new(wish: Wish) -> Self {
        let server = S::Server::start(wish);
        client::<S>(&server.url()).await.close().await.expect("it leaves");
        let proxy = Proxy::start(server.address());
        Stage { server, proxy }
    }

    /// A client that no fault of the network meets.
    pub(crate) async fn direct(&self) -> Client {
        client::<S>(&self.server.url()).await
    }

    /// A client behind the proxy, with nothing of its own under way.
    pub(crate) async fn proxied(&self) -> Client {
        let client = client::<S>(&self.url()).await;
        // With its first ask it also looks in the background for what the dead have left. Here that is a mark whose time is
        // over, and when it is gone, all is done. (A request that a machine held up is sent twice, and leaves a mark that stays.)
        self.server.leave_a_mark();
        let observer = self.direct().await;
        let held = observer.mutex("taken").and_then(|mutex| mutex.ttl(LONG)).expect("a name").lock().await;
        let tried = client.mutex("taken").expect("a name").try_lock().await.expect("it is asked for");
        assert!(tried.is_none());
        crate::eventually("it has looked for leftovers", || !self.server.has_an_old_mark()).await;
        held.expect("it is free").release().await.expect("it is let go");
        observer.close().await.expect("it leaves");
        client
    }

    /// Where the proxy is.
    pub(crate) fn url(&self) -> String {
        self.server.url_at(self.proxy.address())
    }
}

/// A client of the store at this URL, with a keeper of its own. Answers may take longer than by default, unless the URL says
/// how long: a machine may stand still for seconds.
pub async fn client<S: Store>(url: &str) -> Client {
    client_of(S::open(&patient(url)).await.expect("the server is there"))
}

/// The URL, with more time for an answer unless it says how much there is.
fn patient(url: &str) -> String {
    if url.contains("answer_limit=") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}answer_limit=20s")
}

/// Closes these clients and waits until nothing is left of them and of all that were there before: no row but what stays on
/// purpose, no lock, no open transaction. What clients left that were killed is found by those who come later.
pub async fn leaves_nothing<S: Store>(server: &S::Server, clients: impl IntoIterator<Item = Client>) {
    for client in clients {
        client.close().await.expect("it leaves");
    }
    eventually_async("nothing is left", async || {
        if server.rows() > 0 {
            let later = client::<S>(&server.url()).await;
            let _ = later.mutex("later").expect("a name").try_lock().await;
            let _ = later.close().await;
        }
        server.rows() == 0
    })
    .await;
    let mut last = Vec::new();
    eventually_async("nothing is locked", async || {
        let locks = server.locks();
        if locks != last {
            eprintln!("locked: {locks:?}"); // for whoever must find out why it stays so
        }
        last.clone_from(&locks);
        locks.is_empty()
    })
    .await;
}

/// Waits until so many wait for the name.
pub async fn line_is(client: &Client, name: &str, long: usize) {
    let what = format!("{long} wait for {name:?}");
    eventually_async(&what, async || client.view(name).await.is_ok_and(|view| view.line.len() == long)).await;
}

/// What the `taker` test of [`faults!`](crate::faults!) does: nothing, unless it was started to be a second process.
pub fn serve<S: Store>() {
    crate::serve::<Second<S>>();
}

/// A second process with a client of its own.
pub(crate) fn second(url: &str) -> Taker {
    Taker::spawn("faults::taker", &patient(url))
}

/// A store as a second process sees it: a URL.
struct Second<S>(PhantomData<S>);

impl<S: Store> Harness for Second<S> {
    async fn start() -> Self {
        Second(PhantomData)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("it is only opened by its URL")
    }

    async fn residue(&self) -> usize {
        0
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        S::open(url).await
    }
}

/// The URL of a server, as seen through another address.
pub(crate) fn through(url: &str, server: SocketAddr, address: SocketAddr) -> String {
    url.replacen(&server.to_string(), &address.to_string(), 1)
}
