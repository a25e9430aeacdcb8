//! The suite every fence must pass, over a server that most cases share, each with a table of its own; and the rights it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{ErrorKind, LockName, Result, Token};
use tenure_postgres::{fence, open_fence};
use tenure_testkit::fences::FenceHarness;
use tenure_testkit::fences::writer;
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions};
use tokio_postgres::NoTls;

fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("d{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

struct Table {
    prefix: String,
    /// One of its own, which may be killed.
    server: Option<Postgres>,
}

impl Table {
    fn server(&self) -> &Postgres {
        self.server.as_ref().unwrap_or_else(|| Postgres::shared())
    }
}

impl FenceHarness for Table {
    async fn start() -> Self {
        Table { prefix: fresh_prefix(), server: None }
    }

    async fn start_alone() -> Self {
        Table { prefix: fresh_prefix(), server: Some(Postgres::start(PostgresOptions::new().fsync())) }
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

tenure_testkit::fences!(postgres => Table);

fn a() -> LockName {
    LockName::new("a").unwrap()
}

/// The user's own transaction and the fence on a connection of its own know of each other.
#[tokio::test]
async fn one_row_answers_both_ways() {
    let table = Table::start().await;
    let own = table.fence().await; // makes its table alone, and then come the others
    tenure_postgres::migrate(&table.url().unwrap().parse().unwrap()).await.unwrap();
    let (mut db, connection) = tokio_postgres::connect(&Postgres::shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut check = async |token| {
        let mut tx = db.transaction().await.unwrap();
        let checked = fence(&mut tx, "a", writer("a", token)).prefix(&table.prefix).check().await;
        let _ = tx.commit().await;
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
    let server = Postgres::shared();
    let (role, prefix) = (format!("door{}", std::process::id()), fresh_prefix());
    server.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"));
    let url = |url: String| format!("{url}?prefix={prefix}");
    let own = url(server.url_as(&role, "secret", "postgres"));
    let refused = Table::open(&own).await.err().expect("it may not make the table");
    let hint = refused.hint().unwrap_or_default().to_owned();
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    assert!(hint.contains("CREATE TABLE") && hint.contains("GRANT SELECT, INSERT, UPDATE"), "{hint}");
    // As the administrator does what the hint says.
    Table::open(&url(server.url())).await.unwrap();
    let grants = hint.split("grant this user: ").nth(1).expect("the hint names them");
    server.sql(grants);
    let tables = server.sql(&format!("SELECT count(*) FROM pg_tables WHERE tablename LIKE '{prefix}%'"));
    assert_eq!(tables, [["1"]]);
    let fence = Table::open(&own).await.unwrap();
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    assert!(!fence.advance(&a(), Token::new(9), Rule::max_step(5)).await.unwrap().is_accepted());
    assert!(fence.advance(&a(), Token::new(12), Rule::max_step(5)).await.unwrap().is_accepted());
}

#[tokio::test]
async fn the_schema_prints_the_rights_of_a_fence() {
    let schema = tenure_postgres::schema(&tenure_postgres::Settings::default()).unwrap();
    assert!(schema.contains("--   GRANT SELECT, INSERT, UPDATE ON \"public\".\"tenure_fence\" TO \"app\";"), "{schema}");
    assert_eq!(schema.matches("CREATE TABLE IF NOT EXISTS \"public\".\"tenure_fence\"").count(), 1);
}
