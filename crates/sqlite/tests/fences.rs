//! The suite every fence must pass, over a fresh file for each case; and how it stands beside the file's other uses.

use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{ErrorKind, LockName, Result, Token};
use tenure_sqlite::{Settings, Sqlite, fence, open_fence};
use tenure_testkit::fences::FenceHarness;
use tenure_testkit::fences::writer;

struct File(TempDir);

impl File {
    fn new() -> Self {
        File(tempfile::tempdir().expect("a directory can be made"))
    }

    fn address(&self) -> String {
        format!("sqlite://{}/data.db", self.0.path().display())
    }
}

impl FenceHarness for File {
    async fn start() -> Self {
        File::new()
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        Self::open(&self.address()).await.expect("the fence can be opened")
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Fence>> {
        open_fence(&url.parse()?)
    }
}

tenure_testkit::fences!(sqlite => File);

/// The user's own transaction and the fence on a connection of its own know of each other.
#[tokio::test]
async fn one_row_answers_both_ways() {
    let file = File::new();
    let (own, a) = (FenceHarness::fence(&file).await, LockName::new("a").unwrap());
    let mut db = rusqlite::Connection::open(file.0.path().join("data.db")).unwrap();
    let mut check = |token| {
        let tx = db.transaction().unwrap();
        let checked = fence(&tx, "a", writer("a", token)).check();
        tx.commit().unwrap();
        checked
    };
    assert!(own.advance(&a, Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    assert_eq!(check(9).unwrap_err().kind(), ErrorKind::Lost);
    check(11).unwrap();
    let stale = Verdict::Stale { highest: Token::new(11) };
    assert_eq!(own.advance(&a, Token::new(10), Rule::ANY).await.unwrap(), stale);
}

/// A file of locks may have a fence in it, and is still one.
#[tokio::test]
async fn a_file_of_locks_takes_a_fence() {
    let file = File::new();
    let path = file.0.path().join("data.db");
    drop(Sqlite::open(&path, Settings::default()).unwrap());
    let own = FenceHarness::fence(&file).await;
    assert!(own.advance(&LockName::new("a").unwrap(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    drop(Sqlite::open(&path, Settings::default()).unwrap());
}

#[tokio::test]
async fn what_will_not_do_is_explained() {
    let file = File::new();
    std::fs::write(file.0.path().join("text"), "not a database, but long enough to be taken for one".repeat(30)).unwrap();
    for (url, kind) in [
        ("sqlite://".to_owned(), ErrorKind::BadUrl),
        (format!("sqlite://{}/text", file.0.path().display()), ErrorKind::Backend),
        (format!("sqlite://{}/no/such.db", file.0.path().display()), ErrorKind::Backend),
        (format!("{}?colour=red", file.address()), ErrorKind::BadUrl),
    ] {
        let refused = File::open(&url).await.err().expect(&url);
        assert_eq!(refused.kind(), kind, "{url}: {refused}");
        assert!(refused.hint().is_some(), "{url}: {refused}");
    }
    let fence = FenceHarness::fence(&file).await;
    std::fs::remove_file(file.0.path().join("data.db")).unwrap();
    let gone = fence.advance(&LockName::new("a").unwrap(), Token::new(1), Rule::ANY).await.unwrap_err();
    assert!(gone.to_string().contains("removed or replaced"), "{gone}");
}
