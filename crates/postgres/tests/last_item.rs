//! Selling the last item: locks that sell each item once, and no lock, which does not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure_core::retry::Retries;
use tenure_core::{Client, Environment};
use tenure_postgres::{in_transaction, is_conflict};
use tenure_testkit::servers::postgres::Postgres;
use tenure_testkit::shops::{ITEMS, meet, order, pause, sell, sell_from_cell, sold};
use tokio_postgres::{GenericClient, NoTls};

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
        let backend = tenure_postgres::connect(&url.parse().unwrap()).await.unwrap();
        Client::with_environment(backend, Environment::real()).unwrap()
    }

    async fn connect(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn pieces(&self, db: &impl GenericClient) -> Result<i32> {
        Ok(db.query_one(&format!("SELECT pieces FROM {}stock", self.prefix), &[]).await?.get(0))
    }

    async fn write(&self, db: &impl GenericClient, pieces: i32) -> Result<()> {
        db.execute(&format!("UPDATE {}stock SET pieces = $1", self.prefix), &[&pieces]).await?;
        Ok(())
    }
}

async fn in_one_way(way: &str) -> u32 {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("l{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    let place = Place { prefix, url: Postgres::shared().url() };
    let client = place.client().await;
    client.cell("stock").unwrap().set_if(0, ITEMS.to_string()).await.unwrap().unwrap();
    let db = place.connect().await;
    let prefix = &place.prefix;
    let table =
        format!("CREATE TABLE {prefix}stock (pieces int, version int); INSERT INTO {prefix}stock VALUES ({ITEMS}, 1)");
    db.batch_execute(&table).await.unwrap();
    let started = Instant::now();
    let sold = sell(way, &format!("{prefix} {}", place.url));
    eprintln!("PostgreSQL, {way}: {sold} of {ITEMS} sold in {:?}", started.elapsed());
    if way != "cell" {
        assert_eq!(place.pieces(&db).await.unwrap(), 0);
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
async fn sell_one(way: &str, client: &Client, place: &Place, db: &mut tokio_postgres::Client, count: u32) -> Result<bool> {
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
            let mut tx = db.transaction().await?;
            in_transaction(&mut tx, "stock").prefix(&place.prefix).lock().await?;
            let left = place.pieces(&tx).await? - 1;
            if left >= 0 {
                place.write(&tx, left).await?;
            }
            tx.commit().await?;
            Ok(left >= 0)
        }
        "cell" => Ok(sell_from_cell(client, count).await?),
        "version column" => {
            let mut retries = Retries::new();
            loop {
                let row = db.query_one(&format!("SELECT pieces, version FROM {}stock", place.prefix), &[]).await?;
                let (left, version): (i32, i32) = (row.get::<_, i32>(0) - 1, row.get(1));
                if left < 0 {
                    return Ok(false);
                }
                let table = format!("{}stock", place.prefix);
                let sql = format!("UPDATE {table} SET pieces = $1, version = version + 1 WHERE version = $2");
                match db.execute(&sql, &[&left, &version]).await {
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
