//! What is in the database: its tables, and the functions that are the lock algorithm.
//!
//! The SQL is in `sql/`, a file for each verb, with `{ticket}` where the ticket table's full name goes: schema and prefix were
//! parsed into [`Layout`], so nothing that could end a quoted name gets there.

use std::collections::BTreeSet;

use tenure_core::{Result, Stamp, bad_value};

/// The tables and functions that this version of the crate needs. It is another one where an older program cannot use the functions; where
/// only their bodies change, the stamp says so.
pub(crate) const VERSION: i32 = 3;

/// Everything, in the order in which it is made.
const SQL: [&str; 16] = [
    include_str!("sql/tables.sql"),
    FENCE_TABLE,
    include_str!("sql/line.sql"),
    include_str!("sql/ask.sql"),
    include_str!("sql/end.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/touch.sql"),
    include_str!("sql/downgrade.sql"),
    include_str!("sql/break.sql"),
    include_str!("sql/view.sql"),
    include_str!("sql/cell.sql"),
    include_str!("sql/fence.sql"),
    include_str!("sql/in_transaction.sql"),
    include_str!("session/sql/tables.sql"),
    include_str!("session/sql/lock.sql"),
    include_str!("session/sql/show.sql"),
];
/// All that a fence needs.
const FENCE_TABLE: &str = include_str!("sql/fence_table.sql");
const TIDY: &str = include_str!("sql/tidy.sql");

/// What this program stamps its functions with.
pub(crate) fn stamp() -> Stamp {
    Stamp::of(SQL.into_iter().chain([TIDY]))
}

/// The stamp that is in a comment.
pub(crate) fn stamp_in(comment: &str) -> Option<Stamp> {
    let (release, text) = comment.strip_prefix("tenure ")?.split_once(' ')?;
    Some(Stamp { release: release.parse().ok()?, text: text.parse().ok()? })
}

/// Where the tables are, and what their names begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    schema: String,
    prefix: String,
}

impl Layout {
    /// Parses both: a letter, then up to 30 of letters, digits and underscores, all in lower case.
    pub(crate) fn new(schema: &str, prefix: &str) -> Result<Layout> {
        for (parameter, text) in [("schema", schema), ("prefix", prefix)] {
            let mut characters = text.chars();
            let begins = characters.next().is_some_and(|c| c.is_ascii_lowercase());
            let goes_on = characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            if !begins || !goes_on || text.len() > 31 {
                let known = "a letter, then at most 30 letters, digits and underscores, in lower case";
                return Err(bad_value(parameter, text, known));
            }
        }
        Ok(Layout { schema: schema.to_owned(), prefix: prefix.to_owned() })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The full name of a table or function, quoted.
    pub(crate) fn full(&self, what: &str) -> String {
        format!("\"{}\".\"{}{what}\"", self.schema, self.prefix)
    }

    /// Statements that make something, for one message and so one transaction: whoever makes anything of this prefix at the same time
    /// comes before or after, and no word is said about what is there already.
    pub(crate) fn one_at_a_time(&self, ddl: &str) -> String {
        let lock = "SET LOCAL client_min_messages = warning;\n\
                    SET LOCAL search_path = pg_catalog, pg_temp;\n\
                    SELECT pg_advisory_xact_lock(hashtextextended('tenure {SCHEMA}.{PREFIX}', 1));\n";
        self.fill(lock) + ddl
    }

    /// The names of all tables and functions, and of what belongs to them.
    pub(crate) fn objects(&self) -> Vec<String> {
        let of_part = |part: &'static str| {
            let words = part.split('{').skip(1).filter_map(|after| after.split_once('}').map(|(word, _)| word));
            words.filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        };
        let words: BTreeSet<&str> = SQL.into_iter().chain([TIDY]).flat_map(of_part).collect();
        words.into_iter().map(|word| format!("{}{word}", self.prefix)).collect()
    }

    /// The channel that a client listens to.
    pub(crate) fn channel(&self, client: u64) -> String {
        format!("{}{client:016x}", self.prefix)
    }

    /// Puts the full names where `{table}` and `{function}` stand.
    pub(crate) fn fill(&self, sql: &str) -> String {
        let mut filled = String::with_capacity(sql.len() * 2);
        let mut rest = sql;
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let length = after.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(after.len());
            let (word, tail) = after.split_at(length);
            match tail.strip_prefix('}') {
                Some(tail) if !word.is_empty() => {
                    match word {
                        "SCHEMA" => filled.push_str(&self.schema),
                        "PREFIX" => filled.push_str(&self.prefix),
                        "VERSION" => filled.push_str(&VERSION.to_string()),
                        word => filled.push_str(&self.full(word)),
                    }
                    rest = tail;
                }
                _ => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        filled + rest
    }

    /// The whole of it, for a database administrator to read and to apply; applying it again changes nothing.
    pub(crate) fn ddl(&self) -> String {
        let Layout { schema, prefix } = self;
        let mut text = format!(
            "-- The tables and functions of tenure, version {VERSION}, in the schema {schema:?} with the prefix {prefix:?}.\n\
             -- Apply it in one transaction, as the owner of the schema; applying it again changes nothing.\n\
             -- Whoever locks needs these rights and no others:\n\
             --   {}\n\
             -- Whoever only keeps a fence there, or writes behind one, needs these, and of the tables only {prefix}fence:\n\
             --   {}\n\n",
            self.grants("\"app\"").join("\n--   "),
            self.fence_grants("\"app\"").join("\n--   ")
        );
        text += "SET LOCAL search_path = pg_catalog, pg_temp;\n\n";
        text += &self.make_schema();
        for part in SQL.into_iter().chain([TIDY]) {
            text += &self.fill(part);
            text.push('\n');
        }
        let Stamp { release, text: hash } = stamp();
        text + &self
            .fill("-- So that a repaired function reaches databases that have another one.\nCOMMENT ON TABLE {setup} IS ")
            + &format!("'tenure {release} {hash}';\n")
    }

    /// The version of what is there, and what it is stamped with.
    pub(crate) fn version_and_stamp(&self) -> String {
        self.fill(
            "SELECT version, coalesce(pg_catalog.obj_description('{setup}'::pg_catalog.regclass, 'pg_class'), '') FROM {setup}",
        )
    }

    /// How many of the functions are not this user's own.
    pub(crate) fn functions_of_others(&self) -> String {
        self.fill(
            "SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = '{SCHEMA}' AND pg_catalog.starts_with(p.proname::text, '{PREFIX}') \
               AND pg_catalog.pg_get_userbyid(p.proowner) <> current_user",
        )
    }

    /// What a fence alone needs.
    pub(crate) fn fence_ddl(&self) -> String {
        self.make_schema() + &self.fill(FENCE_TABLE)
    }

    /// Asking for a schema that is there already would need the right to make one.
    fn make_schema(&self) -> String {
        let Layout { schema, .. } = self;
        format!(
            "DO $$ BEGIN\n  IF to_regnamespace('{schema}') IS NULL THEN\n    CREATE SCHEMA \"{schema}\";\n  END IF;\n\
             EXCEPTION WHEN unique_violation OR duplicate_schema THEN NULL; -- somebody was faster\nEND $$;\n\n"
        )
    }

    /// What a user must be granted who shows tokens to a fence and does not lock.
    pub(crate) fn fence_grants(&self, user: &str) -> Vec<String> {
        vec![
            format!("GRANT USAGE ON SCHEMA \"{}\" TO {user};", self.schema),
            format!("GRANT SELECT, INSERT, UPDATE ON {} TO {user};", self.full("fence")),
        ]
    }

    /// What a user must be granted who locks and has not made the tables.
    pub(crate) fn grants(&self, user: &str) -> Vec<String> {
        let tables = TABLES.map(|table| self.full(table)).join(", ");
        vec![
            format!("GRANT USAGE ON SCHEMA \"{}\" TO {user};", self.schema),
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {tables}, {}, {} TO {user};",
                self.full("session"),
                self.full("seeded")
            ),
            format!("GRANT SELECT, UPDATE ON {} TO {user};", self.full("token")),
        ]
    }
}

/// All tables.
pub(crate) const TABLES: [&str; 10] =
    ["name", "ticket", "client", "notify_key", "mail", "mark", "cell", "floor", "fence", "setup"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in_and_nothing_else() {
        let layout = Layout::new("locks", "a_").unwrap();
        let filled = layout.fill("SELECT '{}' FROM {ticket} WHERE x = '{1}' -- {PREFIX}{");
        assert_eq!(filled, "SELECT '{}' FROM \"locks\".\"a_ticket\" WHERE x = '{1}' -- a_{");
        assert!(!layout.ddl().contains("{name}"));
        let objects = layout.objects();
        assert!(
            ["a_ticket", "a_fence", "a_clock", "a_ask_one", "a_session_seed"]
                .iter()
                .all(|known| objects.iter().any(|name| name == known))
        );
        assert!(
            objects.iter().all(|name| name[2..].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')),
            "{objects:?}"
        );
    }

    /// What the documentation tells people to grant.
    #[test]
    fn the_documentation_names_all_that_is_granted() {
        let layout = Layout::new("public", "tenure_").unwrap();
        let documented = include_str!("docs.md").split("```").find(|part| part.contains("GRANT SELECT")).unwrap();
        for grant in layout.grants("app") {
            for name in grant.split(['"', ' ', ',']).filter(|word| word.starts_with("tenure_")) {
                assert!(documented.contains(&format!(" {name}")), "{name}");
            }
        }
    }

    #[test]
    fn what_could_end_a_quoted_name_is_refused() {
        for bad in ["", "A", "1a", "a\"b", "a b", "ä", "a-b", "_a", &"a".repeat(32), "a;drop"] {
            assert!(Layout::new("public", bad).is_err(), "{bad:?}");
            assert!(Layout::new(bad, "tenure_").is_err(), "{bad:?}");
        }
        assert!(Layout::new(&"a".repeat(31), "a").is_ok());
    }

    #[test]
    fn a_channel_has_the_length_that_postgresql_allows() {
        let layout = Layout::new("public", &"a".repeat(31)).unwrap();
        assert!(layout.channel(u64::MAX).len() < 63);
        assert_eq!(Layout::new("public", "t_").unwrap().channel(0xab), "t_00000000000000ab");
    }
}
