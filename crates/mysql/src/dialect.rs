//! In what MariaDB and MySQL differ, as far as it matters here. MariaDB 10.11 is what the tests run on; what is said of
//! MySQL 8 is from its manual, and nobody has run it.
//!
//! | | MariaDB | MySQL |
//! |---|---|---|
//! | the oldest with `SKIP LOCKED` | 10.6 | 8.0.1 |
//! | a lock that `NOWAIT` did not get | error 1205 | error 3572 |
//! | `NOWAIT` inside a procedure | only in a prepared text | anywhere; the prepared text works too |
//! | a shared lock that does not wait | `LOCK IN SHARE MODE NOWAIT` | `FOR SHARE NOWAIT` |
//! | a limit for one statement | `SET STATEMENT`, in `/*M! */` | none: a new name may be waited for, a second at most |
//! | a name that nobody else wants | one plain statement | a procedure, as always |
//! | a transaction that its client forgot | `idle_transaction_timeout` | `wait_timeout` |
//! | replacing a procedure | `OR REPLACE`, in `/*M! */`, which keeps the rights on it | drop and create |
//! | words that a column may not have | | `rank`, `of` and more: none of ours is one |
//! | `VALUES(column)` in an upsert | as ever | deprecated, and understood |

use std::fmt;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    MariaDb,
    MySql,
}

/// Major, minor, patch.
pub(crate) type Version = (u32, u32, u32);

impl Dialect {
    /// Reads what `VERSION()` says: `10.11.19-MariaDB-0+deb12u1`, `8.0.36`.
    pub(crate) fn of(text: &str) -> (Dialect, Option<Version>) {
        let dialect = if text.to_ascii_lowercase().contains("mariadb") { Dialect::MariaDb } else { Dialect::MySql };
        let text = text.strip_prefix("5.5.5-").unwrap_or(text); // what a MariaDB says to old replicas
        let number = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        let mut parts = text.split('.').map(number);
        let version = match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Some((major, minor, parts.next().flatten().unwrap_or(0))),
            _ => None,
        };
        (dialect, version)
    }

    /// The oldest that will do.
    pub(crate) fn least(self) -> Version {
        match self {
            Dialect::MariaDb => (10, 6, 0),
            Dialect::MySql => (8, 0, 1),
        }
    }

    /// What a session of ours is told before anything else, besides what both are told.
    pub(crate) fn setup(self) -> &'static str {
        match self {
            // A transaction of ours takes milliseconds: one that is idle lost its client.
            Dialect::MariaDb => "SET SESSION idle_transaction_timeout = 5;",
            Dialect::MySql => "",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dialect::MariaDb => "MariaDB",
            Dialect::MySql => "MySQL",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_servers_write_them() {
        for (text, dialect, version) in [
            ("10.11.19-MariaDB-0+deb12u1", Dialect::MariaDb, Some((10, 11, 19))),
            ("5.5.5-10.6.3-MariaDB-log", Dialect::MariaDb, Some((10, 6, 3))),
            ("8.0.36", Dialect::MySql, Some((8, 0, 36))),
            ("8.4.0-commercial", Dialect::MySql, Some((8, 4, 0))),
            ("nonsense", Dialect::MySql, None),
        ] {
            assert_eq!(Dialect::of(text), (dialect, version), "{text}");
        }
    }
}
