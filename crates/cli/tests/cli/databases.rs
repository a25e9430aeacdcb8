//! schema and migrate, and a database whose users may not make tables.

use std::io::Write;
use std::process::{Command, Stdio};

use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::servers::postgres::Postgres;

use crate::support::{Ended, Running, Store, TENURE};

/// `tenure ARGS` with this store, to its end.
fn tenure(url: &str, args: &[&str]) -> Ended {
    let mut command = Command::new(TENURE);
    command.args(args).env("TENURE_STORE", url).env_remove("TENURE_STORE_FILE");
    Running::start(command).end()
}

/// What `tenure schema` prints for the app's own user: the GRANTs stand in it as comments.
fn grants(schema: &str) -> Vec<String> {
    let lines = schema.lines().filter_map(|line| line.trim_start_matches('-').trim().strip_suffix(';'));
    lines.filter(|line| line.starts_with("GRANT ")).map(str::to_owned).collect()
}

/// Feeds a script to a database's own client, as a DBA would.
fn apply(mut client: Command, script: &str) {
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the client is installed");
    client.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(client.wait().unwrap().success(), "the schema can be applied as it is printed");
}

/// The whole way of a careful DBA: nobody may make tables, the schema is read and applied, the app gets what it names.
fn careful(own: &str, apps: &str, grants_to_read: &[&str], grant: impl Fn(&str), client: Command) {
    let refused = tenure(apps, &["run", "x", "--", "true"]);
    assert_eq!(refused.code(), 125, "{}", refused.stderr);
    assert!(refused.stderr.contains("tenure migrate"), "says what to do: {}", refused.stderr);
    let schema = tenure(own, &["schema"]);
    assert_eq!(schema.code(), 0, "{}", schema.stderr);
    apply(client, &schema.stdout);
    let granted = grants(&schema.stdout);
    assert!(!granted.is_empty(), "the schema says which rights its users need:\n{}", schema.stdout);
    // Who may only read can ask how a sequencer stands, once somebody has locked anything, and cannot lock.
    assert_eq!(tenure(own, &["run", "x", "--", "true"]).code(), 0);
    grants_to_read.iter().for_each(|line| grant(line));
    let forged = "tenure1:rw-lock:exclusive:17:5:never-used";
    let asked = tenure(apps, &["sequencer", "verify", forged]);
    assert_eq!(asked.code(), 3, "{}{}", asked.stdout, asked.stderr);
    assert_eq!(tenure(apps, &["run", "x", "--", "true"]).code(), 125);
    let (held, mut other) =
        (&["run", "x", "--", "sh", "-c", "echo $TENURE_SEQUENCER; cat >/dev/null"], Command::new(TENURE));
    other.args(held).env("TENURE_STORE", own).env_remove("TENURE_STORE_FILE");
    let other = Running::start(other);
    let asked = tenure(apps, &["sequencer", "verify", &other.line()]);
    assert_eq!(asked.code(), 0, "{}{}", asked.stdout, asked.stderr);
    other.end();
    granted.iter().for_each(|line| grant(line));
    for args in [
        &["run", "x", "--", "sh", "-c", "test -n \"$TENURE_TOKEN\""][..],
        &["run", "-s", "x", "--", "true"],
        &["run", "--permits", "2", "y", "--", "true"],
        &["ls"],
    ] {
        let ran = tenure(apps, args);
        assert_eq!(ran.code(), 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
    }
    let examined = tenure(apps, &["doctor"]); // a server for tests is bad in other ways: it does not wait for its disk
    assert!(examined.stdout.lines().any(|line| line.starts_with("good\tversion")), "{}", examined.stdout);
    let again = tenure(own, &["migrate"]);
    assert_eq!(again.code(), 0, "it can be done again: {}", again.stderr);
    assert_eq!(tenure(apps, &["run", "x", "--", "true"]).code(), 0, "and the app's rights stay");
}

/// The same with the server's own locks.
fn careful_by_session(own: &str, apps: &str, grant: impl Fn(&str)) {
    let by_session = |url: &str| format!("{url}{}liveness=session&prefix=own_", if url.contains('?') { '&' } else { '?' });
    let migrated = tenure(&by_session(own), &["migrate"]);
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr);
    grants(&tenure(&by_session(own), &["schema"]).stdout).iter().for_each(|line| grant(line));
    for args in [&["run", "x", "--", "true"][..], &["ls"]] {
        let ran = tenure(&by_session(apps), args);
        assert_eq!(ran.code(), 0, "{args:?} by session: {}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn postgresql_with_an_app_that_may_not_make_tables() {
    let server = Postgres::shared();
    server.create_database("careful");
    server.sql("CREATE ROLE app LOGIN");
    let sql = |line: &str| {
        let mut session = server.session_in("careful").unwrap();
        session.sql(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    };
    sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let mut psql = Command::new("psql");
    psql.args(["-qX1", "-v", "ON_ERROR_STOP=1", "-d"]).arg(server.url_as("postgres", "", "careful"));
    let read = ["GRANT USAGE ON SCHEMA public TO app", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO app"];
    let (own, apps) = (server.url_as("postgres", "", "careful"), server.url_as("app", "", "careful"));
    careful(&own, &apps, &read, sql, psql);
    careful_by_session(&own, &apps, sql);
}

#[test]
fn mariadb_with_an_app_that_may_not_make_tables() {
    let server = MariaDb::shared();
    server.create_database("careful");
    server.sql("CREATE USER app@'%'");
    let sql = |line: &str| {
        let mut session = server.session_in("careful").unwrap();
        let line = line.replace(" TO APP", " TO app@'%'");
        session.sql(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
    };
    sql("GRANT SHOW VIEW ON careful.* TO app@'%'"); // it may log in
    let mut client = Command::new("mariadb");
    client
        .args(["--no-defaults", "--user=root", "--host=127.0.0.1", "--port"])
        .arg(server.port().to_string())
        .arg("careful");
    let read = ["GRANT SELECT ON careful.* TO APP"];
    careful(&server.url_as("root", "", "careful"), &server.url_as("app", "", "careful"), &read, sql, client);
}

#[test]
fn stores_without_a_schema_say_so() {
    let store = Store::new();
    for command in ["schema", "migrate"] {
        let refused = store.tenure([command]);
        assert_eq!(refused.code(), 125);
        assert!(refused.stderr.contains("no schema"), "{}", refused.stderr);
        let mut plain = Command::new(TENURE);
        plain.arg(command).env_remove("TENURE_STORE").env_remove("TENURE_STORE_FILE");
        let refused = Running::start(plain).end();
        assert_eq!(refused.code(), 125);
        assert!(refused.stderr.contains("--store postgres://"), "{}", refused.stderr);
    }
}
