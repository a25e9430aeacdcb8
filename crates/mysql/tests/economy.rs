//! What it costs the server, counted and never timed: statements while somebody waits, per hand-over and per renewal, work per
//! grant however long the line, connections per client. Statements are counted in the server's own log and by its own
//! counters. Times are printed, since somebody will ask.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Claim, Client, Environment, Guard, Instant, Kind, Wait};
use tenure_testkit::servers::Step;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tenure_testkit::{claim, eventually, in_time};
use tokio::task::JoinSet;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A server that writes down every statement.
fn server() -> MariaDb {
    let options = MariaDbOptions::new().max_connections(200);
    MariaDb::start(options.set("general_log", "1").set("general_log_file", LOG))
}

const LOG: &str = "statements";

/// Thousands ask at once here, and have time for it.
async fn backend(server: &MariaDb) -> Arc<dyn Backend> {
    let url = format!("{}?answer_limit=60s", server.url());
    tenure_mysql::connect(&url.parse().unwrap()).await.unwrap()
}

async fn client(server: &MariaDb) -> Client {
    Client::with_environment(backend(server).await, Environment::real()).unwrap()
}

/// How often clients connected.
const CONNECT: &str = "connect";

/// How often clients called each of our procedures; what is no such call by its first word. The test's own are left out.
fn statements(server: &MariaDb) -> BTreeMap<String, usize> {
    let mut seen = log(server);
    seen.remove(CONNECT);
    seen
}

/// How many connections clients have made.
fn connects(server: &MariaDb) -> usize {
    log(server).get(CONNECT).copied().unwrap_or(0)
}

/// What clients did, connecting too.
fn log(server: &MariaDb) -> BTreeMap<String, usize> {
    let log = std::fs::read(server.dir().join("data").join(LOG)).unwrap();
    let mut ours = std::collections::HashSet::new();
    let mut seen = BTreeMap::new();
    for line in String::from_utf8_lossy(&log).lines() {
        // The time, if it is another second; the session; what it does; with what.
        let Some((head, argument)) =
            line.split_once('\t').map(|(_, rest)| rest.trim_start()).and_then(|rest| rest.split_once('\t'))
        else {
            continue;
        };
        let Some((session, command)) = head.trim().split_once(' ') else { continue };
        match command {
            "Connect" if argument.contains("@127.0.0.1") => {
                ours.insert(session.to_owned());
                *seen.entry(CONNECT.to_owned()).or_default() += 1;
            }
            "Connect" => drop(ours.remove(session)),
            "Query" | "Execute" if ours.contains(session) => {
                let call = argument.strip_prefix("CALL tenure_").and_then(|call| call.split_once('('));
                let word = argument.split(' ').next().unwrap_or_default();
                *seen.entry(call.map_or(word, |(verb, _)| verb).to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }
    seen
}

/// What was done since then.
fn since(before: &BTreeMap<String, usize>, after: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let more = |verb: &String, count: usize| count - before.get(verb).copied().unwrap_or(0);
    after.iter().map(|(verb, count)| (verb.clone(), more(verb, *count))).filter(|(_, count)| *count > 0).collect()
}

/// One of the server's counters.
fn counter(server: &MariaDb, name: &str) -> u64 {
    server.sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))[0][1].parse().unwrap()
}

/// A lock that nobody else wants is a statement to take and one to let go, each prepared once for its connection; and where the
/// server prepares nothing, a procedure each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_it_is_one_statement_each_way() {
    const PAIRS: usize = 20;
    let server = server();
    for prepares in [true, false] {
        server.sql(&format!("SET GLOBAL max_prepared_stmt_count = {}", if prepares { 100 } else { 0 }));
        let client = client(&server).await;
        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
        let prepared = counter(&server, "Com_stmt_prepare");
        mutex.lock().await.unwrap().release().await.unwrap(); // the name is not known yet: a procedure makes it
        let before = statements(&server);
        for _ in 0..PAIRS {
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        let seen = since(&before, statements(&server));
        let prepared = counter(&server, "Com_stmt_prepare") - prepared;
        eprintln!("{PAIRS} pairs: {seen:?}, prepared {prepared} times");
        // A name that was not used for a second may be tidied, and is then asked for by a procedure once more.
        let plain = if prepares { seen["SET"] } else { seen["ask"] + seen["end"] };
        assert!(plain > PAIRS, "{seen:?}");
        let expected = if prepares { 2..=4 } else { 0..=0 }; // two statements, on a connection or two
        assert!(expected.contains(&prepared), "{prepared}");
        client.close().await.unwrap();
    }
}

/// Looking for a name that nobody lets go of costs the same however many wait; who waits for nothing and holds nothing, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_does_not_cost_more_with_more_waiters() {
    const FOR: Duration = Duration::from_secs(3);
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = JoinSet::new();
    let mut paces = Vec::new();
    for waiters in [1, 10, 200] {
        while waiting.len() < waiters {
            let mutex = waiter.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // so each is let in for all of it
            waiting.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
        }
        line_is(&server, waiters).await;
        // Whoever has waited for a while looks at a steady pace.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, began) = (statements(&server), Instant::now());
        let (asked, read) = (counter(&server, "Questions"), counter(&server, "Handler_read_key"));
        tokio::time::sleep(FOR).await;
        let (asked, read) = (counter(&server, "Questions") - asked - 2, counter(&server, "Handler_read_key") - read);
        let took = Instant::now().since(began);
        let seen = since(&before, statements(&server));
        // The holder looks for messages meanwhile, twice a second, and is counted too.
        let pace = seen.values().sum::<usize>() as f64 / took.as_secs_f64();
        let reads = read as f64 / took.as_secs_f64();
        eprintln!(
            "{waiters} waiters: {pace:.1} statements and {reads:.0} rows a second, {seen:?}; the server counted {asked}"
        );
        paces.push(pace);
    }
    // Ten looks, two for messages and a beat: a machine that stood still while one waited has seen fewer.
    let alone = paces[0].max(13.0);
    assert!(paces.iter().all(|pace| *pace <= alone * 1.3 + 3.0), "{paces:?}");
    held.release().await.unwrap();
    while let Some(served) = in_time("the next one is served", waiting.join_next()).await {
        served.unwrap();
    }
    // Names that were let go of are removed a moment later; then there is nothing to do.
    eventually("nothing is left to do", || server.sql("SELECT COUNT(*) FROM tenure_name") == [["0"]]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = statements(&server);
    tokio::time::sleep(FOR).await;
    assert_eq!(since(&before, statements(&server)), BTreeMap::new(), "nobody holds, nobody waits");
}

/// Two hundred wait for one name, in one client and in twenty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_has_three_connections_at_most() {
    const WAITERS: usize = 200;
    /// How many requests travel together.
    const AT_MOST: usize = 64;
    for clients in [1, 20] {
        let server = server();
        let holder = client(&server).await;
        let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let begin = statements(&server);
        let mut waiting = JoinSet::new();
        let mut all = Vec::new();
        for _ in 0..clients {
            let client = client(&server).await;
            for _ in 0..WAITERS / clients {
                let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // so each is let in for all of it
                waiting.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
            }
            all.push(client);
        }
        line_is(&server, WAITERS).await;
        // Not at once: one that fell silent while the machine stood still was given up, and may be there for a moment more.
        let mut connections = 0;
        let are_few = || {
            let there = server.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE host LIKE '127.0.0.1:%'");
            connections = there[0][0].parse::<usize>().unwrap();
            connections <= 3 * (1 + clients)
        };
        eventually("each client has three connections at most", are_few).await;
        let before = statements(&server);
        let began = Instant::now();
        held.release().await.unwrap();
        while let Some(served) = in_time("the next one is served", waiting.join_next()).await {
            served.unwrap();
        }
        let took = Instant::now().since(began);
        let (seen, whole) = (since(&before, statements(&server)), since(&begin, statements(&server)));
        eprintln!("{WAITERS} hand-overs over {clients} clients and {connections} connections in {took:?}: {seen:?}");
        eprintln!("with their asks: {whole:?}");
        // What a connection carried that was given up is sent again on another: so much more on a machine that stood still.
        let again = connects(&server).saturating_sub(3 * (1 + clients)) * AT_MOST;
        assert!(seen["end"] <= WAITERS + 1 + again, "{seen:?}, {again} of them again");
        assert!(whole["ask"] <= WAITERS + again, "{whole:?}, {again} of them again");
        drop(all);
    }
}

/// What the server does for one hand-over does not grow with the line: the very same rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_hand_over_does_not_grow_with_the_line() {
    let mut first: Option<BTreeMap<&str, u64>> = None;
    for waiters in [10, 1_000, 5_000] {
        let (rows, pages) = hand_overs(waiters).await;
        eprintln!("{waiters} waiters, {HAND_OVERS} hand-overs: {rows:?}, {pages} pages");
        assert_eq!(*first.get_or_insert_with(|| rows.clone()), rows, "with {waiters} waiters");
    }
}

const HAND_OVERS: u64 = 8;
/// What the server asks of its engine; to look at these costs none of them.
const ROWS: [&str; 6] =
    ["Handler_read_key", "Handler_read_next", "Handler_read_first", "Handler_write", "Handler_update", "Handler_delete"];

/// What so many hand-overs do in the server when so many wait: rows, and pages, of which some are its own housekeeping's.
async fn hand_overs(waiters: usize) -> (BTreeMap<&'static str, u64>, u64) {
    // Its clock can be set: that keeps the line alive though nobody speaks for it, and nobody disturbs the count.
    let server = MariaDb::start(MariaDbOptions::new().skewed());
    let claims: Vec<Claim> = (0..=waiters).map(|number| claim(Kind::FairMutex, number)).collect();
    let asker = backend(&server).await;
    asker.acquire(&claims[0], Wait::No).await.unwrap().expect("it is free");
    for (round, some) in claims[1..].chunks(500).enumerate() {
        let mut asking = JoinSet::new();
        for claim in some {
            let (asker, claim) = (Arc::clone(&asker), claim.clone());
            asking.spawn(async move { asker.acquire(&claim, Wait::Forever).await });
        }
        line_is(&server, round * 500 + some.len()).await;
        asking.shutdown().await; // none of them gives its place up
        server.step_clock(Step::Back(Duration::from_secs(3600)));
    }
    let view = asker.view(&claims[0].name).await.unwrap();
    assert_eq!(view.line.len(), waiters);
    let in_order = view.line[..HAND_OVERS as usize - 1].iter().map(|waiter| {
        claims.iter().find(|claim| claim.id.fingerprint() == waiter.claim).expect("it is one of ours").clone()
    });
    let in_order: Vec<Claim> = std::iter::once(claims[0].clone()).chain(in_order).collect();
    drop(asker);
    let theirs = "SELECT COUNT(*) FROM information_schema.processlist WHERE host LIKE '127.0.0.1:%'";
    eventually("nobody is there", || server.sql(theirs) == [["0"]]).await;
    let ender = backend(&server).await;
    ender.release(&claim(Kind::FairMutex, waiters + 1)).await.unwrap_err(); // now every connection is there
    let mut looking = server.session().unwrap();
    let mut count = || {
        let mut status =
            |name: &str| looking.sql(&format!("SHOW GLOBAL STATUS LIKE '{name}'")).unwrap()[0][1].parse().unwrap();
        ROWS.map(|name| (name, status(name)))
    };
    let (before, pages) = (count(), counter(&server, "Innodb_buffer_pool_read_requests"));
    for claim in &in_order {
        ender.release(claim).await.unwrap();
    }
    let pages = counter(&server, "Innodb_buffer_pool_read_requests") - pages;
    let rows = count().into_iter().zip(before).map(|((name, after), (_, before)): (_, (_, u64))| (name, after - before));
    let rows = rows.collect();
    let left = server.sql("SELECT SUM(waiting), SUM(1 - waiting) FROM tenure_ticket");
    assert_eq!(left, [[(waiters as u64 - HAND_OVERS).to_string(), "1".to_owned()]], "each let somebody in");
    (rows, pages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_are_renewed_with_one_statement() {
    const ROUNDS: usize = 3;
    let server = server();
    let client = client(&server).await;
    let held = hold(&client, 1_000, Duration::from_secs(9)).await; // a machine may stand still for most of it
    for _ in 0..2 {
        a_round(&held[0]).await; // by now they go together
    }
    let mut tries = 0;
    loop {
        let before = statements(&server);
        for _ in 0..ROUNDS {
            a_round(&held[0]).await;
        }
        let seen = since(&before, statements(&server));
        eprintln!("1,000 holds, {ROUNDS} rounds: {seen:?}");
        if seen["renew"] <= ROUNDS + 1 {
            break; // one may just have begun
        }
        // A machine that stood still has made some of them try again. Soon they go together as before.
        tries += 1;
        assert!(tries < 5, "{seen:?}");
    }
    assert!(held.iter().all(|guard| guard.check().is_ok()));
}

/// Takes so many locks.
async fn hold(client: &Client, many: usize, ttl: Duration) -> Vec<Guard> {
    let mut asking = JoinSet::new();
    for number in 0..many {
        let mutex = client.mutex(format!("name {number}")).unwrap().ttl(ttl).unwrap();
        asking.spawn(async move { mutex.lock().await.unwrap() });
    }
    in_time("all of them", asking.join_all()).await
}

/// Waits until a hold is renewed.
async fn a_round(guard: &Guard) {
    let until = guard.valid_until();
    eventually("a renewal", || guard.valid_until() > until).await;
}

async fn line_is(server: &MariaDb, long: usize) {
    let line = format!("SELECT COUNT(*) = {long} FROM tenure_ticket WHERE waiting = 1");
    eventually(&format!("{long} wait"), || server.sql(&line) == [["1"]]).await;
}

/// Asked for again, a claim is found again. What the first request wrote may be shown before it is on the disk; the second one's
/// answer must wait for the disk too, so it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_found_again_is_written_again() {
    let server = server();
    let (asker, claim) = (backend(&server).await, claim(Kind::FairMutex, 0));
    let mut written = Vec::new();
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.push(asker.acquire(&claim, Wait::No).await.unwrap().expect("it is free, or ours").token);
        written.push(server.sql("SELECT used FROM tenure_name")[0][0].parse::<u64>().unwrap());
    }
    assert!(tokens.windows(2).all(|pair| pair[0] == pair[1]), "one claim, one grant: {tokens:?}");
    assert!(written.windows(2).all(|pair| pair[0] < pair[1]), "{written:?}");
    asker.release(&claim).await.unwrap();
}
