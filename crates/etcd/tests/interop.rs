//! Old and new programs on one lock, and etcd's own tools looking at ours: the real `etcdctl`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use tenure_core::{Backend, Client, Environment, ErrorKind, Kind, Result};
use tenure_testkit::servers::etcd::{Etcd, EtcdCluster, EtcdOptions};
use tenure_testkit::taker::{Taker, Wanted};
use tenure_testkit::{Harness, Shape, eventually, eventually_async, in_time};

const LONG: Duration = Duration::from_secs(600);

fn url(parameters: &str) -> String {
    format!("{}?answer_limit=60s{parameters}", EtcdCluster::shared().url())
}

async fn client(parameters: &str) -> Client {
    let backend = tenure_etcd::connect(&url(parameters).parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// A program of ours that can be killed; does nothing unless it was started to be one.
#[test]
fn taker() {
    tenure_testkit::serve::<Store>();
}

/// A cluster's URL as a store of the suite: what a second process opens.
struct Store;

impl Harness for Store {
    async fn start() -> Self {
        Store
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("it is only opened by its URL")
    }

    async fn residue(&self) -> usize {
        0
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_etcd::connect(&url.parse()?).await
    }
}

/// A program that runs beside the test, and what it prints.
struct Beside {
    command: Command,
    child: Child,
    lines: Receiver<String>,
}

impl Beside {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let (child, lines) = run(&mut command);
        Beside { command, child, lines }
    }

    /// Starts it again: `etcdctl` sends a write once only, and ends where an election has swallowed it.
    fn again(&mut self) {
        let _ = self.child.wait();
        (self.child, self.lines) = run(&mut self.command);
    }

    /// What it says next; it is started again if it has ended with nothing more to say.
    async fn says(&mut self, what: &str) -> String {
        let mut said = None;
        eventually(what, || {
            said = match self.lines.try_recv() {
                Ok(line) => Some(line),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    self.again();
                    None
                }
            };
            said.is_some()
        })
        .await;
        said.unwrap_or_default()
    }

    /// SIGKILL, at which it lets go of nothing.
    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// SIGINT, at which `etcdctl lock` lets go.
    fn interrupt(&self) {
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().expect("there is kill");
    }
}

fn run(command: &mut Command) -> (Child, Receiver<String>) {
    let mut child = command.spawn().expect("etcdctl is there");
    let (sender, lines) = std::sync::mpsc::channel();
    let output = BufReader::new(child.stdout.take().expect("it was asked for"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (child, lines)
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a key is there.
fn is_there(key: &str) -> bool {
    !EtcdCluster::shared().ctl(&["get", "--keys-only", key]).trim().is_empty()
}

/// `etcdctl lock` holds: we wait, are turned away, and get in when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_holds_and_we_wait() {
    let client = client("&layout=concurrency").await;
    let mut old = Beside::start(EtcdCluster::shared().etcdctl(&["lock", "interop/one"]));
    let key = old.says("etcdctl has it").await;
    assert!(key.starts_with("interop/one/"), "{key}");
    let mutex = client.mutex("interop/one").unwrap().ttl(LONG).unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    eventually_async("we stand in line", async || {
        let view = client.view("interop/one").await.unwrap();
        (view.holders.len(), view.line.len()) == (1, 1)
    })
    .await;
    old.interrupt();
    let held = in_time("we are let in", waiting).await.unwrap().unwrap();
    held.check().unwrap();
    held.release().await.unwrap();
}

/// We hold: `etcdctl lock` waits, and gets in when we let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_hold_and_etcdctl_waits() {
    let client = client("&layout=concurrency").await;
    let mutex = client.mutex("interop/two").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    let mut old = Beside::start(EtcdCluster::shared().etcdctl(&["lock", "interop/two"]));
    let in_line = async || {
        if matches!(old.child.try_wait(), Ok(Some(_))) {
            old.again();
        }
        client.view("interop/two").await.unwrap().line.len() == 1
    };
    eventually_async("it stands in line", in_line).await;
    assert!(old.lines.try_recv().is_err(), "it has nothing to say yet");
    held.release().await.unwrap();
    let key = old.says("it is let in").await;
    assert!(key.starts_with("interop/two/"), "{key}");
    assert!(mutex.try_lock().await.unwrap().is_none());
    old.interrupt();
    in_time("and we again", mutex.lock()).await.unwrap().release().await.unwrap();
}

/// `etcdctl lock` is killed with the lock: it costs us its lease, of ten seconds, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_dies_and_we_get_in() {
    let client = client("&layout=concurrency").await;
    let mut old = Beside::start(EtcdCluster::shared().etcdctl(&["lock", "interop/four"]));
    let key = old.says("etcdctl has it").await;
    let mutex = client.mutex("interop/four").unwrap().ttl(LONG).unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let in_line = async || waiting.is_finished() || client.view("interop/four").await.is_ok_and(|view| view.line.len() == 1);
    eventually_async("we stand in line", in_line).await;
    old.kill();
    let held = in_time("we are let in", waiting).await.unwrap().unwrap();
    assert!(!is_there(&key), "not before its lease is over");
    held.check().unwrap();
    held.release().await.unwrap();
}

/// A program of ours is killed with the lock: it costs `etcdctl lock` its lease, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_die_and_etcdctl_gets_in() {
    let client = client("&layout=concurrency").await;
    let mut ours = Taker::start("interop::taker", &url("&layout=concurrency")).await;
    let wanted = Wanted::new("interop/five", Shape::Mutex).ttl(Duration::from_secs(10));
    let (token, _) = ours.lock(1, &wanted).await;
    let mut old = Beside::start(EtcdCluster::shared().etcdctl(&["lock", "interop/five"]));
    let in_line = async || {
        if matches!(old.child.try_wait(), Ok(Some(_))) {
            old.again();
        }
        let view = client.view("interop/five").await.unwrap();
        view.line.len() == 1 || view.holders.iter().any(|holder| holder.token.get() != token)
    };
    eventually_async("it stands in line", in_line).await;
    ours.kill();
    let key = old.says("it is let in").await;
    assert!(key.starts_with("interop/five/"), "{key}");
    let view = client.view("interop/five").await.unwrap();
    assert!(view.holders.iter().all(|holder| holder.token.get() != token), "not before our lease is over");
}

/// Ours take turns there as everywhere, with rising tokens, and leave nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_are_taken() {
    let client = client("&layout=concurrency").await;
    let other = self::client("&layout=concurrency").await;
    let mutex = |client: &Client| client.mutex("interop/three").unwrap().ttl(LONG).unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let held = mutex(&client).lock().await.unwrap();
        assert!(mutex(&other).try_lock().await.unwrap().is_none());
        let waits = mutex(&other);
        let waiting = tokio::spawn(async move { waits.lock().await });
        eventually_async("it waits", async || client.view("interop/three").await.unwrap().line.len() == 1).await;
        assert!(held.token().get() > last);
        held.release().await.unwrap();
        let next = in_time("it is let in", waiting).await.unwrap().unwrap();
        last = next.token().get();
        next.release().await.unwrap();
    }
    let left = EtcdCluster::shared().ctl(&["get", "--prefix", "--keys-only", "interop/three/"]);
    assert!(left.trim().is_empty(), "{left}");
}

/// Each claim has a lease of its own there, and whoever is turned away gives it back at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_turned_away_leaves_no_lease() {
    let etcd = Etcd::start(EtcdOptions::new());
    let url = format!("{}?answer_limit=20s&layout=concurrency", etcd.url());
    let client = Client::with_environment(tenure_etcd::connect(&url.parse().unwrap()).await.unwrap(), Environment::real());
    let client = client.unwrap();
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    for _ in 0..10 {
        assert!(mutex.try_lock().await.unwrap().is_none());
    }
    let leases = etcd.ctl(&["lease", "list"]);
    assert!(leases.starts_with("found 1 lease"), "only the holder's: {leases}");
    held.release().await.unwrap();
}

/// The layout of etcd's recipe has nothing but mutexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_recipe_has_not_is_refused() {
    let client = client("&layout=concurrency").await;
    assert_eq!(client.abilities().kinds, [Kind::Mutex]);
    assert_eq!(client.fair_mutex("x").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.rw_lock("x").unwrap_err().kind(), ErrorKind::Unsupported);
}

/// `etcdctl elect --listen` sees our leaders come, with what they say of themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_sees_our_leaders() {
    let client = client("&prefix=elections").await;
    let election = |note: &str| client.election("boss").unwrap().ttl(LONG).unwrap().note(note).unwrap();
    let leads = election("10.0.0.7:8080").campaign().await.unwrap();
    let mut listener = Beside::start(EtcdCluster::shared().etcdctl(&["elect", "--listen", "elections/lock/boss election"]));
    let mut hears = async |note: &str| while listener.says("the listener hears").await != note {};
    in_time("the first leader is seen", hears("10.0.0.7:8080")).await;
    let next = election("10.0.0.8:8080").keep(false); // a pause after the hand-over does not lose it
    let campaigning = tokio::spawn(async move { next.campaign().await });
    eventually_async("another one waits", async || client.view("boss").await.unwrap().line.len() == 1).await;
    leads.release().await.unwrap();
    let leads = in_time("the next one leads", campaigning).await.unwrap().unwrap();
    in_time("the next leader is seen", hears("10.0.0.8:8080")).await;
    leads.release().await.unwrap();
}
