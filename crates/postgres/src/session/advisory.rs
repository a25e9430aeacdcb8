//! One session of the server's, and each verb on it as one statement.
//!
//! Who can interleave: any number of tasks send at once, and the server executes in the order of sending. A statement whose
//! future was dropped is executed all the same.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::{Failure, Fate};
use tenure_core::{Claim, ClaimId, Error, ErrorKind, Mode, Token};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

use super::wire::Wire;
use super::{Answer, Held, Notice, Tried};
use crate::schema::Layout;
use crate::verbs::{self, Garbled, micros};

/// The statements, with the tables' names in them.
pub(super) struct Statements {
    attempt: String,
    queue: String,
    wait: String,
    enter: String,
    hide: String,
    unlock: String,
    give_up: String,
    downgrade: String,
    show: String,
    ping: String,
    begin: String,
}

impl Statements {
    pub(super) fn new(layout: &Layout) -> Self {
        Statements {
            attempt: layout.fill("SELECT {session_try}($1, $2, $3)"),
            queue: layout.fill(
                "INSERT INTO {session} (pid, id, name, kind, shared, client, ttl, since, os_pid, host, note) \
                 VALUES (pg_backend_pid(), $1, $2, $3, $4, $5, $6, clock_timestamp(), $7, $8, $9)",
            ),
            wait: layout.fill("SELECT {session_wait}($1, $2, $3, $4)"),
            enter: layout.fill("SELECT nextval('{token}')"),
            hide: layout.fill("DELETE FROM {session} WHERE pid = pg_backend_pid() AND id = $1"),
            unlock: layout.fill("SELECT {session_unlock}($1, $2, $3, $4, $5)"),
            give_up: layout.fill("SELECT {session_give_up}($1, $2, $3)"),
            downgrade: layout.fill("SELECT {session_downgrade}($1, $2, $3)"),
            // Those that are shown as waiting have a row already.
            show: layout.fill(
                "WITH holds AS MATERIALIZED ( \
                   SELECT *, clock_timestamp() - age * interval '1 microsecond' AS since \
                     FROM unnest($2::bytea[], $3::text[], $4::smallint[], $5::boolean[], $6::bigint[], $7::bigint[], \
                                 $8::bigint[], $9::bigint[], $10::text[], $11::text[]) \
                       AS u (id, name, kind, shared, ttl, age, token, os_pid, host, note) \
                 ), known AS ( \
                   UPDATE {session} s SET token = h.token, since = h.since, shared = h.shared \
                     FROM holds h WHERE s.pid = pg_backend_pid() AND s.id = h.id RETURNING s.id \
                 ) \
                 INSERT INTO {session} (pid, id, name, kind, shared, client, ttl, since, token, os_pid, host, note) \
                 SELECT pg_backend_pid(), id, name, kind, shared, $1, ttl, since, token, os_pid, host, note \
                   FROM holds WHERE id NOT IN (SELECT id FROM known)",
            ),
            ping: layout.fill(
                "SELECT id, broken, asked_pid, asked_host, asked_reason, a.pid, \
                        (extract(epoch FROM a.backend_start) * 1000000)::bigint \
                 FROM pg_stat_get_activity(pg_backend_pid()) a \
                 LEFT JOIN {session} s ON s.pid = a.pid AND (broken OR asked_reason IS NOT NULL)",
            ),
            // A session of the past may have had our number; and a server that crashed, or took over, may have forgotten tokens.
            begin: layout.fill("DELETE FROM {session} WHERE pid = pg_backend_pid(); SELECT {session_seed}()"),
        }
    }
}

/// Which session this is.
const WHICH: &str =
    "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_get_activity(pg_backend_pid())";

/// One session.
pub(super) struct Advisory {
    wire: Wire,
    pub(super) pid: i32,
    /// When the server began it, in microseconds of its clock: another one may have its number later.
    pub(super) began: i64,
    client: i64,
    statements: Arc<Statements>,
    attempt: Statement,
    enter: Statement,
    unlock: Statement,
    ping: Statement,
}

impl Advisory {
    /// Makes a connection a session that the server ends when it has not heard of it for `idle`.
    ///
    /// # Cancel safety
    /// Dropped, the connection is closed.
    pub(super) async fn begin(
        wire: Wire,
        client: u64,
        statements: &Arc<Statements>,
        idle: Duration,
        version: i32,
    ) -> Answer<Advisory> {
        let settings = settings(idle, version);
        let prepared = async {
            // All in one flight.
            tokio::try_join!(
                wire.client().batch_execute(&settings),
                wire.client().prepare_typed(&statements.attempt, &[Type::TEXT, Type::INT4, Type::BOOL]),
                wire.client().prepare(&statements.enter),
                wire.client()
                    .prepare_typed(&statements.unlock, &[Type::TEXT, Type::INT4, Type::BOOL, Type::BYTEA, Type::BOOL]),
                wire.client().prepare(&statements.ping),
                wire.client().query_typed_one(WHICH, &[]),
                wire.client().batch_execute(&statements.begin),
            )
        };
        let prepared = prepared.await;
        let ((), attempt, enter, unlock, ping, which, ()) =
            prepared.map_err(|error| wire.failed(error, "opening a session"))?;
        let of = |error| wire.failed(error, "opening a session");
        let (pid, began) = (which.try_get(0).map_err(of)?, which.try_get(1).map_err(of)?);
        let statements = Arc::clone(statements);
        Ok(Advisory { wire, pid, began, client: client as i64, statements, attempt, enter, unlock, ping })
    }

    async fn run(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)], doing: &str) -> Answer<Vec<Row>> {
        self.wire.answered(self.wire.client().query_typed(sql, params), doing).await
    }

    async fn number(&self, statement: &Statement, params: &[&(dyn ToSql + Sync)], doing: &str) -> Answer<i64> {
        let row = self.wire.answered(self.wire.used().query_one(statement, params), doing).await?;
        row.try_get(0).map_err(|error| self.wire.failed(error, doing))
    }

    /// Waits in the server's line, for ever or for so long, shown to others as somebody who waits. The fencing number is drawn when it
    /// is let in. `None` when the time was over; the lock may have been given in that very moment, and whoever asked gives it up.
    pub(super) async fn wait(&self, claim: &Claim, limit: Option<Duration>) -> Answer<Option<Token>> {
        let (id, name, shared) = (&claim.id.as_bytes()[..], claim.name.as_str(), claim.mode == Mode::Shared);
        let (ttl, os_pid) = (micros(claim.ttl), i64::from(claim.origin.pid));
        let (kind, host, note) = (i16::from(claim.kind.number()), &*claim.origin.host, claim.note.as_str());
        // At least as long as the caller waits, which begins before the server's.
        let milliseconds = limit.map_or(0, |limit| limit.as_micros().div_ceil(1_000).clamp(1, i32::MAX as u128) as i32);
        let long_kind = i32::from(kind);
        let queue = [
            (&id as &(dyn ToSql + Sync), Type::BYTEA),
            (&name, Type::TEXT),
            (&kind, Type::INT2),
            (&shared, Type::BOOL),
            (&self.client, Type::INT8),
            (&ttl, Type::INT8),
            (&os_pid, Type::INT8),
            (&host, Type::TEXT),
            (&note, Type::TEXT),
        ];
        let wait = [
            (&name as &(dyn ToSql + Sync), Type::TEXT),
            (&long_kind, Type::INT4),
            (&shared, Type::BOOL),
            (&milliseconds, Type::INT4),
        ];
        // In one flight, and two transactions: what is not committed nobody sees.
        let doing = "waiting for a lock";
        let queued = self.run(&self.statements.queue, &queue, doing);
        let waited = self.wire.waited_for().query_typed(&self.statements.wait, &wait);
        let (queued, waited) = tokio::join!(queued, waited);
        match waited.and_then(|rows| rows.first().map_or(Ok(None), |row| row.try_get::<_, i64>(0).map(Some))) {
            Ok(Some(token)) => queued.map(|_| Some(Token::new(token as u64))),
            Ok(None) => Err(garbled(doing)),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(None),
            Err(error) => Err(self.wire.failed(error, doing)),
        }
    }
}

/// Requests are executed in the order in which they were first polled. A future that is dropped leaves the session usable: its
/// request may be executed or not.
impl Advisory {
    /// Whether it may still be used: `false` from the moment on at which anybody could know otherwise.
    pub(super) fn is_open(&self) -> bool {
        self.wire.is_open()
    }

    /// Ends it, and with it everything it has, without waiting.
    pub(super) fn close(&self) {
        self.wire.close();
    }

    /// Completes when it is over, for whatever reason. Does not keep the session.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.wire.ended()
    }

    /// Locks if that can be had at once.
    pub(super) async fn try_lock(&self, claim: &Claim) -> Answer<Tried> {
        let (kind, shared) = (i32::from(claim.kind.number()), claim.mode == Mode::Shared);
        let params: [&(dyn ToSql + Sync); 3] = [&claim.name.as_str(), &kind, &shared];
        match self.number(&self.attempt, &params, "locking").await? {
            0 => Ok(Tried::Busy),
            token @ 1.. => Ok(Tried::Granted(Token::new(token as u64))),
            other => {
                let kind = i16::try_from(-1 - other).map_err(|_| Garbled).and_then(verbs::kind);
                kind.map(Tried::Mismatch).map_err(|Garbled| garbled("locking"))
            }
        }
    }

    /// Draws a fencing number for what this session has already. The session is heard of with it. What others see of the claim that
    /// had it before, if they see anything, goes.
    pub(super) async fn enter(&self, before: Option<&Claim>) -> Answer<Token> {
        let doing = "being let in";
        let drawn = self.number(&self.enter, &[], doing);
        let token = match before.map(|claim| &claim.id.as_bytes()[..]) {
            None => drawn.await?,
            Some(id) => {
                let params = [(&id as &(dyn ToSql + Sync), Type::BYTEA)];
                let (token, _) = tokio::try_join!(drawn, self.run(&self.statements.hide, &params, doing))?; // in one flight
                token
            }
        };
        Ok(Token::new(token as u64))
    }

    /// Lets go of what was certainly held. Whether it still was: something in between may have logged in anew.
    pub(super) async fn unlock(&self, claim: &Claim, held: Held) -> Answer<bool> {
        let (kind, shared) = (i32::from(claim.kind.number()), held.mode == Mode::Shared);
        let (name, id) = (claim.name.as_str(), &claim.id.as_bytes()[..]);
        let params: [&(dyn ToSql + Sync); 5] = [&name, &kind, &shared, &id, &held.shown];
        let row = self.wire.answered(self.wire.used().query_one(&self.unlock, &params), "unlocking").await?;
        row.try_get(0).map_err(|error| self.wire.failed(error, "unlocking"))
    }

    /// Lets go of whatever the claim has on this session, also where nobody knows what that is.
    pub(super) async fn give_up(&self, claim: &Claim) -> Answer<()> {
        let (name, kind, id) = (claim.name.as_str(), i32::from(claim.kind.number()), &claim.id.as_bytes()[..]);
        let params = [(&name as &(dyn ToSql + Sync), Type::TEXT), (&kind, Type::INT4), (&id, Type::BYTEA)];
        self.run(&self.statements.give_up, &params, "giving up a lock").await.map(drop)
    }

    /// Makes a reader of the writer of an rw lock, with the same token.
    pub(super) async fn downgrade(&self, claim: &Claim, held: Held) -> Answer<()> {
        let (name, id) = (claim.name.as_str(), &claim.id.as_bytes()[..]);
        let params = [(&name as &(dyn ToSql + Sync), Type::TEXT), (&id, Type::BYTEA), (&held.shown, Type::BOOL)];
        self.run(&self.statements.downgrade, &params, "downgrading a lock").await.map(drop)
    }

    /// Shows holds to others, of which some may be shown as waiting.
    pub(super) async fn show(&self, holds: &[(Claim, Held)]) -> Answer<()> {
        let of = |part: fn(&Claim) -> i64| holds.iter().map(|(claim, _)| part(claim)).collect::<Vec<i64>>();
        let texts = |part: fn(&Claim) -> &str| holds.iter().map(|(claim, _)| part(claim)).collect::<Vec<&str>>();
        let ids: Vec<&[u8]> = holds.iter().map(|(claim, _)| &claim.id.as_bytes()[..]).collect();
        let kinds: Vec<i16> = holds.iter().map(|(claim, _)| i16::from(claim.kind.number())).collect();
        let shared: Vec<bool> = holds.iter().map(|(_, held)| held.mode == Mode::Shared).collect();
        let ages: Vec<i64> = holds.iter().map(|(_, held)| micros(held.age)).collect();
        let tokens: Vec<i64> = holds.iter().map(|(_, held)| held.token.get() as i64).collect();
        let (ttls, os_pids) = (of(|claim| micros(claim.ttl)), of(|claim| i64::from(claim.origin.pid)));
        let (names, hosts) = (texts(|claim| claim.name.as_str()), texts(|claim| &*claim.origin.host));
        let notes = texts(|claim| claim.note.as_str());
        let params = [
            (&self.client as &(dyn ToSql + Sync), Type::INT8),
            (&ids, Type::BYTEA_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&kinds, Type::INT2_ARRAY),
            (&shared, Type::BOOL_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&ages, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&os_pids, Type::INT8_ARRAY),
            (&hosts, Type::TEXT_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ];
        self.run(&self.statements.show, &params, "showing what is held").await.map(drop)
    }

    /// Makes itself heard, and sees that it is still the session that it was; what others had to say about holds on it.
    pub(super) async fn ping(&self) -> Answer<Vec<(ClaimId, Notice)>> {
        let rows = self.wire.answered(self.wire.client().query(&self.ping, &[]), "renewing").await?;
        let which = |row: &Row| Ok::<_, tokio_postgres::Error>((row.try_get(5)?, row.try_get(6)?));
        if rows.first().and_then(|row| which(row).ok()) != Some((self.pid, self.began)) {
            self.close();
            return Err(replaced());
        }
        mail(&rows).map_err(|Garbled| garbled("renewing"))
    }
}

/// A proxy in between has logged in anew: whatever was held is another session's, or nobody's.
fn replaced() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "the connection leads to another session than before")
        .with_hint("Session locks need sessions of their own: connect to the server directly, or use liveness=lease");
    Failure { error, fate: Fate::Refused, again: false }
}

/// Rows of `id, broken, asked_pid, asked_host, asked_reason`, of which those without an id say nothing.
pub(super) fn mail(rows: &[Row]) -> Result<Vec<(ClaimId, Notice)>, Garbled> {
    let letter = |row: &Row| {
        let Some(id) = row.try_get::<_, Option<&[u8]>>(0).map_err(|_| Garbled)? else { return Ok(None) };
        let id = ClaimId::from_bytes(id.try_into().map_err(|_| Garbled)?);
        if row.try_get(1).map_err(|_| Garbled)? {
            return Ok(Some((id, Notice::Broken)));
        }
        let asked = verbs::ask(
            row.try_get(2).map_err(|_| Garbled)?,
            row.try_get(3).map_err(|_| Garbled)?,
            row.try_get(4).map_err(|_| Garbled)?,
        )?;
        Ok(Some((id, Notice::Asked(asked.ok_or(Garbled)?))))
    };
    rows.iter().filter_map(|row| letter(row).transpose()).collect()
}

/// An answer that none of our functions gives.
pub(super) fn garbled(doing: &str) -> Failure {
    let error = Error::new(ErrorKind::Backend, format!("the server's answer could not be read while {doing}"))
        .with_hint("Has somebody changed tenure's functions? `tenure migrate --store URL` makes them as they should be");
    Failure { error, fate: Fate::Unknown, again: false }
}

/// What makes a connection a session that keeps locks for so long and no longer: the server's own limits, and nobody else's.
fn settings(idle: Duration, version: i32) -> String {
    let seconds = idle.as_secs();
    let mut text = format!(
        "SET search_path = pg_catalog, pg_temp; SET synchronous_commit = off; SET jit = off; \
         SET default_transaction_isolation = 'read committed'; \
         SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
         SET idle_session_timeout = {}; \
         SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; SET tcp_keepalives_count = 3; \
         SET tcp_user_timeout = {}; ",
        idle.as_millis(),
        (seconds / 4).clamp(1, 7_200),
        (seconds / 8).clamp(1, 600),
        idle.as_millis().min(i32::MAX as u128),
    );
    if version >= 170_000 {
        text += "SET transaction_timeout = 0; ";
    }
    // Whoever waits does not look at its connection; not every system can do this.
    text += "DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '500', false); \
             EXCEPTION WHEN others THEN NULL; END $$";
    text
}
