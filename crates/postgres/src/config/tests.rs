//! URLs that are right, URLs that are wrong, and secrets that stay secret.

use tenure_core::ErrorKind;

use super::*;

fn read(text: &str) -> Result<Settings> {
    Settings::from_url(&text.parse::<StoreUrl>()?)
}

fn good(text: &str) -> Settings {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn bad(text: &str, words: &[&str]) {
    let error = read(text).expect_err(text);
    assert_eq!(error.kind(), ErrorKind::BadUrl, "{text}: {error}");
    for word in words {
        assert!(error.to_string().contains(word), "{text}: {error} says nothing of {word:?}");
    }
}

#[test]
fn servers_users_and_databases() {
    let settings = good("postgres://app:s%2Fe%40c@db1,[::1]:5433/my%20db");
    assert_eq!(settings.servers, [Address::new("db1", 5432), Address::new("::1", 5433)]);
    assert_eq!(settings.user.as_deref(), Some("app"));
    assert_eq!(settings.password.as_ref().map(Secret::reveal), Some("s/e@c"));
    assert_eq!(settings.database.as_deref(), Some("my db"));
    assert_eq!(settings.describe(), "postgres://app@db1:5432,[::1]:5433/my db");
    let plain = good("postgresql://db");
    assert_eq!((plain.user, plain.database, plain.tls), (None, None, None));
    assert_eq!((plain.schema.as_str(), plain.prefix.as_str(), plain.liveness), ("public", "tenure_", Liveness::Lease));
}

#[test]
fn every_parameter_is_read() {
    let settings = good(
        "postgres://db/x?schema=locks&prefix=a_&owner=dba&liveness=session&connect_limit=1s&answer_limit=2s&patience=3s&strict=yes&insecure_login=yes\
         &tls=yes&ca=/ca.pem&cert=/c.pem&key=/k.pem&server_name=db.internal",
    );
    assert_eq!((settings.schema.as_str(), settings.prefix.as_str()), ("locks", "a_"));
    assert_eq!((settings.owner.as_deref(), settings.liveness), (Some("dba"), Liveness::Session));
    let limits = [settings.connect_limit, settings.answer_limit, settings.patience];
    assert_eq!(limits, [1, 2, 3].map(Duration::from_secs));
    assert!(settings.strict && settings.insecure_login);
    assert_eq!(settings.tls.unwrap().server_name.as_deref(), Some("db.internal"));
}

#[test]
fn mistakes_are_named() {
    bad("mysql://db", &["mysql", "postgres"]);
    bad("postgres://db?colour=red", &["colour", "schema, prefix, owner", "server_name"]);
    bad("postgres://db?sslmode=require", &["sslmode", "tls"]);
    bad("postgres://db?ca=/ca.pem", &["ca", "tls=yes"]);
    bad("postgres://db?tls=maybe", &["tls", "yes or no"]);
    bad("postgres://db?tls=yes&cert=/c.pem", &["key="]);
    bad("postgres://db?prefix=Robert%27)%3B", &["prefix", "lower case"]);
    bad("postgres://db?schema=%22x%22", &["schema", "lower case"]);
    bad("postgres://db?liveness=forever", &["liveness", "lease or session"]);
    bad("postgres://db?answer_limit=0s", &["answer_limit", "from"]);
    bad("postgres://db?patience=soon", &["patience", "duration"]);
    bad("postgres://db:port", &["port", "1 to 65535"]);
    bad("postgres://db/a/b", &["name of a database"]);
    bad("postgres:///db", &["no host"]);
}

#[test]
fn a_password_is_never_shown() {
    let settings = good("postgres://app:hunter2@db/x");
    assert!(!format!("{settings:?} {}", settings.describe()).contains("hunter2"));
    for text in ["postgres://app:hunter2@db/x?colour=red", "postgres://app:hunter2@db/a/b", "postgres://app:hunter2@d b"] {
        assert!(!read(text).unwrap_err().to_string().contains("hunter2"), "{text}");
    }
}
