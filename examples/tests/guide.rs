//! What `docs/fencing.md` shows, run: its Rust to the letter, its SQL and Lua as they stand there. Its shell is run by the command's tests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::put;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use mysql_async::TxOpts;
use mysql_async::prelude::Queryable as _;
use tenure::fence::Gate;
use tenure::http::{BuilderExt as _, FenceLayer};
use tenure::{Client, ErrorKind, Guard, Keys, Sequencer};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::servers::postgres::Postgres;
use tenure_testkit::servers::redis::Redis;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const GUIDE: &str = include_str!("../../docs/fencing.md");
const TABLE: &str = "CREATE TABLE account (id int PRIMARY KEY, balance int, fence bigint NOT NULL DEFAULT 0)";
const ROW: &str = "INSERT INTO account (id, balance) VALUES (7, 100)";

/// The guide's blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    GUIDE.split(&opening).skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect()
}

/// What the guide shows is what is run here: each of its Rust blocks is in this file, line by line.
#[test]
fn every_rust_block_is_run() {
    let lines = |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let here = lines(include_str!("guide.rs"));
    let blocks = blocks("rust");
    assert_eq!(blocks.len(), 7);
    for block in blocks {
        assert!(here.contains(&lines(block)), "docs/fencing.md shows what is not run here:\n{block}");
    }
}

/// Two who hold the lock one after the other, while the first one does not know.
async fn two_holders() -> Result<(Guard, Guard)> {
    let client = tenure::connect("memory://").await?;
    let first = hold(&client).await?;
    client.break_holds("account/7", None).await?;
    Ok((first, hold(&client).await?))
}

async fn hold(client: &Client) -> Result<Guard> {
    let guard = client.mutex("account/7")?.lock().await?;
    Ok(guard)
}

/// Whether a write was refused for coming too late.
fn is_late<T: std::fmt::Debug>(written: Result<T>) -> bool {
    let error = written.expect_err("it is too late");
    error.downcast_ref::<tenure::Error>().is_some_and(|error| error.kind() == ErrorKind::Lost)
}

#[tokio::test]
async fn a_table_in_postgresql() -> Result<()> {
    async fn write(db: &mut tokio_postgres::Client, guard: Sequencer) -> Result<()> {
        let mut tx = db.transaction().await?;
        tenure::postgres::fence(&mut tx, "account/7", &guard).check().await?; // ErrorKind::Lost: superseded by …
        tx.execute("UPDATE account SET balance = balance - 5 WHERE id = 7", &[]).await?;
        tx.commit().await?;
        Ok(())
    }
    let url = Postgres::shared().url();
    tenure::migrate(&url).await?;
    let (mut db, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    db.batch_execute(&format!("{TABLE}; {ROW}")).await?;
    let (first, second) = two_holders().await?;
    write(&mut db, first.sequencer()).await?;
    write(&mut db, second.sequencer()).await?;
    assert!(is_late(write(&mut db, first.sequencer()).await));
    assert_eq!(db.query_one("SELECT balance FROM account", &[]).await?.get::<_, i32>(0), 90);
    Ok(())
}

#[tokio::test]
async fn a_table_in_mariadb() -> Result<()> {
    async fn write(db: &mut mysql_async::Conn, guard: Sequencer) -> Result<()> {
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        tenure::mysql::fence(&mut tx, "account/7", &guard).check().await?;
        tx.query_drop("UPDATE account SET balance = balance - 5 WHERE id = 7").await?;
        tx.commit().await?;
        Ok(())
    }
    let url = MariaDb::shared().url();
    tenure::migrate(&url).await?;
    let mut db = mysql_async::Conn::from_url(&url).await?;
    db.query_drop(TABLE).await?;
    db.query_drop(ROW).await?;
    let (first, second) = two_holders().await?;
    write(&mut db, first.sequencer()).await?;
    write(&mut db, second.sequencer()).await?;
    assert!(is_late(write(&mut db, first.sequencer()).await));
    assert_eq!(db.query_first::<i32, _>("SELECT balance FROM account").await?, Some(90));
    Ok(())
}

#[tokio::test]
async fn a_table_in_sqlite() -> Result<()> {
    fn write(db: &mut rusqlite::Connection, guard: Sequencer) -> Result<()> {
        let tx = db.transaction()?;
        tenure::sqlite::fence(&tx, "account/7", &guard).check()?;
        tx.execute("UPDATE account SET balance = balance - 5 WHERE id = 7", [])?;
        tx.commit()?;
        Ok(())
    }
    let mut db = rusqlite::Connection::open_in_memory()?;
    db.execute_batch(&format!("{TABLE}; {ROW}"))?;
    let (first, second) = two_holders().await?;
    write(&mut db, first.sequencer())?;
    write(&mut db, second.sequencer())?;
    assert!(is_late(write(&mut db, first.sequencer())));
    assert_eq!(db.query_row("SELECT balance FROM account", [], |row| row.get::<_, i32>(0))?, 90);
    Ok(())
}

/// The column of one's own, as the guide writes it.
#[test]
fn a_column() -> Result<()> {
    let [update] = blocks("sql")[..] else { panic!("one block of SQL") };
    let db = rusqlite::Connection::open_in_memory()?;
    db.execute_batch(&format!("{TABLE}; {ROW}"))?;
    assert_eq!((db.execute(update, [])?, db.execute(update, [])?), (1, 1), "a holder writes many times");
    assert_eq!(db.execute(&update.replace("0001", "0002"), [])?, 1);
    assert_eq!(db.execute(update, [])?, 0, "superseded");
    Ok(())
}

#[test]
fn a_redis_key() {
    let [script] = blocks("lua")[..] else { panic!("one script") };
    let connect = || Redis::shared().connect().expect("the server is there");
    let write = |token: &str, value: &str| connect().call(&["EVAL", script, "1", "report", token, value]);
    assert_eq!(write("1731664000000001", "one").unwrap().text(), "OK");
    assert_eq!(write("1731664000000001", "one, again").unwrap().text(), "OK");
    assert_eq!(write("1731664000000002", "two").unwrap().text(), "OK");
    let late = format!("{:?}", write("1731664000000001", "late"));
    assert!(late.contains("STALE superseded by 1731664000000002"), "{late}");
    assert_eq!(connect().call(&["HGET", "report", "value"]).unwrap().text(), "two");
}

#[tokio::test]
async fn an_http_api() -> Result<()> {
    async fn save(_body: String) {}
    async fn serve(listener: TcpListener, fence_url: String, keys: Keys) -> Result<()> {
        let gate = Gate::new(tenure::fence(fence_url).await?).keys(keys); // file:///var/lib/invoices/fence
        let app = Router::new().route("/invoices/{id}", put(save)).layer(FenceLayer::named_by(gate, |request| {
            let id: u64 = request.uri.path().strip_prefix("/invoices/")?.parse().ok()?;
            Some(format!("invoices/{id}"))
        }));
        axum::serve(listener, app).await?;
        Ok(())
    }
    async fn write(client: &Client, sender: &mut SendRequest<Full<Bytes>>) -> Result<(Guard, StatusCode)> {
        let text = Full::from("new text");
        let guard = client.mutex("invoices/7")?.lock().await?;
        let request = Request::put("/invoices/7").header("host", "invoices.example").fenced(&guard).body(text)?;
        let response = sender.send_request(request).await?; // 412: the lock was lost. Stop, and take it anew
        Ok((guard, response.status()))
    }
    async fn sender(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
        let (sender, connection) = handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
    let dir = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let keys = Keys::generate("2026-11")?;
    tokio::spawn(serve(listener, format!("file://{}/fence", dir.path().display()), keys.clone()));

    let client = tenure::connect("memory://").await?.signed_with(keys);
    let (first, status) = write(&client, &mut sender(address).await?).await?;
    assert_eq!(status, StatusCode::OK);
    client.break_holds("invoices/7", None).await?;
    let (_second, status) = write(&client, &mut sender(address).await?).await?;
    assert_eq!(status, StatusCode::OK);
    let late = Request::put("/invoices/7").header("host", "invoices.example").fenced(&first).body(Full::from("late"))?;
    let late = sender(address).await?.send_request(late).await?;
    assert_eq!(late.status(), StatusCode::PRECONDITION_FAILED);
    Ok(())
}

#[tokio::test]
async fn what_one_process_writes() -> Result<()> {
    async fn write(fence_url: &str, sequencer: Sequencer, text: Arc<Mutex<String>>) -> Result<()> {
        let gate = Gate::new(tenure::fence(fence_url).await?);
        gate.write("report", &sequencer, async move { text.lock().await.push_str("a line\n") }).await?;
        Ok(())
    }
    let dir = tempfile::tempdir()?;
    let (url, text) = (format!("file://{}/fence", dir.path().display()), Arc::<Mutex<String>>::default());
    let sequencer = |token: u64| format!("tenure1:mutex:exclusive:{token}:0:report").parse::<Sequencer>();
    write(&url, sequencer(1)?, Arc::clone(&text)).await?;
    write(&url, sequencer(2)?, Arc::clone(&text)).await?;
    assert!(is_late(write(&url, sequencer(1)?, Arc::clone(&text)).await));
    assert_eq!(*text.lock().await, "a line\na line\n");
    Ok(())
}
