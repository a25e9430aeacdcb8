//! URLs, read and refused.

use tenure_core::ErrorKind;

use super::*;

fn read(url: &str) -> Result<Settings> {
    Settings::from_url(&url.parse()?)
}

#[test]
fn urls_say_what_they_mean() {
    let plain = read("etcd://one,two:2380,[::1]:7?prefix=a/b&answer_limit=2s&layout=concurrency&strict=yes").unwrap();
    let members = [Address::new("one", 2379), Address::new("two", 2380), Address::new("::1", 7)];
    assert_eq!((&plain.members[..], plain.tls.is_none()), (&members[..], true));
    assert_eq!((plain.prefix.as_str(), plain.answer_limit), ("a/b", Duration::from_secs(2)));
    assert_eq!((plain.layout, plain.strict), (Layout::Concurrency, true));
    assert_eq!(plain.describe(), "etcd://one:2379,two:2380,[::1]:7");
    let secure = read("etcds://me:pa%2Fss@one?ca=/ca.pem&cert=/c.pem&key=/k.pem&server_name=etcd").unwrap();
    assert_eq!(secure.password.as_ref().map(Secret::reveal), Some("pa/ss"));
    assert!(secure.tls.is_some_and(|tls| tls.ca.is_some() && tls.server_name.as_deref() == Some("etcd")));
}

#[test]
fn what_cannot_be_is_refused_with_words() {
    for (url, word) in [
        ("etcd://h?layout=other", "layout"),
        ("etcd://h/path", "path"),
        ("etcd://h?ca=/x", "ca"),
        ("etcd://h?prefix=a%20b", "prefix"),
        ("etcd://h?answer_limit=0s", "answer_limit"),
        ("etcd://h?what=1", "what"),
        ("etcds://h?cert=/c.pem", "key"),
    ] {
        let error = read(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadUrl, "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let settings = read("etcds://me:swordfish@one").unwrap();
    assert!(!format!("{settings:?} {}", settings.describe()).contains("swordfish"));
}
