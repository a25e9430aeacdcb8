//! URLs that are right, URLs that are wrong, and secrets that stay secret.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use tenure_core::{ErrorKind, parse_duration};
use tenure_testkit::servers::redis::{Redis, RedisOptions};

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
        assert!(error.to_string().contains(word), "{text}: {error:?} says nothing of {word:?}");
    }
}

fn at(host: &str, port: u16) -> Address {
    Address::new(host, port)
}

#[test]
fn servers_of_every_kind() {
    for (text, topology) in [
        ("redis://cache", Topology::Single(at("cache", 6379))),
        ("rediss://cache:7000/", Topology::Single(at("cache", 7000))),
        ("redis://[::1]", Topology::Single(at("::1", 6379))),
        ("redis://[2001:db8::1]:7000/3", Topology::Single(at("2001:db8::1", 7000))),
        (
            "redis+sentinel://a,b:5000/mymaster",
            Topology::Sentinel { sentinels: vec![at("a", 26379), at("b", 5000)], service: "mymaster".to_owned() },
        ),
        ("redis+cluster://a,b:7001,[::1]:7002", Topology::Cluster(vec![at("a", 6379), at("b", 7001), at("::1", 7002)])),
        ("redlock://a,b,c", Topology::Redlock(vec![at("a", 6379), at("b", 6379), at("c", 6379)])),
    ] {
        assert_eq!(good(text).topology, topology, "{text}");
    }
    for scheme in SCHEMES {
        let settings = good(&format!(
            "{scheme}://{}",
            if scheme.contains("redlock") { "a,b,c" } else { "a/" }.to_owned()
                + if scheme.contains("sentinel") { "m" } else { "" }
        ));
        assert_eq!(settings.tls.is_some(), scheme.starts_with("rediss"), "{scheme}");
    }
}

#[test]
fn users_databases_and_what_is_shown() {
    let settings = good("redis://app:s%40cret@cache/7");
    assert_eq!((settings.user.as_deref(), settings.db), (Some("app"), 7));
    assert_eq!(settings.password.as_ref().map(Secret::reveal), Some("s@cret"));
    assert_eq!(settings.describe(), "redis://app@cache:6379/7");
    assert_eq!(good("redis+sentinel://a,b/m/2").describe(), "redis+sentinel://a:26379,b:26379/m/2");
    assert_eq!(good("rediss+cluster://[::1]").describe(), "rediss+cluster://[::1]:6379");
    assert_eq!(good("rediss+redlock://a,b,c").describe(), "rediss+redlock://a:6379,b:6379,c:6379");
    assert_eq!(good("redlock://a,b,c/0").of_node(&at("b", 6379)).describe(), "redis://b:6379");
}

#[test]
fn parameters_are_read() {
    let s = good(
        "redis://h?prefix=app:locks&connect_limit=2s&answer_limit=250ms&patience=1m30s&strict=yes&nodelay=no&min_replicas=2&replica_wait=1.5",
    );
    assert_eq!((s.prefix.as_str(), s.strict, s.nodelay, s.min_replicas), ("app:locks", true, false, 2));
    assert_eq!((s.connect_limit, s.answer_limit), (Duration::from_secs(2), Duration::from_millis(250)));
    assert_eq!((s.patience, s.replica_wait), (Duration::from_secs(90), Duration::from_millis(1500)));
    let s = good("redlock://a,b,c?node_limit=5ms&largest_ttl=10m&durable=yes&fencing=majority");
    assert_eq!((s.node_limit, s.largest_ttl), (Duration::from_millis(5), Duration::from_secs(600)));
    assert!(s.durable && s.fencing);
    let s = good("redis+sentinel://a/m?sentinel_user=watcher&sentinel_password=x%26y");
    assert_eq!(s.sentinel_user.as_deref(), Some("watcher"));
    assert_eq!(s.sentinel_password.as_ref().map(Secret::reveal), Some("x&y"));
    let s = good("rediss://h?ca=/etc/ca.pem&cert=/a&key=/b&server_name=redis.internal");
    let tls = s.tls.unwrap();
    assert_eq!((tls.ca, tls.server_name.as_deref()), (Some("/etc/ca.pem".into()), Some("redis.internal")));
}

#[test]
fn every_parameter_is_known_to_some_scheme_and_documented() {
    let source = include_str!("../config.rs");
    let docs = include_str!("../docs.md");
    for name in PARAMETERS {
        assert!(
            source.contains(&format!("/// - `{name}=")) || source.contains(&format!(", `{name}=")),
            "{name} in PARAMETERS"
        );
        assert!(docs.contains(&format!("`{name}`")), "{name} in docs.md");
        let taken = SCHEMES.iter().filter(|scheme| {
            let door = Door::of(&format!("{scheme}://a").parse().unwrap()).unwrap();
            door.parameters().contains(name)
        });
        assert_ne!(taken.count(), 0, "{name}");
    }
}

/// The ACL line in the documentation, word by word.
fn acl_line() -> Vec<&'static str> {
    let docs = include_str!("../docs.md");
    let line = docs.split("```text").find(|part| part.contains("ACL SETUSER")).unwrap().split("```").next().unwrap();
    line.split_whitespace().collect()
}

/// Every command that our code and our scripts name.
fn used() -> BTreeSet<String> {
    // The login's; the publishing words, which scripts are given as arguments; and EVALSHA, which is no `cmd`.
    let mut used: BTreeSet<String> = ["select", "publish", "spublish", "evalsha"].map(str::to_owned).into();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let crate_root = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let is_ours = |path: &Path| {
        let declared = format!("mod {};\n", path.file_stem().unwrap().to_str().unwrap());
        crate_root.contains(&declared) && !crate_root.contains(&format!("#[cfg(test)]\n{declared}"))
    };
    for file in std::fs::read_dir(&source).unwrap().chain(std::fs::read_dir(source.join("scripts")).unwrap()) {
        let path = file.unwrap().path();
        let (before, after) = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") if is_ours(&path) => ("cmd(\"", '"'),
            Some("lua") => ("call('", '\''),
            _ => continue,
        };
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        used.extend(code.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0.to_lowercase())));
    }
    used.remove("sentinel"); // another server, another user
    if used.remove("script") {
        used.insert("script|load".to_owned());
    }
    if used.remove("cluster") {
        used.extend(["cluster|slots", "cluster|info"].map(str::to_owned));
    }
    used
}

#[test]
fn the_acl_line_has_every_command_that_is_used_and_no_other() {
    let allowed: BTreeSet<&str> = acl_line().into_iter().filter_map(|word| word.strip_prefix('+')).collect();
    let used = used();
    let missing: Vec<_> = used.iter().filter(|command| !allowed.contains(command.as_str())).collect();
    let idle: Vec<_> = allowed.iter().filter(|command| !used.contains(**command)).collect();
    assert!(missing.is_empty() && idle.is_empty(), "the ACL line in docs.md lacks {missing:?} and has {idle:?} for nothing");
}

#[tokio::test]
async fn a_real_server_takes_the_acl_line_and_its_user_can_connect_and_look() {
    let redis = Redis::start(RedisOptions::new());
    redis.command(&acl_line());
    let settings = good(&format!("{}/1", redis.url_as("app", "SECRET")));
    let address = at("127.0.0.1", redis.port());
    let client = settings.client(&address).unwrap();
    let mut connection = client.get_multiplexed_async_connection_with_config(&settings.connection(&address)).await.unwrap();
    assert!(crate::examine::look(&mut connection).await.unwrap().told);
    let refused = redis.command(&["ACL", "LOG"]).list();
    assert!(refused.is_empty(), "{} requests were refused", refused.len());
}

#[test]
fn what_is_wrong_is_said() {
    bad("redis://", &["no host", "HOST:PORT"]);
    bad("redis:///0", &["no host"]);
    bad("redis://a,b", &["one server, not 2", "redis+cluster", "redlock"]);
    bad("redis://a,", &["server 2", "no host"]);
    bad("redis://a:0", &["port", "1 to 65535"]);
    bad("redis://a:65536", &["port"]);
    bad("redis://a:b:c", &["port"]);
    bad("redis://[::1", &["]"]);
    bad("redis://[nonsense]", &["IPv6"]);
    bad("redis://[::1]x", &["port"]);
    bad("redis://a b", &["host"]);
    bad("redis://a/b", &["number of a database"]);
    bad("redis://a/-1", &["number of a database"]);
    bad("redis://a/1/2", &["number of a database"]);
    bad("redis://a/99999999999", &["number of a database"]);
    bad("redis+cluster://a/1", &["no database but 0", "prefix"]);
    bad("redis+sentinel://a", &["what the sentinels call the master", "/mymaster"]);
    bad("redis+sentinel://a/my master", &["what the sentinels call the master"]);
    bad("redis+sentinel://a/m/x", &["number of a database"]);
    bad("redlock://a,b", &["odd number", "not 2"]);
    bad("redlock://a,b,c,d", &["odd number", "not 4"]);
    bad("redlock://a", &["odd number", "not 1"]);
    bad("redlock://a,b,a", &["a:6379 is named twice"]);
    bad("redis://a?colour=red", &["colour", "prefix", "min_replicas"]);
    bad("redis://a?ca=/x", &["\"ca\"", "prefix"]);
    bad("redis://a?node_limit=1s", &["node_limit"]);
    bad("redlock://a,b,c?min_replicas=1", &["min_replicas", "fencing"]);
    bad("redis://a?prefix=", &["prefix", "1 to 64"]);
    bad("redis://a?prefix=a{b}", &["prefix", "1 to 64"]);
    bad(&format!("redis://a?prefix={}", "x".repeat(65)), &["prefix"]);
    bad("redis://a?strict=maybe", &["strict", "yes or no"]);
    bad("redis://a?patience=soon", &["patience", "30s"]);
    bad("redis://a?connect_limit=0", &["connect_limit", "1ms"]);
    bad("redis://a?min_replicas=-1", &["min_replicas", "whole number"]);
    bad("redlock://a,b,c?node_limit=6s", &["node_limit", "1ms", "5s"]);
    bad("redlock://a,b,c?node_limit=0.5ms", &["node_limit", "1ms"]);
    bad("redlock://a,b,c?largest_ttl=2d", &["largest_ttl"]);
    bad("redlock://a,b,c?fencing=yes", &["fencing", "majority or none"]);
    bad("rediss://a?cert=/x", &["come together", "key=FILE"]);
    bad("rediss://a?server_name=a:6379", &["server_name"]);
    bad("redis+tls://a", &["no scheme", "rediss"]);
}

#[test]
fn durations_are_those_of_the_command() {
    for (text, milliseconds) in [
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("7", 7_000),
        ("0.1", 100),
        ("1m500ms", 60_500),
        ("2d", 172_800_000),
    ] {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
    }
    for text in ["", " ", "s", "-1", "+1", "1 s", "1x", "1e3", "inf", "1s1s", "30s1h", "1h30", ".", ".5s", "1..2s", "5µs"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

#[test]
fn a_forgotten_at_sign_does_not_show_the_password() {
    for text in
        ["redis://app:hunter2", "redis://:hunter2", "redis://hunter2:x", "redis://host/hunter2", "redlock://a,app:hunter2,b"]
    {
        let error = read(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}: {error}");
    }
}

#[test]
fn the_crate_is_told_everything_and_sends_nothing_else() {
    let settings = good("redis://app:hunter2@cache:7000/3?nodelay=yes");
    let client = settings.client(&at("cache", 7000)).unwrap();
    let info = client.get_connection_info();
    assert_eq!(info.addr(), &ConnectionAddr::Tcp("cache".to_owned(), 7000));
    assert!(info.tcp_settings().nodelay());
    let login = info.redis_settings();
    assert_eq!((login.username(), login.password(), login.db()), (Some("app"), Some("hunter2"), 3));
    assert_eq!(login.protocol(), ProtocolVersion::RESP3);
    assert!(login.skip_set_lib_name(), "CLIENT SETINFO would need a right of its own");
    // A user without a password is named all the same.
    let client = good("redis://app@cache").client(&at("cache", 1)).unwrap();
    assert_eq!(client.get_connection_info().redis_settings().password(), Some(""));
    let client = good("redis+sentinel://a/m?sentinel_password=x").sentinel_client(&at("a", 1)).unwrap();
    let login = client.get_connection_info().redis_settings();
    assert_eq!((login.username(), login.password(), login.db()), (None, Some("x"), 0));
    // With another name for the certificate, the name is asked for and the address is gone to.
    let settings = good("rediss://10.0.0.7?server_name=redis.internal");
    let client = settings.client(&at("10.0.0.7", 6379)).unwrap();
    assert_eq!(client.get_connection_info().addr().to_string(), "redis.internal:6379");
}

proptest! {
    #[test]
    fn secrets_are_never_shown(
        password in "[A-Z]{8,12}", other in "[A-Z]{8,12}",
        rest in prop_oneof![
            Just("a/m".to_owned()), Just("a".to_owned()), Just("a,b".to_owned()), Just("a/m?strict=x".to_owned()),
            Just("[::1".to_owned()), Just("a/m/x".to_owned()), Just("a/m?prefix={}".to_owned()), "\\PC{0,12}",
        ],
        scheme in prop::sample::select(SCHEMES),
    ) {
        let mark = if rest.contains('?') { '&' } else { '?' };
        let text = format!("{scheme}://user:{password}@{rest}{mark}sentinel_password={other}");
        if let Ok(url) = text.parse::<StoreUrl>() {
            let shown = match Settings::from_url(&url) {
                Ok(settings) => format!("{settings:?} {settings:#?} {}", settings.describe()),
                Err(error) => format!("{error} {error:?} {error:#?}"),
            };
            prop_assert!(!shown.contains(&password) && !shown.contains(&other), "{}", shown);
        }
    }

    #[test]
    fn rubbish_is_an_error_and_never_a_panic(text in "\\PC{0,40}", scheme in prop::sample::select(SCHEMES)) {
        if let Ok(url) = format!("{scheme}://{text}").parse::<StoreUrl>() {
            let _ = Settings::from_url(&url);
        }
        let _ = parse_duration(&text);
    }
}
