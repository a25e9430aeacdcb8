//! What the store adds to the promises of the suite: isolation levels, connections, poolers, restarts, and tables that two make
//! at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure_core::backend::Level;
use tenure_core::{Backend, Claim, Client, ErrorKind, Guard, Kind, Mode, Renewal, Wait};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres, PostgresOptions};
use tenure_testkit::{claim, eventually, eventually_async, in_time};
use tokio::task::JoinSet;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Answers may take longer than by default, unless the URL says how long: a machine may stand still for seconds.
async fn open(url: &str) -> Arc<dyn Backend> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let patience = if url.contains("answer_limit=") { String::new() } else { format!("{separator}answer_limit=20s") };
    let patient = format!("{url}{patience}").parse().unwrap();
    tenure_postgres::connect(&patient).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn client(url: &str) -> Client {
    Client::with_environment(open(url).await, tenure_core::Environment::real()).unwrap()
}

/// Lets go of what was waited for. Its first window is short: a machine that stood still for longer has lost it, and says so.
async fn let_go(held: Guard) {
    if let Err(error) = held.release().await {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// Waits for the answer to a renewal: it is held.
async fn is_renewed(backend: &Arc<dyn Backend>, claim: &Claim) {
    eventually_async("a renewal is answered", async || {
        let renewal = backend.renew(std::slice::from_ref(claim)).await.remove(0);
        assert!(!matches!(renewal, Ok(Renewal::Lost)), "it is there");
        renewal.is_ok()
    })
    .await;
}

/// Nobody is in twice, tokens rise, and everybody gets in, whatever the isolation level of the server's transactions is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_isolation_level_works() {
    for level in ["read uncommitted", "read committed", "repeatable read", "serializable"] {
        let options = PostgresOptions::new().set("default_transaction_isolation", level);
        let postgres = Postgres::start(options);
        assert_eq!(postgres.sql("SHOW transaction_isolation"), [[level]]);
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let client = client(&postgres.url()).await;
            for _ in 0..4 {
                let (client, inside) = (client.clone(), Arc::clone(&inside));
                tasks.spawn(async move {
                    let mut last = 0;
                    for _ in 0..6 {
                        // Nobody renews it, so whoever waited has it for the whole ttl too, however slow the machine is.
                        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
                        let held = mutex.lock().await.unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "somebody is in already");
                        assert!(held.token().get() > std::mem::replace(&mut last, held.token().get()));
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        held.release().await.unwrap();
                    }
                });
            }
        }
        in_time(level, tasks.join_all()).await;
        assert_eq!(postgres.sql("SELECT count(*) FROM tenure_ticket"), [["0"]], "{level}");
    }
}

/// A hold that is alone has its ticket in the name's row until somebody comes in beside it. Renewals that meet that moment may
/// find that somebody is at it, and never that it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_finds_a_hold_while_it_gets_a_row_of_its_own() {
    for level in ["read committed", "repeatable read"] {
        let postgres = Postgres::start(PostgresOptions::new().set("default_transaction_isolation", level));
        let (holder, other) = (open(&postgres.url()).await, open(&postgres.url()).await);
        for round in 0..200 {
            let shared = |number| Claim { mode: Mode::Shared, ..claim(Kind::RwLock, number) };
            let (mine, theirs) = (shared(2 * round), shared(2 * round + 1));
            holder.acquire(&mine, Wait::No).await.unwrap().expect("nobody has it");
            let renewing = async {
                for _ in 0..4 {
                    let renewal = holder.renew(std::slice::from_ref(&mine)).await.remove(0);
                    assert!(!matches!(renewal, Ok(Renewal::Lost)), "round {round}");
                }
            };
            let entering = async { other.acquire(&theirs, Wait::No).await.unwrap().expect("a reader is let in") };
            tokio::join!(renewing, entering);
            assert_eq!(postgres.sql("SELECT count(*) FROM tenure_ticket"), [["2"]], "each has a row");
            is_renewed(&holder, &mine).await;
            holder.release(&mine).await.unwrap();
            other.release(&theirs).await.unwrap();
        }
    }
}

/// Renewals wait for nobody, so whoever is at the name's row is in their way. Where somebody asks again and again, or gives up, a hold
/// that was handed over has a row of its own well before it must be renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_many_are_at_does_not_keep_renewals_out() {
    let postgres = Postgres::start(PostgresOptions::new());
    let (first, second, third) = (open(&postgres.url()).await, open(&postgres.url()).await, open(&postgres.url()).await);
    let rows = |waiting| postgres.sql(&format!("SELECT count(*) FROM tenure_ticket WHERE {waiting}")).remove(0).remove(0);
    for asks in [true, false] {
        // Let in for so long that no machine is too slow to see it there.
        let claims: Vec<Claim> = (0..3).map(|number| Claim { handover_ttl: LONG, ..claim(Kind::Mutex, number) }).collect();
        first.acquire(&claims[0], Wait::No).await.unwrap().expect("nobody has it");
        let waiting = tokio::spawn({
            let (second, claim) = (Arc::clone(&second), claims[1].clone());
            async move { second.acquire(&claim, Wait::Forever).await.unwrap().expect("it is let in") }
        });
        eventually("the second waits", || rows("waiting") == "1").await;
        first.release(&claims[0]).await.unwrap();
        in_time("the second is let in", waiting).await.unwrap();
        assert_eq!(rows("true"), "0", "it is in the name's row");
        eventually_async("it has a row of its own", async || {
            if asks {
                assert!(third.acquire(&claims[2], Wait::No).await.unwrap().is_none());
            } else {
                assert_eq!(third.release(&claims[2]).await.unwrap_err().kind(), ErrorKind::Lost);
            }
            rows("NOT waiting") == "1"
        })
        .await;
        is_renewed(&second, &claims[1]).await;
        second.release(&claims[1]).await.unwrap();
    }
}

/// Whoever is let in is followed by a dead one: that goes with the hand-over, and is not met again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_drops_the_dead_behind_whoever_is_let_in() {
    let postgres = Postgres::start(PostgresOptions::new());
    postgres.sql("CREATE ROLE third SUPERUSER LOGIN"); // so that its connections are known
    let (first, second) = (open(&postgres.url()).await, open(&postgres.url()).await);
    let third = open(&postgres.url_as("third", "", "postgres")).await;
    let claims: Vec<Claim> = (0..3).map(|number| claim(Kind::FairMutex, number)).collect();
    first.acquire(&claims[0], Wait::No).await.unwrap().expect("nobody has it");
    let waits = |backend: &Arc<dyn Backend>, claim: &Claim| {
        let (backend, claim) = (Arc::clone(backend), claim.clone());
        tokio::spawn(async move { backend.acquire(&claim, Wait::Forever).await.unwrap() })
    };
    let line = || postgres.sql("SELECT count(*) FROM tenure_ticket WHERE waiting").remove(0).remove(0);
    let second_waits = waits(&second, &claims[1]);
    eventually("the second waits", || line() == "1").await;
    let third_waits = waits(&third, &claims[2]);
    eventually("the third waits", || line() == "2").await;
    third_waits.abort();
    let _ = third_waits.await;
    drop(third);
    let theirs = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'third'";
    eventually("nobody speaks for it any more", || postgres.sql(theirs) == [["0"]]).await;
    postgres.sql(
        "UPDATE tenure_client SET alive = 0 \
          WHERE client = (SELECT client FROM tenure_ticket WHERE waiting ORDER BY seq DESC LIMIT 1)",
    );
    first.release(&claims[0]).await.unwrap();
    in_time("the second is let in", second_waits).await.unwrap().expect("it is let in");
    assert_eq!(postgres.sql("SELECT held, line, (SELECT count(*) FROM tenure_ticket) FROM tenure_name"), [["1", "0", "0"]]);
    second.release(&claims[1]).await.unwrap();
}

/// Tables of the version before get what they lack, with what is held in them, and functions that gave something else.
#[tokio::test]
async fn tables_of_version_1_are_changed() {
    let postgres = Postgres::start(PostgresOptions::new());
    tenure_postgres::migrate(&postgres.url().parse().unwrap()).await.unwrap();
    postgres.sql(
        "DROP FUNCTION tenure_session_wait(text, integer, boolean, integer); \
         CREATE FUNCTION tenure_session_wait(text, integer, boolean, integer) RETURNS void LANGUAGE sql AS ''; \
         CREATE FUNCTION tenure_renew(uuid[]) RETURNS void LANGUAGE sql AS ''; \
         ALTER TABLE tenure_name DROP COLUMN solo, DROP COLUMN marked; \
         INSERT INTO tenure_name (name, last, used) VALUES ('x', 9000000000000000, 1); \
         UPDATE tenure_setup SET version = 1",
    );
    let held = client(&postgres.url()).await.mutex("x").unwrap().lock().await.unwrap();
    assert!(held.token().get() > 9_000_000_000_000_000, "the name's row is the same");
    assert_eq!(postgres.sql("SELECT (solo).token = last FROM tenure_name"), [["t"]]);
    assert_eq!(postgres.sql("SELECT version FROM tenure_setup"), [["3"]]);
    assert_eq!(postgres.sql("SELECT count(*) FROM pg_proc WHERE proname = 'tenure_renew'"), [["1"]], "the old one has gone");
    held.release().await.unwrap();
}

/// A repaired function reaches a database that has the one before it, unless somebody else has made that, or a newer release.
#[tokio::test]
async fn repaired_functions_replace_those_that_are_there() {
    const STALE: &str = "CREATE OR REPLACE FUNCTION tenure_clock() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'";
    const STAMP: &str = "SELECT obj_description('tenure_setup'::regclass, 'pg_class')";
    let postgres = Postgres::start(PostgresOptions::new());
    let opened = || async { client(&postgres.url()).await };
    let is_repaired = || postgres.sql("SELECT tenure_clock() > 1") == [["t"]];
    let says = async |client: &Client| {
        let findings = client.examine().await.unwrap();
        let found = findings.iter().find(|finding| finding.what == "functions").expect("they are looked at");
        (found.level, found.says.clone())
    };
    assert_eq!(says(&opened().await).await.0, Level::Good);
    let ours = postgres.sql(STAMP)[0][0].clone();
    let stamp = |stamp: &str| postgres.sql(&format!("COMMENT ON TABLE tenure_setup IS {stamp}; {STALE}"));
    let words: Vec<&str> = ours.split(' ').collect();
    let (release, text): (u32, u32) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    for older in ["NULL".to_owned(), format!("'tenure {release} {}'", text ^ 1), format!("'tenure 0 {}'", text ^ 1)] {
        stamp(&older);
        assert_eq!(says(&opened().await).await.0, Level::Good, "{older}");
        assert!(is_repaired() && postgres.sql(STAMP)[0][0] == ours, "{older}");
    }
    let newer = format!("'tenure {} {}'", release + 1, text ^ 1);
    stamp(&newer);
    let (level, says_newer) = says(&opened().await).await;
    assert!(level == Level::Good && says_newer.contains("newer"), "{says_newer}");
    assert!(!is_repaired(), "an older program does not take a repair back");
    // Those of another owner are left alone, also where the URL trusts that owner and the user may replace them.
    postgres.sql("CREATE ROLE stranger; ALTER FUNCTION tenure_clock() OWNER TO stranger");
    stamp("NULL");
    let trusting = client(&format!("{}?owner=stranger", postgres.url())).await;
    let (level, says_strange) = says(&trusting).await;
    assert!(level == Level::Warning && says_strange.contains("tenure migrate"), "{says_strange}");
    assert!(!is_repaired());
}

/// Two hundred waiters of a client are at most three connections, and each hand-over is one statement of the one who lets go and
/// none of those who wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_need_no_connections_of_their_own() {
    let postgres = Postgres::start(PostgresOptions::new());
    let client = client(&postgres.url()).await;
    let first = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // so each is let in for all of it
        waiting.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
    }
    let line = || postgres.sql("SELECT count(*) FROM tenure_ticket WHERE waiting") == [["200"]];
    eventually("all wait", line).await;
    // Not at once: one that fell silent while the machine stood still was given up, and may be there for a moment more.
    let are_few = || postgres.sql("SELECT count(*) <= 3 FROM pg_stat_activity WHERE application_name = 'tenure'") == [["t"]];
    eventually("three connections at most while all wait", are_few).await;
    first.release().await.unwrap();
    in_time("all get in", waiting.join_all()).await;
    eventually("three connections at most", are_few).await;
}

/// Behind a pooler no message arrives, and yet a hand-over takes milliseconds: the one who waits looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_behind_a_pooler_is_quick() {
    let postgres = Postgres::start(PostgresOptions::new());
    let bouncer = PgBouncer::start(&postgres, BouncerOptions::new(PoolMode::Transaction).pool_size(2));
    let (one, other) = (client(&bouncer.url()).await, client(&bouncer.url()).await);
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
        let waiting = tokio::spawn(async move {
            let held = mutex.lock().await.unwrap();
            (Instant::now(), held)
        });
        eventually("it waits", || postgres.sql("SELECT count(*) FROM tenure_ticket WHERE waiting") == [["1"]]).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let (entered, held) = in_time("it gets in", waiting).await.unwrap();
        best = best.min(entered.saturating_duration_since(released));
        let_go(held).await;
    }
    assert!(best < Duration::from_millis(100), "the best of twenty took {best:?}");
    let listens = postgres.sql("SELECT count(*) FROM tenure_client WHERE listens");
    assert_eq!(listens, [["0"]], "nobody believes to be told");
}

/// A machine that stands still while it is tried whether messages arrive looks like a pooler, and not for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_heard_nothing_at_first_listens_later() {
    let postgres = Postgres::start(PostgresOptions::new().set("log_statement", "all"));
    let proxy = Proxy::start(postgres.address());
    let holder = client(&postgres.url()).await;
    let proxied = postgres.url().replace(&postgres.address().to_string(), &proxy.address().to_string());
    let waiter = client(&format!("{proxied}?connect_limit=60s")).await;
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    // A request and its answer take longer than a message may.
    let slow = proxy.set(Which::All, Fault::Delay(Toward::Both, Duration::from_millis(600)));
    let mutex = waiter.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("it was tried in vain", || postgres.log().contains("UNLISTEN")).await;
    proxy.lift(slow);
    eventually("it is told", || postgres.sql("SELECT count(*) FROM tenure_client WHERE listens") == [["1"]]).await;
    held.release().await.unwrap();
    in_time("it is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// What was granted before a server was killed is held after it has come back, and is renewed there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_forgets_nothing() {
    let postgres = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&postgres.url()).await, client(&postgres.url()).await);
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually("it waits", || postgres.sql("SELECT count(*) FROM tenure_ticket WHERE waiting") == [["1"]]).await;
    postgres.kill();
    postgres.restart();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none(), "it is held still");
    held.check().unwrap();
    let token = held.token();
    held.release().await.unwrap();
    let held = in_time("who waited gets in", waiting).await.unwrap().unwrap();
    assert!(held.token() > token);
    let_go(held).await;
}

/// Connections that the server ends, while somebody holds and somebody waits, cost nobody anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_are_made_anew() {
    let postgres = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&postgres.url()).await, client(&postgres.url()).await);
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'";
    for _ in 0..5 {
        let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually("it waits", || postgres.sql("SELECT count(*) FROM tenure_ticket WHERE waiting") == [["1"]]).await;
        postgres.sql(cut);
        held.check().unwrap();
        held.release().await.unwrap();
        let_go(in_time("who waited gets in", waiting).await.unwrap().unwrap()).await;
    }
    one.close().await.unwrap();
    other.close().await.unwrap();
    let left = "SELECT (SELECT count(*) FROM tenure_name) + (SELECT count(*) FROM tenure_ticket) + (SELECT count(*) FROM tenure_client)";
    eventually("nothing is left", || postgres.sql(left) == [["0"]]).await;
}

/// Several programs that start at once on an empty database all find their tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_several_make_at_once() {
    let postgres = Postgres::start(PostgresOptions::new());
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let url = format!("{}?schema=locks", postgres.url());
        tasks.spawn(async move {
            let client = client(&url).await;
            let_go(client.mutex("x").unwrap().lock().await.unwrap()).await;
        });
    }
    in_time("all have locked", tasks.join_all()).await;
    let settings = tenure_postgres::Settings::from_url(&format!("{}?schema=locks", postgres.url()).parse().unwrap());
    let ddl = tenure_postgres::schema(&settings.unwrap()).unwrap();
    postgres.sql(&ddl); // again, as an administrator would
    assert_eq!(postgres.sql("SELECT version FROM locks.tenure_setup"), [["3"]]);
}

/// Marks and the rows of dead clients go with time, as soon as somebody uses the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_goes() {
    let postgres = Postgres::start(PostgresOptions::new());
    client(&postgres.url()).await.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    postgres.sql(
        "INSERT INTO tenure_mark SELECT gen_random_uuid(), 1 FROM generate_series(1, 10); \
         INSERT INTO tenure_client VALUES (1, 1, true); \
         INSERT INTO tenure_mail (client, says, id, until) VALUES (1, 1, gen_random_uuid(), 1)",
    );
    let visitor = client(&postgres.url()).await;
    let left = "SELECT (SELECT count(*) FROM tenure_mark) + (SELECT count(*) FROM tenure_client) + (SELECT count(*) FROM tenure_mail)";
    let are_gone = async || {
        // Its first ask looks for them, and one in many after that.
        visitor.mutex("y").unwrap().ttl(LONG).unwrap().lock().await.unwrap().release().await.unwrap();
        postgres.sql(left) == [["0"]]
    };
    eventually_async("nothing is left, while somebody locks", are_gone).await;
}

/// A host that is gone says nothing at all. Whoever names it first still finds the server behind it, well within the time that
/// an answer may take, and keeps what it holds there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_host_does_not_hide_the_next_one() {
    let postgres = Postgres::start(PostgresOptions::new());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap(); // the kernel says hello, and nobody anything more
    let address = postgres.address().to_string();
    let url = postgres.url().replacen(&address, &format!("{},{address}", silent.local_addr().unwrap()), 1);
    let client = client(&format!("{url}?connect_limit=10s&answer_limit=10s")).await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    eventually_async("it gets in", || async { mutex.try_lock().await.is_ok_and(|held| held.is_some()) }).await;
}

/// However many names were let go of at once, they go in parts: each of them takes room in a table that all of the server's
/// transactions share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_idle_names_go_in_parts() {
    let postgres = Postgres::start(PostgresOptions::new().max_connections(20).set("max_locks_per_transaction", "10"));
    let client = client(&postgres.url()).await;
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let client = client.clone();
        tasks.spawn(async move {
            for name in 0..50 {
                let mutex = client.mutex(format!("{task}/{name}")).unwrap().ttl(LONG).unwrap();
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        });
    }
    in_time("all were in", tasks.join_all()).await;
    eventually("all are gone", || postgres.sql("SELECT count(*) FROM tenure_name") == [["0"]]).await;
    assert!(!postgres.log().contains("out of shared memory"), "{}", postgres.log());
}

/// Making the tables again waits for nobody, so that nobody waits behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrating_again_is_in_nobodys_way() {
    let postgres = Postgres::start(PostgresOptions::new());
    let client = client(&postgres.url()).await;
    let mut open = postgres.session().unwrap();
    open.sql("BEGIN").unwrap();
    open.sql("DELETE FROM tenure_ticket WHERE false").unwrap(); // as whoever locks in a transaction may
    in_time("done", tenure_postgres::migrate(&postgres.url().parse().unwrap())).await.unwrap();
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    open.sql("COMMIT").unwrap();
}
