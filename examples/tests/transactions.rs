//! What `docs/transactions.md` shows, run: its Rust to the letter, its SQL as it stands there.

use mysql_async::TxOpts;
use mysql_async::prelude::Queryable as _;
use tenure::retry::Retries;
use tenure::{Client, ErrorKind};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::servers::postgres::Postgres;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const GUIDE: &str = include_str!("../../docs/transactions.md");
const STOCK: &str = "CREATE TABLE stock (item varchar(20) PRIMARY KEY, pieces int, version bigint NOT NULL DEFAULT 0)";
const LAMPS: &str = "INSERT INTO stock (item, pieces) VALUES ('lamp', 10)";
const ACCOUNT: &str = "CREATE TABLE account (id int PRIMARY KEY, balance int, fence bigint NOT NULL DEFAULT 0)";
const ROW: &str = "INSERT INTO account (id, balance) VALUES (7, 100)";

/// The guide's blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let opening = format!("```{language}\n");
    GUIDE.split(&opening).skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect()
}

/// Each of its Rust blocks is in this file, line by line.
#[test]
fn every_rust_block_is_run() {
    let lines = |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    let here = lines(include_str!("transactions.rs"));
    let blocks = blocks("rust");
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        assert!(here.contains(&lines(block)), "docs/transactions.md shows what is not run here:\n{block}");
    }
}

async fn postgres(prefix: &str) -> Result<(tokio_postgres::Client, String)> {
    let plain = Postgres::shared().url();
    tenure::migrate(&plain).await?;
    let (db, connection) = tokio_postgres::connect(&plain, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    // Tables of this test's own; the locks' are beside them.
    db.batch_execute(&format!("CREATE SCHEMA {prefix}; SET search_path = {prefix}, public")).await?;
    db.batch_execute(&format!("{STOCK}; {LAMPS}; {ACCOUNT}; {ROW}")).await?;
    Ok((db, plain))
}

/// Whether somebody else has the name.
async fn is_locked(client: &Client) -> Result<bool> {
    Ok(client.mutex("stock/lamp")?.try_lock().await?.is_none())
}

#[tokio::test]
async fn in_a_transaction_of_postgresql() -> Result<()> {
    async fn sell(db: &mut tokio_postgres::Client) -> Result<u64> {
        let mut tx = db.transaction().await?;
        let held = tenure::postgres::in_transaction(&mut tx, "stock/lamp").lock().await?;
        tx.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'", &[]).await?;
        tx.commit().await?; // and the lock is free
        Ok(held.token.get())
    }
    let (mut db, url) = postgres("guide_tx").await?;
    let client = tenure::connect(&url).await?;
    let (first, second) = (sell(&mut db).await?, sell(&mut db).await?);
    assert!(first < second && !is_locked(&client).await?);
    assert_eq!(db.query_one("SELECT pieces FROM stock", &[]).await?.get::<_, i32>(0), 8);
    Ok(())
}

#[tokio::test]
async fn in_a_transaction_of_mariadb() -> Result<()> {
    async fn sell(db: &mut mysql_async::Conn) -> Result<u64> {
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        let held = tenure::mysql::in_transaction(&mut tx, "stock/lamp").first().lock().await?;
        tx.query_drop("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'").await?;
        tx.commit().await?;
        Ok(held.token.get())
    }
    let url = MariaDb::shared().url();
    tenure::migrate(&url).await?;
    let client = tenure::connect(&url).await?;
    let mut db = mysql_async::Conn::from_url(&url).await?;
    for statement in [STOCK, LAMPS, ACCOUNT, ROW] {
        db.query_drop(statement).await?;
    }
    let (first, second) = (sell(&mut db).await?, sell(&mut db).await?);
    assert!(first < second && !is_locked(&client).await?);
    assert_eq!(db.query_first::<i32, _>("SELECT pieces FROM stock").await?, Some(8));

    for statement in [sql_of("-- MySQL, MariaDB", second), sql_of("-- Anywhere", second)].concat() {
        db.query_drop(statement).await?;
    }
    assert_eq!(db.query_first::<i32, _>("SELECT balance FROM account").await?, Some(90));
    Ok(())
}

#[test]
fn in_a_transaction_of_sqlite() -> Result<()> {
    fn sell(mut db: rusqlite::Connection, path: &std::path::Path) -> Result<u64> {
        tenure::sqlite::attach(&db, path)?; // the locks' file; once per connection
        let (tx, held) = tenure::sqlite::begin(&mut db, "stock/lamp").lock()?;
        tx.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'", [])?;
        tx.commit()?;
        Ok(held.token.get())
    }
    let dir = tempfile::tempdir()?;
    let open = || rusqlite::Connection::open(dir.path().join("shop.db"));
    open()?.execute_batch(&format!("{STOCK}; {LAMPS}"))?;
    let locks = dir.path().join("locks.db");
    let (first, second) = (sell(open()?, &locks)?, sell(open()?, &locks)?);
    assert!(first < second);
    assert_eq!(open()?.query_row("SELECT pieces FROM stock", [], |row| row.get::<_, i32>(0))?, 8);
    Ok(())
}

/// The statements of the guide's SQL block that follow a comment, with another token.
fn sql_of(comment: &str, token: u64) -> Vec<String> {
    let [block] = blocks("sql")[..] else { panic!("there is one block of SQL") };
    let part = block.split("\n\n").find(|part| part.starts_with(comment)).expect("it is in the guide");
    let text: String = part.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join(" ");
    let statements = text.replace("1731664000000001", &token.to_string());
    statements.split_terminator(';').map(|statement| statement.trim().to_owned()).collect()
}

#[tokio::test]
async fn fenced_writes() -> Result<()> {
    async fn write(client: &Client, db: &mut tokio_postgres::Client) -> Result<u64> {
        let guard = client.mutex("account/7")?.lock().await?;
        let mut tx = db.transaction().await?;
        tenure::postgres::fence(&mut tx, "account/7", &guard).check().await?; // ErrorKind::Lost: superseded by …
        tx.execute("UPDATE account SET balance = balance - 5 WHERE id = 7", &[]).await?;
        tx.commit().await?;
        Ok(guard.token().get())
    }
    let (mut db, _) = postgres("guide_fence").await?;
    let client = tenure::connect("memory://").await?;
    let first = write(&client, &mut db).await?;
    let second = write(&client, &mut db).await?;
    let balance = "SELECT balance FROM account";

    let late = sql_of("-- PostgreSQL", first).join("; ");
    let refused = db.batch_execute(&late).await.expect_err("it is too late");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("superseded")), "{refused:?}");
    db.batch_execute("ROLLBACK").await?;
    assert_eq!(db.query_one(balance, &[]).await?.get::<_, i32>(0), 90);
    db.batch_execute(&sql_of("-- PostgreSQL", second).join("; ")).await?;
    assert_eq!(db.query_one(balance, &[]).await?.get::<_, i32>(0), 85);
    for (token, rows) in [(second, 1), (first, 0)] {
        assert_eq!(db.execute(&sql_of("-- Anywhere", token)[0], &[]).await?, rows, "no row changed means refused");
    }
    let late = client.mutex("account/7")?.lock().await?; // a holder whose successor was faster
    let mut tx = db.transaction().await?;
    tenure::postgres::fence(&mut tx, "account/7", &late).check().await?;
    tx.commit().await?;
    let mut tx = db.transaction().await?;
    let earlier = tenure::Sequencer { token: tenure::Token::new(second), ..late.sequencer() };
    let refused = tenure::postgres::fence(&mut tx, "account/7", earlier).check().await.expect_err("it is too late");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    Ok(())
}

#[tokio::test]
async fn a_version_instead() -> Result<()> {
    async fn sell(client: &Client) -> Result<Option<u8>> {
        let stock = client.cell("stock/lamp")?;
        let sold = stock.update(|left| Some(vec![left?[0].checked_sub(1)?])).await?; // tried up to 64 times, with random pauses
        Ok(sold.map(|(left, _)| left.expect("it was written")[0]))
    }
    async fn sell_from_a_table(db: &tokio_postgres::Client, item: &str) -> Result<()> {
        let mut retries = Retries::new(); // of tenure::retry
        loop {
            let row = db.query_one("SELECT pieces, version FROM stock WHERE item = $1", &[&item]).await?;
            let (pieces, version): (i32, i64) = (row.get(0), row.get(1));
            let sql = "UPDATE stock SET pieces = $2, version = version + 1 WHERE item = $1 AND version = $3";
            match db.execute(sql, &[&item, &(pieces - 1), &version]).await {
                Ok(0) => retries.pause().await?, // overtaken: read again
                Ok(_) => break,
                Err(error) if tenure::postgres::is_conflict(&error) => retries.pause().await?, // overtaken, in the server's words
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
    let client = tenure::connect("memory://").await?;
    client.cell("stock/lamp")?.set_if(0, [2]).await?;
    assert_eq!([sell(&client).await?, sell(&client).await?, sell(&client).await?], [Some(1), Some(0), None]);

    let (db, _) = postgres("guide_version").await?;
    let one = || sell_from_a_table(&db, "lamp");
    tokio::try_join!(one(), one(), one())?; // they read before any of them has written
    assert_eq!(db.query_one("SELECT pieces FROM stock", &[]).await?.get::<_, i32>(0), 7);
    Ok(())
}
