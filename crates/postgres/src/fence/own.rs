//! The fence on a connection of its own, for resources that are not in the database: the row is the same as in [`super::fence()`].
//!
//! Who can interleave: everybody, between statements. Each statement is a transaction of its own: of two that raise one row the
//! second waits for the first one's commit, and compares with what that wrote.

use std::sync::Arc;
use std::time::Duration;
use tenure_core::backend::async_trait;
use tenure_core::fence::{Fence, Marks, Raised};
use tenure_core::lease::{Failure, Listener};
use tenure_core::{Error, LockName, Result, StoreUrl};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::Settings;
use crate::connect::Nobody;
use crate::link::Link;
use crate::owner::refuse_strangers;
use crate::schema::Layout;
use crate::verbs::Request;

/// Opens the fence in the database that a URL names. Of all tables only `tenure_fence` is needed; it is made if it is not there and
/// the user may make it.
///
/// ```no_run
/// # async fn example() -> tenure_core::Result<()> {
/// # use tenure_core::{LockName, Token, fence::Rule};
/// let fence = tenure_postgres::open_fence(&"postgres://app:secret@db.example/app".parse()?).await?;
/// assert!(fence.advance(&LockName::new("account/7")?, Token::new(34), Rule::ANY).await?.is_accepted());
/// # Ok(()) }
/// ```
///
/// It needs `SELECT`, `INSERT` and `UPDATE` on that table, and no right to lock.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but perhaps the table.
pub async fn open_fence(url: &StoreUrl) -> Result<Arc<dyn Fence>> {
    let settings = Arc::new(Settings::from_url(url)?);
    let layout = settings.check()?;
    let nobody: Arc<dyn Listener> = Arc::new(Nobody);
    let link = Link::new(&settings, &nobody, false);
    prepare(&link, &settings, &layout).await?;
    let statements = Statements::new(&layout);
    Ok(Arc::new(Raised(Rows { link, settings, statements })))
}

/// Sees to it that the table is there.
async fn prepare(link: &Link, settings: &Settings, layout: &Layout) -> Result<()> {
    let live = link.live().await?;
    refuse_strangers(&live, settings, layout).await?;
    let sql = layout.fill("SELECT to_regclass('{SCHEMA}.{PREFIX}fence') IS NOT NULL");
    let rows = live.read(&sql, "looking for the fence's table").await?;
    if rows.first().and_then(|row| row.try_get(0).ok()) == Some(true) {
        return Ok(());
    }
    let made = live.batch(&layout.one_at_a_time(&layout.fence_ddl()), "making the fence's table").await;
    made.map_err(|failure| absent(failure, settings, layout))
}

fn absent(failure: Failure, settings: &Settings, layout: &Layout) -> Error {
    if failure.error.is_transient() {
        return failure.error;
    }
    let what = format!("the fence's table {} is not there and could not be made", layout.full("fence").replace('"', ""));
    let user = settings.user.as_deref().unwrap_or("USER");
    let hint = format!(
        "As a user who may make it, run `tenure migrate --store URL`, or {} Then grant this user: {}",
        layout.fence_ddl().lines().skip_while(|line| !line.starts_with("CREATE TABLE")).collect::<Vec<_>>().join(" "),
        layout.fence_grants(&format!("\"{user}\"")).join(" ")
    );
    Error::new(failure.error.kind(), what).with_store(settings.describe()).with_source(failure.error).with_hint(hint)
}

/// The rows of the table `fence`.
struct Rows {
    link: Link,
    settings: Arc<Settings>,
    statements: Statements,
}

/// With the table's name in them.
struct Statements {
    raise: String,
    raise_from: String,
    look: String,
    probe: String,
}

impl Statements {
    fn new(layout: &Layout) -> Self {
        Statements {
            // Whoever cannot raise it does not even try: an upsert that changes nothing still locks the row, and its commit waits
            // for the disk as if it had.
            raise: layout.fill(
                "INSERT INTO {fence} AS f (name, token) \
                 SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM {fence} WHERE name = $1 AND token >= $2) \
                 ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE excluded.token > f.token RETURNING true",
            ),
            raise_from: layout
                .fill("UPDATE {fence} SET token = $2 WHERE name = $1 AND token < $2 AND token >= $3 RETURNING true"),
            look: layout.fill("SELECT token FROM {fence} WHERE name = $1"),
            // The row without a name, which no lock has.
            probe: layout.fill(
                "INSERT INTO {fence} AS f (name, token) VALUES ($1, $2) \
                 ON CONFLICT (name) DO UPDATE SET token = excluded.token RETURNING true",
            ),
        }
    }
}

impl Rows {
    async fn send(&self, request: Request<'_>) -> Result<Vec<Row>, Failure> {
        self.link.live().await?.send(&request, "showing a token to the fence").await
    }
}

#[async_trait]
impl Marks for Rows {
    fn describe(&self) -> String {
        self.settings.describe()
    }

    fn limit(&self) -> Duration {
        self.settings.answer_limit
    }

    async fn raise(&self, name: &LockName, token: i64, least: Option<i64>) -> Result<bool, Failure> {
        let request = match least {
            None => Request::new(&self.statements.raise),
            Some(_) => Request::new(&self.statements.raise_from),
        };
        let request = request.arg(name.as_str(), Type::TEXT).arg(token, Type::INT8);
        let request = least.into_iter().fold(request, |request, least| request.arg(least, Type::INT8));
        Ok(!self.send(request).await?.is_empty())
    }

    async fn look(&self, name: &LockName) -> Result<Option<i64>, Failure> {
        let rows = self.send(Request::new(&self.statements.look).arg(name.as_str(), Type::TEXT)).await?;
        Ok(rows.first().and_then(|row| row.try_get(0).ok()))
    }

    async fn probe(&self, number: i64) -> Result<(), Failure> {
        let request = Request::new(&self.statements.probe).arg("", Type::TEXT).arg(number, Type::INT8);
        self.send(request).await.map(drop)
    }
}
