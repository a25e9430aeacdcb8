//! What it costs the server, counted and never timed: statements per hand-over and per renewal, work per grant however long the
//! line, connections per client. Statements are counted in the server's own log. Times are printed, since somebody will ask.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Claim, Client, Environment, Guard, Instant, Kind, Wait};
use tenure_testkit::servers::Step;
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions};
use tenure_testkit::{claim, eventually, in_time};
use tokio::task::JoinSet;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A server that writes down every statement, and who sent it.
fn server() -> Postgres {
    let options = PostgresOptions::new().max_connections(200);
    Postgres::start(options.set("log_statement", "all").set("log_line_prefix", "%a %p "))
}

/// Thousands ask at once here, and have time for it.
async fn backend(server: &Postgres) -> Arc<dyn Backend> {
    let url = format!("{}?answer_limit=60s", server.url());
    tenure_postgres::connect(&url.parse().unwrap()).await.unwrap()
}

async fn client(server: &Postgres) -> Client {
    Client::with_environment(backend(server).await, Environment::real()).unwrap()
}

/// How often clients called each of our functions; what is no such call by its first word.
fn statements(server: &Postgres) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for (_, statement) in sent(&server.log()) {
        let verb = statement.split_once("\"tenure_").and_then(|(_, rest)| rest.split_once("\"("));
        let word = statement.split(' ').next().unwrap_or_default();
        *seen.entry(verb.map_or(word, |(verb, _)| verb).to_owned()).or_default() += 1;
    }
    seen
}

/// What clients sent: the process that served them, and the statement.
fn sent(log: &str) -> impl Iterator<Item = (&str, &str)> {
    log.lines().filter_map(|line| {
        let (pid, said) = line.strip_prefix("tenure ")?.split_once(" LOG:  ")?;
        let (how, statement) = said.split_once(": ")?;
        (how == "statement" || how.starts_with("execute ")).then_some((pid, statement))
    })
}

/// How many connections clients have had.
fn connections(server: &Postgres) -> usize {
    sent(&server.log()).map(|(pid, _)| pid).collect::<HashSet<_>>().len()
}

/// How many clients were told that they are told: each says so on the connection for that, and then waits for whoever did not know.
fn told(server: &Postgres) -> usize {
    let log = server.log();
    let (mut channels, mut told) = (HashMap::<&str, &str>::new(), HashSet::<&str>::new());
    for (pid, statement) in sent(&log) {
        if let Some(channel) = statement.strip_prefix("LISTEN ") {
            channels.insert(pid, channel);
        } else if statement.contains("FOR SHARE") {
            told.extend(channels.get(pid).copied());
        }
    }
    told.len()
}

/// What was done since then.
fn since(before: &BTreeMap<String, usize>, after: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let more = |verb: &String, count: usize| count - before.get(verb).copied().unwrap_or(0);
    after.iter().map(|(verb, count)| (verb.clone(), more(verb, *count))).filter(|(_, count)| *count > 0).collect()
}

/// Two hundred wait for one name, in one client and in twenty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_two_statements_at_most() {
    const WAITERS: usize = 200;
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
        let listens = format!("SELECT count(*) = {clients} FROM tenure_client WHERE listens");
        eventually("everybody is told", || server.sql(&listens) == [["t"]]).await;
        // Not at once: one that fell silent while the machine stood still was given up, and may be there for a moment more.
        let mut connections = 0;
        let are_few = || {
            let there = server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'");
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
        // Whoever waits is heard once a second, whatever it waits for: that much more on a machine that is slow.
        let beats = clients * took.as_secs() as usize;
        assert!(seen.values().sum::<usize>() <= 2 * WAITERS + beats, "{seen:?} in {took:?}");
        let asks_and_ends: usize = ["ask", "ask_one", "end", "end_one"].iter().filter_map(|verb| whole.get(*verb)).sum();
        assert!(asks_and_ends <= 2 * WAITERS + 1, "{whole:?}"); // the first holder's end is one more
        drop(all);
    }
}

/// Whoever waits says so once a second, all waiters of a client in one statement; whoever does nothing costs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_many_waiters_makes_itself_heard_with_one_statement() {
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..100 {
        let name = format!("name {number}");
        held.push(holder.mutex(&name).unwrap().ttl(LONG).unwrap().lock().await.unwrap());
        let mutex = waiter.mutex(&name).unwrap().ttl(LONG).unwrap().keep(false); // so it is let in for all of it
        waiting.spawn(async move { mutex.lock().await.unwrap() });
    }
    line_is(&server, 100).await;
    eventually("both are told", || told(&server) == 2).await;
    // A machine that stands still may cost a connection. To make another takes more than a beat, and may take until the next
    // measure: then it is measured again.
    let (mut tries, mut was_made) = (0, false);
    let (took, seen) = loop {
        let (known, before, began) = (connections(&server), statements(&server), Instant::now());
        tokio::time::sleep(Duration::from_secs(4)).await;
        let (took, seen) = (Instant::now().since(began), since(&before, statements(&server)));
        eprintln!("100 waiters for {took:?}: {seen:?}");
        let is_made = connections(&server) > known;
        tries += 1;
        if tries == 5 || !(is_made || was_made) {
            break (took, seen);
        }
        was_made = is_made;
    };
    // One beat a second of the one, and now and then a look for messages of the other.
    let touches = seen.get("touch").copied().unwrap_or(0);
    assert!(touches as f64 <= took.as_secs_f64() * 1.2 + 4.0, "{seen:?} in {took:?}");
    assert_eq!(seen.values().sum::<usize>(), touches, "{seen:?}");
    drop(held);
    while let Some(served) = in_time("everybody is served", waiting.join_next()).await {
        served.unwrap().release().await.unwrap();
    }
    // Names that were let go of are removed a moment later; then there is nothing to do.
    eventually("nothing is left to do", || server.sql("SELECT count(*) FROM tenure_name") == [["0"]]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = statements(&server);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(since(&before, statements(&server)), BTreeMap::new(), "nobody holds, nobody waits");
}

/// What the server does for one hand-over does not grow with the line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_hand_over_does_not_grow_with_the_line() {
    let mut first: Option<Work> = None;
    for waiters in [10, 1_000, 5_000] {
        let work = hand_overs(waiters).await;
        eprintln!("{waiters} waiters, {HAND_OVERS} hand-overs: {work:?}");
        let few = *first.get_or_insert(work);
        assert_eq!((work.written, work.scanned), (few.written, few.scanned), "with {waiters} waiters");
        // An index has another level now and then; and rows that are gone are still seen for a while.
        assert!(work.read <= few.read + 2 * HAND_OVERS, "{work:?} with {waiters} waiters");
        assert!(work.pages <= few.pages * 3 / 2, "{work:?} with {waiters} waiters");
    }
}

const HAND_OVERS: u64 = 8;

/// What was done to our tables.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Rows that were added, changed or removed.
    written: u64,
    /// Rows that were found through an index.
    read: u64,
    /// Rows that were found by walking a whole table.
    scanned: u64,
    /// Pages of tables and indexes that were looked at.
    pages: u64,
}

/// What so many hand-overs do in the server when so many wait.
async fn hand_overs(waiters: usize) -> Work {
    // Its clock can be set: that keeps the line alive though nobody speaks for it, and nobody disturbs the count.
    let server = Postgres::start(PostgresOptions::new().skewed().set("autovacuum", "off"));
    let claims: Vec<Claim> = (0..=waiters).map(|number| claim(Kind::FairMutex, number)).collect();
    let asker = backend(&server).await;
    asker.acquire(&claims[0], Wait::No).await.unwrap().expect("it is free");
    let mut asking = JoinSet::new();
    for claim in &claims[1..] {
        let (asker, claim) = (Arc::clone(&asker), claim.clone());
        asking.spawn(async move { asker.acquire(&claim, Wait::Forever).await });
    }
    line_is(&server, waiters).await;
    asking.shutdown().await; // none of them gives its place up
    server.step_clock(Step::Back(Duration::from_secs(7200)));
    let view = asker.view(&claims[0].name).await.unwrap();
    assert_eq!(view.line.len(), waiters);
    let in_order = view.line[..HAND_OVERS as usize - 1].iter().map(|waiter| {
        claims.iter().find(|claim| claim.id.fingerprint() == waiter.claim).expect("it is one of ours").clone()
    });
    let in_order: Vec<Claim> = std::iter::once(claims[0].clone()).chain(in_order).collect();
    drop(asker);
    let before = work(&server).await;
    let ender = backend(&server).await;
    for claim in &in_order {
        ender.release(claim).await.unwrap();
    }
    drop(ender);
    let after = work(&server).await;
    let left = server.sql("SELECT (SELECT count(*) FROM tenure_ticket WHERE waiting), held FROM tenure_name");
    assert_eq!(left, [[(waiters as u64 - HAND_OVERS).to_string(), "1".to_owned()]], "each let somebody in");
    Work {
        written: after.written - before.written,
        read: after.read - before.read,
        scanned: after.scanned - before.scanned,
        pages: after.pages - before.pages,
    }
}

/// What was done so far. A session's share is counted when it is over.
async fn work(server: &Postgres) -> Work {
    let theirs = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
    eventually("nobody is there", || server.sql(theirs) == [["0"]]).await;
    let sums = server.sql(
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del), sum(idx_tup_fetch), sum(seq_tup_read)
           FROM pg_stat_user_tables WHERE relname IN ('tenure_name', 'tenure_ticket', 'tenure_client');
         SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)
           FROM pg_statio_user_tables WHERE relname IN ('tenure_name', 'tenure_ticket', 'tenure_client')",
    );
    let [written, read, scanned, pages] =
        [&sums[0][0], &sums[0][1], &sums[0][2], &sums[1][0]].map(|sum| sum.parse().unwrap());
    Work { written, read, scanned, pages }
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

async fn line_is(server: &Postgres, long: usize) {
    let line = format!("SELECT count(*) = {long} FROM tenure_ticket WHERE waiting");
    eventually(&format!("{long} wait"), || server.sql(&line) == [["t"]]).await;
}
