//! The fence on Redis: one key a name, which only one script writes, and which never expires.
//!
//! Who can interleave: nobody, within the script. What the server forgets (a restart without its append-only file, a failover to a
//! replica that lags, an eviction), the fence forgets: see GUARANTEES.

use std::sync::Arc;

use redis::{Cmd, Value};
use tenure_core::backend::async_trait;
use tenure_core::fence::{Fence, Rule, Verdict, storable};
use tenure_core::{Address, Error, ErrorKind, Instant, LockName, Result, StoreUrl, Token};
use tokio::runtime::Handle;

use crate::codec::Garbled;
use crate::config::{Settings, Topology};
use crate::examine::Server;
use crate::fleet::{Fleet, Lane};
use crate::link::Listener;
use crate::schema::Bucket;
use crate::scripts::{self, Script};

/// Opens the fence in the server, the master behind sentinels, or the cluster that a URL names. Nothing is listened to, and nothing
/// but its own keys is touched: the page of this crate has the ACL line of a user who may do this and nothing else.
///
/// A fence must not forget. A server that may throw away keys without an expiry (`maxmemory-policy allkeys-…`) is refused; whether it
/// writes down what it is told (`appendonly yes`, `appendfsync always`) is for its owner to see to. With `min_replicas` a token
/// counts when so many replicas have it.
///
/// ```no_run
/// # async fn example() -> tenure_core::Result<()> {
/// # use tenure_core::{LockName, Token, fence::Rule};
/// let fence = tenure_redis::open_fence(&"redis://cache.example".parse()?).await?;
/// assert!(fence.advance(&LockName::new("account/7")?, Token::new(34), Rule::ANY).await?.is_accepted());
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropped before it completes, nothing is left.
pub async fn open_fence(url: &StoreUrl) -> Result<Arc<dyn Fence>> {
    let settings = Settings::from_url(url)?;
    settings.check()?;
    if let Topology::Redlock(_) = settings.topology {
        return Err(Error::new(ErrorKind::Unsupported, "a fence cannot be kept by a vote of independent servers")
            .with_store(settings.describe())
            .with_hint("Keep it where the resource is: in one Redis, in a database, in a file"));
    }
    let fence = RedisFence { fleet: Fleet::deaf(Arc::new(settings), Arc::new(Nobody)) };
    fence.reach().await?;
    Ok(Arc::new(fence))
}

struct RedisFence {
    fleet: Fleet,
}

impl RedisFence {
    /// Connects to every server, to learn early what is wrong.
    async fn reach(&self) -> Result<()> {
        let limit = self.fleet.settings.connect_limit;
        for bucket in self.fleet.layout.buckets() {
            match tokio::time::timeout(limit, self.fleet.reach(bucket)).await {
                Ok(live) => self.keeps(&live?.server)?,
                Err(_) => return Err(self.fleet.silent(bucket, limit).error),
            }
        }
        Ok(())
    }

    /// Refuses a server that would throw the fence away when it is full.
    fn keeps(&self, server: &Server) -> Result<()> {
        match (server.maxmemory, server.policy.as_deref()) {
            (Some(1..), Some(policy)) if policy.starts_with("allkeys") => {
                let what = format!(
                    "the server throws any key away when it is full (maxmemory-policy {policy}): a fence would forget"
                );
                Err(Error::new(ErrorKind::Backend, what)
                    .with_store(self.fleet.settings.describe())
                    .with_hint("Set maxmemory-policy noeviction (volatile-… will do too), or use a server of its own"))
            }
            _ => Ok(()),
        }
    }

    async fn ask(&self, bucket: Bucket, script: Option<&'static Script>, command: &Cmd) -> Result<Value> {
        let Settings { min_replicas, answer_limit, .. } = *self.fleet.settings;
        let writes = script.is_some();
        let lane = if min_replicas > 0 && writes { Lane::SyncedAsks } else { Lane::Asks };
        let answer = self.fleet.insist(lane, bucket, script, command, answer_limit).await?;
        if writes && answer.replicas < min_replicas {
            let what = format!("{} of {min_replicas} replicas have the token", answer.replicas);
            return Err(Error::new(ErrorKind::Unavailable, what)
                .with_store(self.fleet.settings.describe())
                .with_hint("It may have been shown or not: show it again. Are the replicas connected?"));
        }
        Ok(answer.value)
    }

    async fn show(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        storable(token)?;
        let layout = &self.fleet.layout;
        let least = rule.needs(token);
        let mut command = scripts::FENCE.command(1, 1 + usize::from(least.is_some()), 128 + name.as_str().len());
        command.arg(layout.fence(name)).arg(digits(token));
        if let Some(least) = least {
            command.arg(digits(least));
        }
        match self.ask(layout.bucket(name), Some(&scripts::FENCE), &command).await? {
            Value::Int(1) => Ok(Verdict::Accepted),
            answer => Ok(match seen(answer)? {
                Some(highest) if highest > token => Verdict::Stale { highest },
                highest => Verdict::Implausible { highest },
            }),
        }
    }

    async fn look(&self, name: &LockName) -> Result<Option<Token>> {
        let mut command = redis::cmd("GET");
        command.arg(self.fleet.layout.fence(name));
        seen(self.ask(self.fleet.layout.bucket(name), None, &command).await?)
    }

    async fn write(&self, number: u64) -> Result<()> {
        let mut command = redis::cmd("SET");
        command.arg(self.fleet.layout.probe(0)).arg(digits(Token::new(number & i64::MAX as u64)));
        let limit = self.fleet.settings.answer_limit;
        let lane = if self.fleet.settings.min_replicas > 0 { Lane::SyncedAsks } else { Lane::Asks };
        self.fleet.insist(lane, 0, None, &command, limit).await?;
        Ok(())
    }
}

#[async_trait]
impl Fence for RedisFence {
    fn describe(&self) -> String {
        self.fleet.settings.describe()
    }

    async fn advance(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        self.show(name, token, rule).await.map_err(|error| error.with_name(name))
    }

    async fn highest(&self, name: &LockName) -> Result<Option<Token>> {
        self.look(name).await.map_err(|error| error.with_name(name))
    }

    async fn probe(&self, number: u64) -> Result<()> {
        self.write(number).await
    }
}

/// As many digits as the highest token has.
fn digits(token: Token) -> String {
    format!("{:019}", token.get())
}

/// What a key holds: digits of ours, or nothing.
fn seen(answer: Value) -> Result<Option<Token>> {
    let garbled = || Error::from(Garbled("the key of the fence is not ours"));
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) if bytes.is_empty() => Ok(None),
        Value::BulkString(bytes) if bytes.len() == 19 => {
            let number = std::str::from_utf8(&bytes).ok().and_then(|digits| digits.parse().ok());
            number.map(|number| Some(Token::new(number))).ok_or_else(garbled)
        }
        _ => Err(garbled()),
    }
}

/// A fence is told nothing.
struct Nobody;

impl Listener for Nobody {
    fn message(&self, _: &Address, _: &[u8]) {}
    fn silenced(&self) {}
    fn connected(&self, _: &Address, _: &Server, _: Instant, _: u64) {}
    fn moved(&self) {}
    fn home(&self) -> Option<Handle> {
        None
    }
}
