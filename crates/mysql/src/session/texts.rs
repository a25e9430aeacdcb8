//! The statements. A name's lock is that of the first 48 digits of a hash of database, prefix and name: locks are the whole
//! server's, are told apart without regard to case by some, and their names are short. Whoever has it also has a mark that says
//! as which kind: the same with the kind's number behind it.
//!
//! Names are hashed here and not by the server, which takes as long over that as over the locks: a pair took twice a raw one so.
//! Only where rows are looked at does it hash, the same to the letter.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure_core::session::Held;
use tenure_core::{Ask, Claim, ClaimId, Kind, LockName, Token};

use crate::dialect::Dialect;
use crate::schema::NOW;
use crate::verbs::{hex, kind_number, micros, push_hex};

/// For ever, as far as a server goes; whoever waits for longer asks again.
const EVER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a wait for a plain mutex is seen by nobody.
pub(super) const A_MOMENT: Duration = Duration::from_millis(10);

pub(super) struct Texts {
    prefix: String,
    /// What the server calls its `DATABASE()`.
    database: String,
}

impl Texts {
    pub(super) fn new(prefix: &str, database: String) -> Self {
        Texts { prefix: prefix.to_owned(), database }
    }

    fn key(&self, name: &LockName) -> String {
        let mut text = format!("{}/{}/", self.database, self.prefix);
        push_hex(&mut text, name.as_str().as_bytes()); // as digits, which are the same in every character set
        format!("'{}'", hash(&text, 48))
    }

    fn mark(&self, key: &str, kind: usize) -> String {
        format!("'{}.{kind}'", key.trim_matches('\''))
    }

    /// What a session has as often as it has holds that are not shown yet: whoever lists waits for them.
    fn unshown(&self) -> String {
        hash(&format!("{}/{}", self.database, self.prefix), 40)
    }

    fn unshown_by(&self, conn: u64) -> String {
        format!("'{}.{conn}'", self.unshown())
    }

    /// How many sessions have something that they do not show yet.
    pub(super) fn how_many_unshown(&self) -> String {
        let unshown = self.unshown();
        format!(
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE IS_USED_LOCK(CONCAT('{unshown}.', ID)) IS NOT NULL"
        )
    }

    /// What a new session is told: `wait_timeout` is the server's limit for one that it does not hear of.
    pub(super) fn begin(&self, dialect: Dialect, idle: Duration) -> String {
        format!(
            "SET SESSION autocommit = 1, innodb_lock_wait_timeout = 5, lock_wait_timeout = 31536000, wait_timeout = {}; {}; \
             DELETE FROM {}session WHERE conn = CONNECTION_ID(); SELECT CONNECTION_ID()",
            idle.as_secs(),
            dialect.no_time_limit(),
            self.prefix
        )
    }

    /// A token, once the lock is ours. In MariaDB from a sequence; MySQL has none, and a table of one row in memory, which is
    /// set to the clock whenever that is ahead.
    fn token(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::MariaDb => format!("NEXTVAL({}token)", self.prefix),
            Dialect::MySql => "1".to_owned(),
        }
    }

    /// The same in MySQL, as statements of their own; 0 if there is nothing to draw from, where `LAST_INSERT_ID()` alone would give the
    /// session's last token once more.
    fn drawn(&self, key: &str) -> String {
        format!(
            "UPDATE {}token SET n = LAST_INSERT_ID(GREATEST(n + 1, {NOW})) WHERE id = 1 \
             AND IS_USED_LOCK({key}) = CONNECTION_ID(); SELECT IF(ROW_COUNT() > 0, LAST_INSERT_ID(), 0)",
            self.prefix
        )
    }

    /// Gives the token; 0 if it cannot be had; -1 minus the kind if it is in use as another one; null for an error.
    pub(super) fn attempt(&self, dialect: Dialect, conn: u64, claim: &Claim) -> String {
        let (key, kind) = (self.key(&claim.name), kind_number(claim.kind));
        let others: String = [0, 1, 4]
            .into_iter()
            .filter(|other| *other != kind)
            .map(|other| format!("WHEN IS_USED_LOCK({}) IS NOT NULL THEN {} ", self.mark(&key, other), -1 - other as i32))
            .collect();
        let drawn = match dialect {
            Dialect::MariaDb => String::new(),
            Dialect::MySql => format!("; {}", self.drawn(&key)),
        };
        let had = self.had(dialect, conn, &key, claim);
        format!("SELECT CASE GET_LOCK({key}, 0) WHEN 1 THEN {had} WHEN 0 THEN CASE {others}ELSE 0 END END{drawn}")
    }

    /// What goes with a lock that was just given: a token, the mark of its kind, and that it is not shown yet.
    fn had(&self, dialect: Dialect, conn: u64, key: &str, claim: &Claim) -> String {
        let (token, mark) = (self.token(dialect), self.mark(key, kind_number(claim.kind)));
        format!("{token} + 0 * GET_LOCK({mark}, 0) + 0 * GET_LOCK({}, 0)", self.unshown_by(conn))
    }

    /// Waits for a moment, and shows so to nobody: that is a write, and costs more than most waits. Gives the token, 0 if the moment was
    /// over, and null if it was interrupted. Only for what promises no order, since whoever goes on waiting then goes to the end of
    /// the line; and not for MySQL, which waits for whole seconds.
    pub(super) fn wait_a_moment(&self, dialect: Dialect, conn: u64, claim: &Claim, moment: Duration) -> Option<String> {
        if dialect == Dialect::MySql || claim.kind != Kind::Mutex {
            return None;
        }
        let key = self.key(&claim.name);
        Some(format!(
            "SELECT CASE GET_LOCK({key}, {}) WHEN 1 THEN {} WHEN 0 THEN 0 END",
            moment.as_secs_f64(),
            self.had(dialect, conn, &key, claim)
        ))
    }

    /// Shows that it waits, and waits. Gives 1; 0 if the time was over; null if it was interrupted. And then the token: by a
    /// statement of its own, since one that waited and drew would have the sequence open all the while. Whoever flushes or backs up
    /// would wait for it, and every write of the server for them.
    pub(super) fn wait(&self, dialect: Dialect, client: u64, claim: &Claim, limit: Option<Duration>) -> String {
        let (key, kind) = (self.key(&claim.name), kind_number(claim.kind));
        let limit = limit.unwrap_or(EVER).min(EVER);
        let seconds = match dialect {
            Dialect::MariaDb => format!("{:.6}", limit.as_secs_f64() + 0.000_001),
            Dialect::MySql => (limit.as_secs() + 1).to_string(), // whole seconds: whoever waits for less is interrupted
        };
        format!(
            "INSERT INTO {p}session (conn, id, name, kind, client, ttl, since, pid, host, note) \
             VALUES (CONNECTION_ID(), {id}, {name}, {kind}, {client}, {ttl}, {NOW}, {pid}, {host}, {note}) \
             ON DUPLICATE KEY UPDATE since = since; \
             SELECT CASE GET_LOCK({key}, {seconds}) WHEN 1 THEN 1 + 0 * GET_LOCK({mark}, 0) WHEN 0 THEN 0 END; {enter}",
            p = self.prefix,
            id = hex(claim.id.as_bytes()),
            name = hex(claim.name.as_str().as_bytes()),
            ttl = micros(claim.ttl),
            pid = claim.origin.pid,
            host = hex(claim.origin.host.as_bytes()),
            note = hex(claim.note.as_str().as_bytes()),
            mark = self.mark(&key, kind),
            enter = self.enter(dialect, claim),
        )
    }

    /// A token for what the session has; no row if it is not ours.
    pub(super) fn enter(&self, dialect: Dialect, claim: &Claim) -> String {
        let key = self.key(&claim.name);
        match dialect {
            Dialect::MariaDb => {
                format!("SELECT {} FROM DUAL WHERE IS_USED_LOCK({key}) = CONNECTION_ID()", self.token(dialect))
            }
            Dialect::MySql => self.drawn(&key),
        }
    }

    /// What is had by another claim from now on, which is not shown yet.
    pub(super) fn replace(&self, conn: u64, before: ClaimId) -> String {
        format!("DO GET_LOCK({}, 0); {}", self.unshown_by(conn), self.hide(before))
    }

    /// 1 if it was ours. What others saw of it goes after it, since whoever is next does not wait for that.
    pub(super) fn unlock(&self, conn: u64, claim: &Claim, is_shown: bool) -> String {
        let key = self.key(&claim.name);
        let mut text = format!("SELECT RELEASE_LOCK({}) + 0, RELEASE_LOCK({key})", self.mark(&key, kind_number(claim.kind)));
        match is_shown {
            true => text += &format!("; {}", self.hide(claim.id)),
            false => text += &format!(", RELEASE_LOCK({})", self.unshown_by(conn)),
        }
        text
    }

    fn hide(&self, id: ClaimId) -> String {
        format!("DELETE FROM {}session WHERE conn = CONNECTION_ID() AND id = {}", self.prefix, hex(id.as_bytes()))
    }

    /// What a session of ours has left that is over.
    pub(super) fn hide_all(&self, conn: u64, client: u64) -> String {
        format!("DELETE FROM {}session WHERE conn = {conn} AND client = {client}", self.prefix)
    }

    /// Lets go of whatever there is; 1 if something is left all the same.
    pub(super) fn give_up(&self, conn: u64, claim: &Claim) -> String {
        let key = self.key(&claim.name);
        let mark = self.mark(&key, kind_number(claim.kind));
        format!(
            "{}; DO IF(ROW_COUNT() = 0 AND IS_USED_LOCK({key}) = CONNECTION_ID(), RELEASE_LOCK({}), 0); \
             DO RELEASE_LOCK({mark}), RELEASE_LOCK({key}); SELECT IFNULL(IS_USED_LOCK({key}) = CONNECTION_ID(), 0)",
            self.hide(claim.id),
            self.unshown_by(conn),
        )
    }

    pub(super) fn show(&self, conn: u64, client: u64, holds: &[(Claim, Held)]) -> String {
        let row = |(claim, held): &(Claim, Held)| {
            format!(
                "(CONNECTION_ID(), {}, {}, {}, {client}, {}, {NOW} - {}, {}, {}, {}, {})",
                hex(claim.id.as_bytes()),
                hex(claim.name.as_str().as_bytes()),
                kind_number(claim.kind),
                micros(claim.ttl),
                micros(held.age),
                held.token.get(),
                claim.origin.pid,
                hex(claim.origin.host.as_bytes()),
                hex(claim.note.as_str().as_bytes()),
            )
        };
        let rows: Vec<String> = holds.iter().map(row).collect();
        format!(
            "INSERT INTO {}session (conn, id, name, kind, client, ttl, since, token, pid, host, note) VALUES {} \
             ON DUPLICATE KEY UPDATE token = VALUES(token), since = VALUES(since); DO {}",
            self.prefix,
            rows.join(", "),
            vec![format!("RELEASE_LOCK({})", self.unshown_by(conn)); rows.len()].join(", "),
        )
    }

    /// Rows of id, broken, whether it was asked for, and by whom.
    pub(super) fn ping(&self) -> String {
        self.mail_where("conn = CONNECTION_ID()")
    }

    pub(super) fn mail(&self, client: u64) -> String {
        self.mail_where(&format!("client = {client}"))
    }

    fn mail_where(&self, whose: &str) -> String {
        format!(
            "SELECT id, broken, asked_reason, asked_host, asked_pid FROM {}session \
             WHERE {whose} AND (broken OR asked_reason IS NOT NULL)",
            self.prefix
        )
    }

    /// Who has the lock, and what is shown of the name: by whom, and whether it really waits.
    pub(super) fn view(&self, name: &LockName) -> String {
        let which = format!("s.name = {}", hex(name.as_str().as_bytes()));
        format!("SELECT IS_USED_LOCK({}), {NOW}; {}", self.key(name), self.shown(&which))
    }

    /// What is shown of names, by name.
    pub(super) fn list(&self, begins: &str, after: Option<&LockName>) -> String {
        let begins = begins.as_bytes();
        let mut which = format!("LEFT(s.name, {}) = {}", begins.len(), hex(begins));
        if begins.is_empty() {
            which = "TRUE".to_owned();
        }
        if let Some(after) = after {
            which += &format!(" AND s.name > {}", hex(after.as_str().as_bytes()));
        }
        self.shown(&which)
    }

    /// The lock of a row's name.
    fn key_of_row(&self) -> String {
        format!("LEFT(SHA2(CONCAT(DATABASE(), '/{}/', LOWER(HEX(s.name))), 256), 48)", self.prefix)
    }

    fn shown(&self, which: &str) -> String {
        let key = self.key_of_row();
        format!(
            "SELECT s.conn, s.id, s.kind, s.ttl, s.since, s.token, s.pid, s.host, s.note, s.asked_reason IS NOT NULL, \
             s.asked_reason, s.asked_host, s.asked_pid, IFNULL(p.STATE = 'User lock', 0), IFNULL(p.TIME, 0), \
             s.name, IS_USED_LOCK({key}), {NOW} \
             FROM {}session s LEFT JOIN information_schema.PROCESSLIST p ON p.ID = s.conn \
             WHERE {which} ORDER BY s.name, s.since, s.conn",
            self.prefix,
        )
    }

    /// Asks whoever has the lock. How many rows that are.
    pub(super) fn request(&self, name: &LockName, ask: &Ask) -> String {
        format!(
            "UPDATE {}session SET asked_reason = {}, asked_host = {}, asked_pid = {} \
             WHERE name = {} AND conn = IS_USED_LOCK({}); SELECT ROW_COUNT()",
            self.prefix,
            hex(ask.reason.as_str().as_bytes()),
            hex(ask.by.host.as_bytes()),
            ask.by.pid,
            hex(name.as_str().as_bytes()),
            self.key(name),
        )
    }

    /// Tells whoever has the lock that it has lost it; which session that is.
    pub(super) fn break_holds(&self, name: &LockName, only: Option<Token>) -> String {
        let (key, name) = (self.key(name), hex(name.as_str().as_bytes()));
        let only = only.map_or(String::new(), |token| format!(" AND token = {}", token.get()));
        format!(
            "UPDATE {p}session SET broken = 1 WHERE name = {name} AND conn = IS_USED_LOCK({key}){only}; \
             SELECT conn FROM {p}session WHERE name = {name} AND conn = IS_USED_LOCK({key}) AND broken",
            p = self.prefix
        )
    }

    /// Whether a session still has what it was told to let go of.
    pub(super) fn still_has(&self, name: &LockName, conn: u64) -> String {
        let key = self.key(name);
        format!(
            "SELECT IFNULL(IS_USED_LOCK({key}) = {conn}, 0) AND NOT EXISTS \
             (SELECT 1 FROM {}session WHERE conn = {conn} AND name = {} AND NOT broken)",
            self.prefix,
            hex(name.as_str().as_bytes())
        )
    }

    pub(super) fn holder(&self, name: &LockName) -> String {
        format!("SELECT IS_USED_LOCK({})", self.key(name))
    }

    /// Removes what sessions that are no more have left. Without the right PROCESS those of other users are not seen, and may be
    /// alive: what they hold stays; that they wait is shown no more.
    pub(super) fn tidy(&self) -> String {
        format!(
            "DELETE s FROM {}session s LEFT JOIN information_schema.PROCESSLIST p ON p.ID = s.conn \
             WHERE p.ID IS NULL AND IFNULL(IS_USED_LOCK({}), 0) <> s.conn",
            self.prefix,
            self.key_of_row(),
        )
    }

    /// What the server's clock shows.
    pub(super) fn clock(&self) -> String {
        format!("SELECT {NOW}")
    }

    /// Sees to it that tokens are not behind the clock, which showed this. A sequence never goes back.
    pub(super) fn seed(&self, dialect: Dialect, now: i64) -> String {
        match dialect {
            Dialect::MariaDb => format!("DO SETVAL({}token, {now})", self.prefix),
            Dialect::MySql => format!("INSERT IGNORE INTO {}token (id, n) VALUES (1, 0)", self.prefix),
        }
    }

    /// A sequence that has lost what it had begins with the clock: in one step, since nobody may draw a low number meanwhile.
    pub(super) fn begin_tokens_at(&self, now: i64) -> String {
        format!("CREATE OR REPLACE SEQUENCE {}token START WITH {now}", self.prefix)
    }
}

/// As many digits of its hash, as the server would give them.
fn hash(text: &str, digits: usize) -> String {
    let mut hash = String::with_capacity(64);
    push_hex(&mut hash, &Sha256::digest(text.as_bytes()));
    hash.truncate(digits);
    hash
}

/// What session mode needs besides the tables of both: made once, by whoever may.
pub(crate) fn statements(prefix: &str, dialect: Dialect) -> Vec<String> {
    let tokens = match dialect {
        Dialect::MariaDb => format!("CREATE SEQUENCE IF NOT EXISTS {prefix}token"),
        Dialect::MySql => format!(
            "CREATE TABLE IF NOT EXISTS {prefix}token (id TINYINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL) ENGINE = MEMORY"
        ),
    };
    vec![
        format!(
            "CREATE TABLE IF NOT EXISTS {prefix}session (\
               conn BIGINT UNSIGNED NOT NULL, \
               id BINARY(16) NOT NULL, \
               name VARBINARY(512) NOT NULL, \
               kind TINYINT UNSIGNED NOT NULL, \
               client BIGINT UNSIGNED NOT NULL, \
               ttl BIGINT NOT NULL, \
               since BIGINT NOT NULL, \
               token BIGINT, \
               pid INT UNSIGNED NOT NULL, \
               host VARBINARY(1024) NOT NULL, \
               note VARBINARY(1024) NOT NULL, \
               asked_reason VARBINARY(1024), \
               asked_host VARBINARY(1024), \
               asked_pid INT UNSIGNED, \
               broken TINYINT UNSIGNED NOT NULL DEFAULT 0, \
               PRIMARY KEY (conn, id), KEY name (name), KEY client (client)) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
        ),
        tokens,
    ]
}
