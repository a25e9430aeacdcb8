//! The suite every fence must pass, over a server that most cases share, each with a table of its own; and the rights it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mysql_async::{Conn, Opts, TxOpts};
use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{ErrorKind, LockName, Result, Token};
use tenure_mysql::{fence, open_fence};
use tenure_testkit::fences::FenceHarness;
use tenure_testkit::fences::writer;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("d{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

struct Table {
    prefix: String,
    /// One of its own, which may be killed.
    server: Option<MariaDb>,
}

impl Table {
    fn server(&self) -> &MariaDb {
        self.server.as_ref().unwrap_or_else(|| MariaDb::shared())
    }
}

impl FenceHarness for Table {
    async fn start() -> Self {
        Table { prefix: fresh_prefix(), server: None }
    }

    async fn start_alone() -> Self {
        Table { prefix: fresh_prefix(), server: Some(MariaDb::start(MariaDbOptions::new().fsync())) }
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        Self::open(&self.url().expect("it has one")).await.expect("the fence can be opened")
    }

    fn url(&self) -> Option<String> {
        Some(format!("{}?prefix={}", self.server().url(), self.prefix))
    }

    async fn open(url: &str) -> Result<Arc<dyn Fence>> {
        open_fence(&url.parse()?).await
    }

    fn crash(&self) -> bool {
        self.server().kill();
        self.server().restart();
        true
    }
}

tenure_testkit::fences!(mariadb => Table);

fn a() -> LockName {
    LockName::new("a").unwrap()
}

/// The user's own transaction and the fence on a connection of its own know of each other.
#[tokio::test]
async fn one_row_answers_both_ways() {
    let table = Table::start().await;
    let own = table.fence().await; // makes its table alone, and then come the others
    tenure_mysql::migrate(&table.url().unwrap().parse().unwrap()).await.unwrap();
    let mut db = Conn::new(Opts::from_url(&MariaDb::shared().url()).unwrap()).await.unwrap();
    let mut check = async |token| {
        let mut tx = db.start_transaction(TxOpts::default()).await.unwrap();
        let checked = fence(&mut tx, "a", writer("a", token)).prefix(&table.prefix).check().await;
        if checked.is_ok() {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        checked
    };
    assert!(own.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    assert_eq!(check(9).await.unwrap_err().kind(), ErrorKind::Lost);
    check(11).await.unwrap();
    let stale = Verdict::Stale { highest: Token::new(11) };
    assert_eq!(own.advance(&a(), Token::new(10), Rule::ANY).await.unwrap(), stale);
}

/// Nothing but the one table, and no right to lock; whoever lacks even that is told what to grant.
#[tokio::test]
async fn it_needs_its_own_table_and_no_right_to_lock() {
    let server = MariaDb::shared();
    let (user, prefix) = (format!("door{}", std::process::id()), fresh_prefix());
    let admin: tenure_core::StoreUrl = server.url().parse().unwrap();
    let database = admin.path().trim_start_matches('/');
    server.sql(&format!("CREATE USER {user} IDENTIFIED BY 'secret'"));
    server.sql(&format!("CREATE TABLE {prefix}other (x INT)"));
    server.sql(&format!("GRANT SELECT ON `{database}`.{prefix}other TO {user}")); // else it may not use the database at all
    let url = |url: String| format!("{url}?prefix={prefix}");
    let own = url(server.url_as(&user, "secret", database));
    let refused = Table::open(&own).await.err().expect("it may neither make nor see the table");
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    assert!(refused.hint().unwrap_or_default().contains("GRANT SELECT, INSERT, UPDATE ON"), "{refused}");
    Table::open(&url(server.url())).await.unwrap(); // as the administrator
    server.sql(&format!("GRANT SELECT, INSERT, UPDATE ON `{database}`.{prefix}fence TO {user}"));
    let tables = server.sql(&format!("SHOW TABLES LIKE '{}%'", prefix.replace('_', "\\_")));
    assert_eq!(tables.len(), 2, "its own and ours: {tables:?}");
    let fence = Table::open(&own).await.unwrap();
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    assert!(!fence.advance(&a(), Token::new(9), Rule::max_step(5)).await.unwrap().is_accepted());
    assert!(fence.advance(&a(), Token::new(12), Rule::max_step(5)).await.unwrap().is_accepted());
}

#[tokio::test]
async fn the_schema_prints_the_rights_of_a_fence() {
    let schema = tenure_mysql::schema(&tenure_mysql::Settings::default());
    assert!(schema.contains("--   GRANT SELECT, INSERT, UPDATE ON `tenure`.tenure_fence TO APP;"), "{schema}");
}
