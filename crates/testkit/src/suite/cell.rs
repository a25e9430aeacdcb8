//! The optimistic lock: written only if nobody wrote since it was read.

use tenure_core::ErrorKind;
use tokio::task::JoinSet;

use crate::names::corpus;
use crate::{Scene, in_time};

/// Read, write, write again; a stale version writes nothing.
pub async fn a_stale_version_writes_nothing(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let (mine, yours) = (one.cell("x").unwrap(), other.cell("x").unwrap());
    assert_eq!(mine.get().await.unwrap(), (None, 0));
    let first = mine.set_if(0, "a").await.unwrap().expect("there was none");
    assert_eq!(yours.set_if(0, "b").await.unwrap(), None, "there is one now");
    assert_eq!(yours.get().await.unwrap(), (Some(b"a".to_vec()), first));
    let second = yours.set_if(first, "c").await.unwrap().expect("nobody wrote since");
    assert!(second > first);
    assert_eq!(mine.set_if(first, "d").await.unwrap(), None);
    assert_eq!(mine.get().await.unwrap(), (Some(b"c".to_vec()), second));
}

/// Tasks of two clients add up without a lock, and no addition is lost.
pub async fn updates_add_up(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let cell = if task % 2 == 0 { &one } else { &other }.cell("x").unwrap();
        tasks.spawn(async move {
            for _ in 0..20 {
                let add = |value: Option<&[u8]>| {
                    let count: u64 = value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap());
                    Some((count + 1).to_string().into_bytes())
                };
                // With many contenders an update may give up; that is an error that may be tried again.
                while let Err(error) = cell.update(add).await {
                    assert!(error.is_transient(), "{error}");
                }
            }
        });
    }
    in_time("all have added", tasks.join_all()).await;
    assert_eq!(one.cell("x").unwrap().get().await.unwrap().0, Some(b"120".to_vec()));
}

/// Removed and made anew, a version does not come back: what was read before is stale for ever.
pub async fn versions_never_start_over(scene: &Scene) {
    let client = scene.client().await;
    let cell = client.cell("x").unwrap();
    let mut last = 0;
    for _ in 0..20 {
        let version = cell.set_if(0, "x").await.unwrap().expect("there is none");
        assert!(version > last);
        assert!(!cell.remove_if(version - 1).await.unwrap());
        assert!(cell.remove_if(version).await.unwrap());
        assert_eq!(cell.get().await.unwrap(), (None, 0));
        assert_eq!(cell.set_if(version, "y").await.unwrap(), None, "it is gone");
        last = version;
    }
    scene.leaves_nothing([client]).await;
}

/// Any bytes, up to 64 KiB, none included; one more is refused.
pub async fn values_at_their_limits(scene: &Scene) {
    let client = scene.client().await;
    let cell = client.cell("x").unwrap();
    let mut version = 0;
    for value in [vec![], vec![0], (0..=255).collect(), vec![0xff; 64 * 1024]] {
        version = cell.set_if(version, &value).await.unwrap().expect("nobody else writes");
        assert_eq!(cell.get().await.unwrap(), (Some(value), version));
    }
    assert_eq!(cell.set_if(version, vec![0; 64 * 1024 + 1]).await.unwrap_err().kind(), ErrorKind::BadOption);
}

/// An update that changes its mind writes nothing.
pub async fn an_update_may_leave_it(scene: &Scene) {
    let client = scene.client().await;
    let cell = client.cell("x").unwrap();
    let version = cell.set_if(0, "a").await.unwrap().unwrap();
    assert_eq!(cell.update(|_| None).await.unwrap(), None);
    assert_eq!(cell.get().await.unwrap(), (Some(b"a".to_vec()), version));
    let (value, newer) = cell.update(|value| value.map(|value| [value, b"b"].concat())).await.unwrap().expect("written");
    assert!(value.as_deref() == Some(b"ab") && newer > version);
}

/// Cells of different names are different, and have nothing to do with locks of the same name.
pub async fn names_are_different_and_not_locks(scene: &Scene) {
    let client = scene.client().await;
    let names = corpus();
    for name in &names {
        client.cell(name).unwrap().set_if(0, name).await.unwrap().unwrap_or_else(|| panic!("{name:?} meets another"));
    }
    for name in &names {
        assert_eq!(client.cell(name).unwrap().get().await.unwrap().0, Some(name.clone().into_bytes()));
    }
    assert!(client.list("", None, 10).await.unwrap().is_empty(), "no lock is in use");
    assert!(client.mutex(&names[0]).unwrap().try_lock().await.unwrap().is_some());
}
