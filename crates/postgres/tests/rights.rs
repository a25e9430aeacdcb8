//! What roles with few rights can do to those who lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::Level;
use tenure_core::{Backend, Client, Environment, ErrorKind};
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions, Session};
use tenure_testkit::{eventually, eventually_async, in_time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn open(url: &str) -> Arc<dyn Backend> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let patient = format!("{url}{separator}answer_limit=20s").parse().unwrap();
    tenure_postgres::connect(&patient).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn client(url: &str) -> Client {
    Client::with_environment(open(url).await, Environment::real()).unwrap()
}

/// A server where `app` made the tables and locks, and `viewer` may read every table, which is more than the documentation grants it.
async fn server_with_a_viewer() -> Postgres {
    let server = Postgres::start(PostgresOptions::new());
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE viewer LOGIN; GRANT CREATE ON SCHEMA public TO app");
    drop(open(&app(&server)).await);
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO viewer; GRANT pg_read_all_data, pg_monitor TO viewer");
    server
}

fn app(server: &Postgres) -> String {
    server.url_as("app", "", "postgres")
}

fn viewer(server: &Postgres) -> Session {
    let mut session = server.session().unwrap();
    session.sql("SET SESSION AUTHORIZATION viewer").unwrap();
    session
}

/// The id of the one waiter for a name, and its client's channel, as a viewer reads them.
async fn waiter(viewer: &mut Session, name: &str) -> (String, String) {
    let sql = format!(
        "SELECT t.id, 'tenure_' || lpad(to_hex(t.client), 16, '0') FROM tenure_ticket t JOIN tenure_client c USING (client) \
         WHERE t.name = '{name}' AND t.waiting AND c.listens"
    );
    let mut found = Vec::new();
    eventually("the waiter is told what happens", || {
        found = viewer.sql(&sql).unwrap();
        !found.is_empty()
    })
    .await;
    let [id, channel] = &found[0][..] else { panic!("{found:?}") };
    (id.clone(), channel.clone())
}

/// Everything that is sent to a channel, as anybody may hear it.
async fn listen(server: &Postgres, channel: &str) -> mpsc::UnboundedReceiver<String> {
    let (client, mut connection) = tokio_postgres::connect(&server.url_as("viewer", "", "postgres"), NoTls).await.unwrap();
    let (sender, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(said) = message {
                let _ = sender.send(said.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN \"{channel}\"")).await.unwrap();
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(client)
    }); // the connection is its
    heard
}

/// Notifications need no right, and a viewer knows the ids of claims. What it makes up lets nobody in: not with a number of its own, and
/// not with what it has heard the server say about another grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_forges_no_grant() {
    let server = server_with_a_viewer().await;
    let (holder, other) = (client(&app(&server)).await, client(&app(&server)).await);
    let mut viewer = viewer(&server);

    // What a true grant looks like.
    let first = holder.mutex("heard").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("heard").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let (heard_id, channel) = waiter(&mut viewer, "heard").await;
    let mut tap = listen(&server, &channel).await;
    first.release().await.unwrap();
    let let_in = in_time("it is let in", waiting).await.unwrap();
    let heard = in_time("others hear it", tap.recv()).await.unwrap();
    assert!(heard.starts_with(&format!("granted {heard_id} ")), "{heard}");
    let end = heard.split(' ').skip(3).collect::<Vec<_>>().join(" ");

    let keys = "SELECT count(*) FROM tenure_notify_key";
    assert_eq!(viewer.sql(keys).unwrap(), [["0"]], "it may read the table, and sees no row");
    assert_ne!(server.sql(keys), [["0"]]);

    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let (id, _) = waiter(&mut viewer, "x").await;
    let now = viewer.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").unwrap()[0][0].clone();
    let highest = i64::MAX;
    for forged in [
        format!("granted {id} {highest} {now} 3600000000"),
        format!("granted {id} {now} {now} 3600000000"),
        format!("granted {id} {highest} {end}"),
        format!("granted {id} {now} {end}"),
        heard.replace(&heard_id, &id),
    ] {
        viewer.sql(&format!("SELECT pg_notify('{channel}', '{forged}')")).unwrap();
    }
    // Messages come in order: whoever hears this one has heard those.
    assert_eq!(holder.ask("heard", "please").await.unwrap(), 1);
    in_time("the last message is heard", let_in.asked()).await;
    assert!(!waiting.is_finished(), "a made up message lets somebody in");
    let looks = client(&format!("{}?owner=app", server.url_as("viewer", "", "postgres"))).await;
    assert_eq!(looks.view("x").await.unwrap().line.len(), 1, "it may look");
    held.check().unwrap();
    let mine = held.token();
    held.release().await.unwrap();
    let theirs = in_time("it is let in", waiting).await.unwrap();
    assert!(theirs.token() > mine && theirs.token().get() < u64::from(u32::MAX) << 24, "{theirs:?}");
    let last = server.sql("SELECT last FROM tenure_name WHERE name = 'x'");
    assert_eq!(last, [[theirs.token().to_string()]]);
    theirs.release().await.unwrap();
    let_in.release().await.unwrap();
}

/// A server that is none: it wants the password in this way, and gives what it is told, to the end of the connection.
async fn asks_for_the_password(how: &'static [u8]) -> (u16, tokio::task::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let told = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = vec![0; stream.read_u32().await.unwrap() as usize - 4];
        stream.read_exact(&mut hello).await.unwrap();
        let length = 4 + how.len() as u32;
        stream.write_all(&[&b"R"[..], &length.to_be_bytes(), how].concat()).await.unwrap();
        let mut told = Vec::new();
        let mut part = [0; 256];
        while let Ok(many @ 1..) = stream.read(&mut part).await {
            told.extend(&part[..many]);
            if part[0] == b'p' {
                break;
            }
        }
        told
    });
    (port, told)
}

/// To whoever answers at the address of another host the password is told by SCRAM or not at all, on either kind of connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_not_told_to_whoever_asks() {
    const CLEAR: &[u8] = &[0, 0, 0, 3];
    const MD5: &[u8] = &[0, 0, 0, 5, b's', b'a', b'l', b't'];
    // 0.0.0.0 is this host too, but none that we take for it.
    for (host, opt_in, is_told) in
        [("0.0.0.0", "", false), ("0.0.0.0", "&insecure_login=yes", true), ("127.0.0.1", "", true), ("localhost", "", true)]
    {
        for how in [CLEAR, MD5] {
            let (port, told) = asks_for_the_password(how).await;
            let url = format!("postgres://app:swordfish@{host}:{port}/app?connect_limit=5s&answer_limit=5s{opt_in}");
            let connecting = async move { tenure_postgres::connect(&url.parse().unwrap()).await.map(drop) };
            let connecting = tokio::spawn(connecting);
            let told = in_time("it has its answer", told).await.unwrap();
            assert_eq!(!told.is_empty(), is_told, "{host}{opt_in}: {how:?}");
            if is_told {
                connecting.abort();
                continue;
            }
            let error = in_time("it is refused", connecting).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
            assert!(error.to_string().contains("insecure_login=yes"), "{error}");
        }
    }
    let server = Postgres::start(PostgresOptions::new().password("swordfish"));
    for liveness in ["lease", "session"] {
        let url = server.url().replace("127.0.0.1", "0.0.0.0");
        let url = format!("{url}?liveness={liveness}&prefix={liveness}_&answer_limit=20s");
        let backend = tenure_postgres::connect(&url.parse().unwrap()).await.unwrap();
        let client = Client::with_environment(backend, Environment::real()).unwrap();
        client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    }
}

/// Whoever made the functions has what is in them run by everybody who locks: nobody calls those of a stranger, nor makes the rest beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_functions_are_not_called() {
    let server = Postgres::start(PostgresOptions::new());
    server.sql("CREATE ROLE stranger LOGIN; CREATE ROLE app LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO stranger, app");
    let stranger = |sql: &str| {
        let mut session = server.session().unwrap();
        session.sql("SET SESSION AUTHORIZATION stranger").unwrap();
        session.sql(sql).unwrap();
    };
    let url_of = |user: &str, more: &str| format!("{}?answer_limit=20s{more}", server.url_as(user, "", "postgres"));
    let evil = |function: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION {function}() RETURNS bigint LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'it was called by %', current_user; END $$"
        )
    };
    // Nothing but one function; all of it; and a fence's table.
    stranger(&evil("some_clock"));
    tenure_postgres::migrate(&url_of("stranger", "&prefix=all_").parse().unwrap()).await.unwrap();
    stranger(&evil("all_clock"));
    stranger("GRANT ALL ON ALL TABLES IN SCHEMA public TO app");
    stranger("CREATE TABLE public.fence_fence (name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL)");
    for user in ["postgres", "app"] {
        for prefix in ["some_", "all_", "fence_"] {
            for liveness in ["lease", "session"] {
                let url = url_of(user, &format!("&prefix={prefix}&liveness={liveness}")).parse().unwrap();
                for outcome in [
                    tenure_postgres::connect(&url).await.map(drop),
                    tenure_postgres::migrate(&url).await,
                    tenure_postgres::open_fence(&url).await.map(drop),
                ] {
                    let error = outcome.expect_err(&format!("{user} trusts a stranger with {prefix}"));
                    assert!(error.to_string().contains("belongs, all or in part, to stranger"), "{user}, {prefix}: {error}");
                }
            }
        }
    }
    assert_eq!(
        server.sql("SELECT count(*) FROM pg_proc WHERE proname LIKE 'some\\_%'"),
        [["1"]],
        "nothing was made beside it"
    );

    // Its own are its own; and whoever says that it is no stranger believes it.
    let clock = "CREATE OR REPLACE FUNCTION all_clock() RETURNS bigint LANGUAGE sql AS \
                 'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint'";
    stranger(clock);
    for (user, more) in [("stranger", ""), ("app", "&owner=stranger"), ("postgres", "&owner=stranger")] {
        let url = url_of(user, &format!("&prefix=all_{more}"));
        let backend = tenure_postgres::connect(&url.parse().unwrap()).await.unwrap();
        let client = Client::with_environment(backend, Environment::real()).unwrap();
        let findings = client.examine().await.unwrap();
        let owner = findings.iter().find(|finding| finding.what == "owner").unwrap();
        assert!(owner.level == Level::Good && owner.says.starts_with("stranger: "), "{owner:?}");
        client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    }
    // Of whoever owns the database everybody in it is in the hand, but for superusers.
    server.sql("ALTER DATABASE postgres OWNER TO stranger");
    drop(tenure_postgres::connect(&url_of("app", "&prefix=all_").parse().unwrap()).await.unwrap());
    tenure_postgres::connect(&url_of("postgres", "&prefix=all_").parse().unwrap()).await.map(drop).unwrap_err();
}

/// Whoever may create anything in a schema of the search path can make operators and functions that fit better than PostgreSQL's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_operators_are_not_called() {
    let server = Postgres::start(PostgresOptions::new());
    for (number, (operator, left, right)) in [
        ("*", "numeric", "integer"),
        ("*", "double precision", "numeric"),
        ("*", "double precision", "integer"),
        ("*", "bigint", "interval"),
        ("&", "bigint", "integer"),
        ("/", "bigint", "numeric"),
    ]
    .into_iter()
    .enumerate()
    {
        server.sql(&format!(
            "CREATE FUNCTION public.evil{number}({left}, {right}) RETURNS {left} LANGUAGE plpgsql AS $$ BEGIN RAISE 'it is called'; END $$; \
             CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.evil{number})"
        ));
    }
    for function in
        ["hashtextextended(text, integer)", "nextval(text)", "lpad(text, integer, varchar)", "repeat(text, bigint)"]
    {
        server.sql(&format!(
            "CREATE FUNCTION public.{function} RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'it is called'; END $$"
        ));
    }
    for liveness in ["lease", "session"] {
        let url = format!("{}?prefix={liveness}_&liveness={liveness}", server.url());
        let backend = tenure_postgres::connect(&format!("{url}&answer_limit=20s").parse().unwrap()).await.unwrap();
        let client = Client::with_environment(backend, Environment::real()).unwrap();
        for kind in 0..2 {
            let (mutex, lock) = (client.mutex("x").unwrap(), client.rw_lock("y").unwrap());
            let (first, reader) = (mutex.lock().await.unwrap(), lock.read().await.unwrap());
            let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), lock.write().await.unwrap()) });
            eventually_async("it waits", async || client.view("x").await.unwrap().line.len() == 1).await;
            assert_eq!(client.list("", None, 9).await.unwrap().len(), 2);
            assert_eq!(client.ask("x", "please").await.unwrap(), 1);
            match kind {
                0 => first.release().await.unwrap(),
                _ => assert_eq!(client.break_holds("x", None).await.unwrap(), 1),
            }
            reader.release().await.unwrap();
            let (second, writer) = in_time("it is let in", waiting).await.unwrap();
            second.release().await.unwrap();
            writer.release().await.unwrap();
        }
        client.examine().await.unwrap();
        client.close().await.unwrap();
    }
}
