//! From a URL to a client: what is known, what is refused, and that no secret is ever shown.

use tenure::ErrorKind;

#[tokio::test]
async fn an_unknown_scheme_lists_the_known_ones() {
    let error = tenure::connect("floppy:///dev/fd0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadUrl);
    for scheme in tenure::SCHEMES {
        assert!(error.to_string().contains(scheme), "{error}");
    }
}

#[tokio::test]
async fn an_unknown_parameter_is_named() {
    let error = tenure::connect("memory://?colour=red").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadUrl);
    assert!(error.to_string().contains("colour"), "{error}");
}

#[tokio::test]
async fn secrets_are_never_printed() {
    for url in ["nosuch://user:hunter2@host/", "memory://user:hunter2@name?x=1", "memory://user:hunter2@%zz", "hunter2"] {
        let error = tenure::connect(url).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn memory_is_private_or_shared_by_name() {
    let name = "memory://connect-test";
    let (one, other, private) = (
        tenure::connect(name).await.unwrap(),
        tenure::connect(name).await.unwrap(),
        tenure::connect("memory://").await.unwrap(),
    );
    let guard = one.mutex("x").unwrap().lock().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert!(private.mutex("x").unwrap().try_lock().await.unwrap().is_some());
    guard.release().await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_file_is_shared_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.db", dir.path().display());
    let (one, other) = (tenure::connect(&url).await.unwrap(), tenure::connect(&url).await.unwrap());
    let guard = one.mutex("x").unwrap().lock().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}
