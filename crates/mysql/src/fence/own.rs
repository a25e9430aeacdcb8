//! The fence on a connection of its own, for resources that are not in the database: the row is the same as in [`super::fence()`].
//!
//! Who can interleave: everybody, between statements. Each statement is a transaction of its own: of two that raise one row the
//! second waits for the first one's commit, and compares with what that wrote.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use tenure_core::backend::async_trait;
use tenure_core::fence::{Fence, Marks, Raised};
use tenure_core::lease::Failure;
use tenure_core::{LockName, Result, StoreUrl};

use crate::config::Settings;
use crate::connect::open;
use crate::error::{self, is_denied};
use crate::link::{Link, read_all};
use crate::schema::{fence_grants, fence_table};
use crate::verbs::{hex, number};

/// Opens the fence in the database that a URL names. Of all tables only `tenure_fence` is needed; it is made if it is not there and
/// the user may make it.
///
/// ```no_run
/// # async fn example() -> tenure_core::Result<()> {
/// # use tenure_core::{LockName, Token, fence::Rule};
/// let fence = tenure_mysql::open_fence(&"mysql://app:secret@db.example/app?tls=yes".parse()?).await?;
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
    prepare(&settings).await?;
    let link = Link::new(&settings, &Arc::default(), false);
    Ok(Arc::new(Raised(Rows { link, settings })))
}

/// Sees to it that the table is there.
async fn prepare(settings: &Settings) -> Result<()> {
    let mut conn = open(settings).await?;
    let look = format!("SELECT token FROM {}fence LIMIT 0", settings.prefix);
    match read_all(&mut conn, &look).await {
        Ok(_) => {}
        Err(failure) if error::code(&failure) == Some(error::NO_TABLE) => {
            let made = conn.query_drop(fence_table(&settings.prefix)).await;
            made.map_err(|failure| explain_create(failure, settings))?;
        }
        Err(failure) => return Err(explain(failure, settings, "looking for the fence's table")),
    }
    let _ = conn.disconnect().await;
    Ok(())
}

fn explain(failure: mysql_async::Error, settings: &Settings, doing: &str) -> tenure_core::Error {
    let denied = is_denied(&failure);
    let explained = error::explain(failure, settings, doing).error;
    match denied {
        true => explained.with_hint(format!("These are all the rights that a fence needs: {}", fence_grants(settings))),
        false => explained,
    }
}

fn explain_create(failure: mysql_async::Error, settings: &Settings) -> tenure_core::Error {
    let denied = is_denied(&failure);
    let explained = error::explain(failure, settings, "making the fence's table").error;
    if !denied {
        return explained;
    }
    let table = fence_table(&settings.prefix).split_whitespace().collect::<Vec<_>>().join(" ");
    explained.with_hint(format!(
        "As somebody who may, run `tenure migrate`, or {table}; then this user needs: {}",
        fence_grants(settings)
    ))
}

/// The rows of the table `fence`.
struct Rows {
    link: Link,
    settings: Arc<Settings>,
}

const DOING: &str = "showing a token to the fence";

impl Rows {
    /// Whether a statement changed anything. The connection is not told to count what it only found, see `config`.
    async fn changes(&self, statement: String) -> Result<bool, Failure> {
        Ok(self.link.change(DOING, statement).await? > 0)
    }

    fn upsert(&self, name: &[u8], token: i64, then: &str) -> String {
        let (prefix, name) = (&self.settings.prefix, hex(name));
        format!("INSERT INTO {prefix}fence (name, token) VALUES ({name}, {token}) ON DUPLICATE KEY UPDATE token = {then}")
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
        let bytes = name.as_str().as_bytes();
        let statement = match least {
            None => self.upsert(bytes, token, &format!("GREATEST(token, {token})")),
            Some(least) => format!(
                "UPDATE {}fence SET token = {token} WHERE name = {} AND token < {token} AND token >= {least}",
                self.settings.prefix,
                hex(bytes)
            ),
        };
        self.changes(statement).await
    }

    async fn look(&self, name: &LockName) -> Result<Option<i64>, Failure> {
        let statement =
            format!("SELECT token FROM {}fence WHERE name = {}", self.settings.prefix, hex(name.as_str().as_bytes()));
        let sets = self.link.send(DOING, |_| statement).await?;
        Ok(sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)))
    }

    /// To the row without a name, which no lock has.
    async fn probe(&self, number: i64) -> Result<(), Failure> {
        let statement = self.upsert(b"", number, &number.to_string());
        self.changes(statement).await.map(drop)
    }
}
