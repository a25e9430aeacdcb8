//! What roles with few rights can do to those who lock.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Client, Environment};
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions, Session};
use tenure_testkit::{eventually, in_time};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn open(url: &str) -> Arc<dyn Backend> {
    let patient = format!("{url}?answer_limit=20s").parse().unwrap();
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
    assert_eq!(client(&server.url_as("viewer", "", "postgres")).await.view("x").await.unwrap().line.len(), 1, "it may look");
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
