//! Selling the last item: locks that sell each item once, and no lock, which does not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use tenure_core::retry::Retries;
use tenure_core::{Client, Environment};
use tenure_mysql::{in_transaction, is_conflict};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::shops::{ITEMS, meet, order, pause, sell, sell_from_cell, sold};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The database, and the prefix of a test's own tables in it; as a text for other processes, `prefix url`.
struct Place {
    prefix: String,
    url: String,
}

impl Place {
    async fn client(&self) -> Client {
        // Nine processes begin at once here, and have time for it.
        let url = format!("{}?prefix={}&connect_limit=60s&answer_limit=60s", self.url, self.prefix);
        let backend = tenure_mysql::connect(&url.parse().unwrap()).await.unwrap();
        Client::with_environment(backend, Environment::real()).unwrap()
    }

    async fn connect(&self) -> Conn {
        Conn::new(Opts::from_url(&self.url).unwrap()).await.unwrap()
    }

    async fn pieces(&self, db: &mut impl Queryable) -> Result<i32> {
        Ok(db.query_first(format!("SELECT pieces FROM {}stock", self.prefix)).await?.expect("a row"))
    }

    async fn write(&self, db: &mut impl Queryable, pieces: i32) -> Result<()> {
        Ok(db.query_drop(format!("UPDATE {}stock SET pieces = {pieces}", self.prefix)).await?)
    }
}

async fn in_one_way(way: &str) -> u32 {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("l{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    let place = Place { prefix, url: MariaDb::shared().url() };
    let client = place.client().await;
    client.cell("stock").unwrap().set_if(0, ITEMS.to_string()).await.unwrap().unwrap();
    let mut db = place.connect().await;
    let prefix = &place.prefix;
    db.query_drop(format!("CREATE TABLE {prefix}stock (pieces INT, version INT)")).await.unwrap();
    db.query_drop(format!("INSERT INTO {prefix}stock VALUES ({ITEMS}, 1)")).await.unwrap();
    let started = Instant::now();
    let sold = sell(way, &format!("{prefix} {}", place.url));
    eprintln!("MariaDB, {way}: {sold} of {ITEMS} sold in {:?}", started.elapsed());
    if way != "cell" {
        assert_eq!(place.pieces(&mut db).await.unwrap(), 0);
    }
    sold
}

#[tokio::test]
async fn a_mutex_sells_each_item_once() {
    assert_eq!(in_one_way("mutex").await, ITEMS);
}

#[tokio::test]
async fn a_lock_in_the_transaction_sells_each_item_once() {
    assert_eq!(in_one_way("transaction").await, ITEMS);
}

#[tokio::test]
async fn a_cell_sells_each_item_once() {
    assert_eq!(in_one_way("cell").await, ITEMS);
}

#[tokio::test]
async fn a_version_column_sells_each_item_once() {
    assert_eq!(in_one_way("version column").await, ITEMS);
}

#[tokio::test]
async fn without_a_lock_items_are_sold_twice() {
    let sold = in_one_way("no lock").await;
    assert!(sold > ITEMS, "eight have read the same number before any of them wrote: {sold}");
}

/// One process: sells until nothing is left.
#[tokio::test]
async fn shop() {
    let Some((way, place)) = order() else { return };
    let (prefix, url) = place.split_once(' ').unwrap();
    let place = Place { prefix: prefix.to_owned(), url: url.to_owned() };
    let (client, mut db) = (place.client().await, place.connect().await);
    if way != "no lock" {
        meet();
    }
    let mut count = 0;
    while sell_one(&way, &client, &place, &mut db, count).await.unwrap() {
        count += 1;
    }
    sold(count);
}

/// Sells one more, if there is one. `count`: how many this process has sold so far.
async fn sell_one(way: &str, client: &Client, place: &Place, db: &mut Conn, count: u32) -> Result<bool> {
    match way {
        "mutex" => {
            // Nobody renews it, so whoever waited has it for the whole ttl too: nothing else protects the stock.
            let guard = client.mutex("stock")?.ttl(Duration::from_secs(600))?.keep(false).lock().await?;
            let left = place.pieces(db).await? - 1;
            if left >= 0 {
                place.write(db, left).await?;
            }
            guard.release().await?;
            Ok(left >= 0)
        }
        "transaction" => {
            let mut tx = db.start_transaction(TxOpts::default()).await?;
            in_transaction(&mut tx, "stock").prefix(&place.prefix).first().lock().await?;
            let left = place.pieces(&mut tx).await? - 1;
            if left >= 0 {
                place.write(&mut tx, left).await?;
            }
            tx.commit().await?;
            Ok(left >= 0)
        }
        "cell" => Ok(sell_from_cell(client, count).await?),
        "version column" => {
            let mut retries = Retries::new();
            loop {
                let sql = format!("SELECT pieces, version FROM {}stock", place.prefix);
                let (left, version): (i32, i32) = db.query_first(sql).await?.expect("a row");
                if left == 0 {
                    return Ok(false);
                }
                let table = format!("{}stock", place.prefix);
                let sql = format!("UPDATE {table} SET pieces = ?, version = version + 1 WHERE version = ?");
                match db.exec_iter(sql, (left - 1, version)).await.map(|done| done.affected_rows()) {
                    Ok(0) => pause(&mut retries).await,
                    Ok(_) => return Ok(true),
                    Err(error) if is_conflict(&error) => pause(&mut retries).await,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        _ => {
            let left = place.pieces(db).await? - 1;
            if count == 0 {
                meet(); // everybody has read, nobody has written
            }
            if left >= 0 {
                place.write(db, left).await?;
            }
            Ok(left >= 0)
        }
    }
}
