//! URLs, good and bad; and what is never shown.

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Settings> {
    Settings::from_url(&text.parse::<StoreUrl>()?)
}

fn good(text: &str) -> Settings {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn bad(text: &str, words: &[&str]) {
    let error = read(text).err().unwrap_or_else(|| panic!("{text} was taken")).to_string();
    words.iter().for_each(|word| assert!(error.contains(word), "{text}: {error} says nothing of {word:?}"));
}

#[test]
fn a_url_says_everything() {
    let s =
        good("mysql://app:p%40ss@db.example:3307/locks?prefix=l_&connect_limit=1s&answer_limit=2s&patience=3s&strict=yes");
    assert_eq!((s.address, s.user.as_str(), s.database.as_str()), (Address::new("db.example", 3307), "app", "locks"));
    assert_eq!((s.password.as_ref().map(Secret::reveal), s.prefix.as_str(), s.strict), (Some("p@ss"), "l_", true));
    assert_eq!([s.connect_limit, s.answer_limit, s.patience].map(|limit| limit.as_secs()), [1, 2, 3]);
    let s = good("mariadb://[::1]/tenure");
    assert_eq!((s.address, s.user.as_str(), s.prefix.as_str()), (Address::new("::1", 3306), "root", "tenure_"));
    assert_eq!(s.tls, None);
    let tls = good("mysql://h/d?tls=yes&ca=/etc/ca.pem&cert=/a&key=/b&server_name=db.internal").tls.unwrap();
    assert_eq!((tls.ca, tls.server_name.as_deref()), (Some("/etc/ca.pem".into()), Some("db.internal")));
}

#[test]
fn what_is_wrong_is_said() {
    bad("mysql://", &["no host"]);
    bad("mysql:///db", &["no host"]);
    bad("mysql://h", &["name of a database", "/tenure"]);
    bad("mysql://h/", &["name of a database"]);
    bad("mysql://h/a/b", &["name of a database"]);
    bad("mysql://h/a`b", &["name of a database"]);
    bad("mysql://a,b/db", &["one server, not 2", "primary"]);
    bad("mysql://h:0/db", &["port"]);
    bad("mysqlx://h/db", &["no scheme", "mysql, mariadb"]);
    bad("mysql://h/db?colour=red", &["colour", "prefix", "patience"]);
    bad("mysql://h/db?liveness=session", &["\"liveness\"", "prefix", "patience"]);
    bad("mysql://h/db?ca=/x", &["\"ca\"", "tls"]);
    bad("mysql://h/db?tls=maybe", &["tls", "yes or no"]);
    bad("mysql://h/db?prefix=", &["prefix", "small letter"]);
    bad("mysql://h/db?prefix=1a", &["prefix"]);
    bad("mysql://h/db?prefix=a`b", &["prefix"]);
    bad("mysql://h/db?prefix=Ab", &["prefix"]);
    bad(&format!("mysql://h/db?prefix={}", "x".repeat(32)), &["prefix"]);
    bad("mysql://h/db?patience=soon", &["patience", "30s"]);
    bad("mysql://h/db?connect_limit=0", &["connect_limit", "1ms"]);
    bad("mysql://h/db?tls=yes&cert=/x", &["come together", "key=FILE"]);
    bad("mysql://h/db?tls=yes&server_name=a:1", &["server_name"]);
}

#[test]
fn every_parameter_is_documented() {
    let (source, docs) = (include_str!("../config.rs"), include_str!("../docs.md"));
    for name in PARAMETERS {
        let listed = source.contains(&format!("/// - `{name}=")) || source.contains(&format!(", `{name}="));
        assert!(listed, "{name} in PARAMETERS");
        assert!(docs.contains(&format!("`{name}`")), "{name} in docs.md");
    }
}

#[test]
fn the_driver_is_told_what_matters() {
    let options = good("mysql://app:hunter2@db:3307/locks").options().unwrap();
    assert_eq!((options.ip_or_hostname(), options.tcp_port()), ("db", 3307));
    assert_eq!((options.user(), options.pass(), options.db_name()), (Some("app"), Some("hunter2"), Some("locks")));
    assert!(!options.client_found_rows(), "rows that are as they should be would look changed");
    assert!(!options.prefer_socket() && options.tcp_nodelay() && options.tcp_keepalive().is_some());
}

proptest! {
    #[test]
    fn secrets_are_never_shown(
        password in "[A-Z]{8,12}",
        rest in prop_oneof![
            Just("h/d".to_owned()), Just("h".to_owned()), Just("a,b/d".to_owned()), Just("h/d?strict=x".to_owned()),
            Just("[::1".to_owned()), Just("h/d?prefix=Q".to_owned()), "\\PC{0,12}",
        ],
        scheme in prop::sample::select(SCHEMES),
    ) {
        if let Ok(url) = format!("{scheme}://user:{password}@{rest}").parse::<StoreUrl>() {
            let shown = match Settings::from_url(&url) {
                Ok(settings) => format!("{settings:?} {settings:#?} {}", settings.describe()),
                Err(error) => format!("{error} {error:?} {error:#?}"),
            };
            prop_assert!(!shown.contains(&password), "{}", shown);
        }
    }

    #[test]
    fn rubbish_is_an_error_and_never_a_panic(text in "\\PC{0,40}", scheme in prop::sample::select(SCHEMES)) {
        if let Ok(url) = format!("{scheme}://{text}").parse::<StoreUrl>() {
            let _ = Settings::from_url(&url);
        }
    }
}
