//! The suite every fence must pass, over memory and over a fresh file for each case; and what a file goes through besides.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::fence::{Fence, FileFence, MemoryFence, Rule, Verdict};
use tenure_core::{ErrorKind, LockName, Result, Token};
use tenure_testkit::fences::FenceHarness;

struct Memory(MemoryFence);

impl FenceHarness for Memory {
    async fn start() -> Self {
        Memory(MemoryFence::new())
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        Arc::new(self.0.clone())
    }
}

struct File(TempDir);

impl File {
    fn new() -> Self {
        File(tempfile::tempdir().expect("a directory can be made"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("fence")
    }

    fn open(&self) -> FileFence {
        FileFence::open(self.path()).expect("the fence can be opened")
    }
}

impl FenceHarness for File {
    async fn start() -> Self {
        File::new()
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        Arc::new(File::open(self))
    }

    fn url(&self) -> Option<String> {
        Some(format!("file://{}", self.path().display()))
    }

    async fn open(url: &str) -> Result<Arc<dyn Fence>> {
        Ok(Arc::new(FileFence::connect(&url.parse()?)?))
    }
}

tenure_testkit::fences!(memory => Memory);
tenure_testkit::fences!(file => File);

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn advance(fence: &FileFence, text: &str, token: u64) -> Verdict {
    fence.advance(&name(text), Token::new(token), Rule::ANY).await.unwrap()
}

async fn highest(fence: &FileFence, text: &str) -> Option<u64> {
    fence.highest(&name(text)).await.unwrap().map(Token::get)
}

/// A fence with two names, and where its last line begins.
async fn two_names() -> (File, u64) {
    let file = File::new();
    let fence = file.open();
    assert!(advance(&fence, "a", 10).await.is_accepted());
    let end = std::fs::metadata(file.path()).unwrap().len();
    assert!(advance(&fence, "b", 20).await.is_accepted());
    (file, end)
}

/// At every byte: a write that was begun is as if it had never been, and the next one takes its place.
#[tokio::test]
async fn a_torn_write_is_noticed_and_cut_off() {
    let (file, end) = two_names().await;
    let whole = std::fs::read(file.path()).unwrap();
    for cut in end..whole.len() as u64 {
        std::fs::write(file.path(), &whole[..cut as usize]).unwrap();
        let fence = file.open();
        assert_eq!((highest(&fence, "a").await, highest(&fence, "b").await), (Some(10), None), "cut at {cut}");
        assert!(advance(&fence, "b", 5).await.is_accepted());
        assert_eq!(highest(&file.open(), "b").await, Some(5), "cut at {cut}");
    }
}

/// A block that the file system had promised and not written.
#[tokio::test]
async fn zeros_at_the_end_are_a_torn_write() {
    let (file, end) = two_names().await;
    let writer = OpenOptions::new().write(true).open(file.path()).unwrap();
    writer.write_all_at(&[0; 12], end).unwrap();
    writer.set_len(end + 4096).unwrap();
    let fence = file.open();
    assert_eq!((highest(&fence, "a").await, highest(&fence, "b").await), (Some(10), None));
    assert!(advance(&fence, "b", 21).await.is_accepted());
    assert_eq!(highest(&file.open(), "b").await, Some(21));
}

/// Never silently less: every other damage is an error, and the file is left as it is.
#[tokio::test]
async fn damage_is_an_error_and_never_an_empty_fence() {
    let (file, end) = two_names().await;
    let whole = std::fs::read(file.path()).unwrap();
    let last = end as usize + 12;
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damages: [(&str, Vec<u8>); 6] = [
        ("a digit of the first token", flipped(30)),
        ("a digit of the last token", flipped(last)),
        ("the header", flipped(3)),
        ("everything", Vec::new()),
        ("another file", b"root:x:0:0:root\n".to_vec()),
        ("zeros in the middle", [&whole[..20], &[0; 8], &whole[28..]].concat()),
    ];
    for (what, bytes) in damages {
        std::fs::write(file.path(), &bytes).unwrap();
        let refused = FileFence::open(file.path()).expect_err(what);
        assert_eq!(refused.kind(), ErrorKind::Backend, "{what}: {refused}");
        assert!(refused.hint().is_some(), "{what}: {refused}");
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes, "{what}: it is left as it is");
    }
}

#[tokio::test]
async fn a_file_that_is_damaged_or_removed_under_a_fence_is_an_error() {
    let (file, end) = two_names().await;
    let fence = file.open();
    OpenOptions::new().write(true).open(file.path()).unwrap().set_len(end).unwrap();
    let shorter = fence.highest(&name("b")).await.unwrap_err();
    assert!(shorter.to_string().contains("shorter"), "{shorter}");
    std::fs::remove_file(file.path()).unwrap();
    let gone = fence.advance(&name("b"), Token::new(1), Rule::ANY).await.unwrap_err();
    assert!(gone.to_string().contains("removed"), "{gone}");
    assert!(!file.path().exists(), "and nothing new is made in its place");
}

/// Somebody puts yesterday's file back under programs that still know better.
#[tokio::test]
async fn a_file_from_a_backup_is_told_what_is_still_known() {
    let file = File::new();
    let fence = file.open();
    assert!(advance(&fence, "a", 10).await.is_accepted());
    let backup = std::fs::read(file.path()).unwrap();
    assert!(advance(&fence, "a", 20).await.is_accepted());
    assert!(advance(&fence, "b", 5).await.is_accepted());
    let restored = file.path().with_extension("restored");
    std::fs::write(&restored, backup).unwrap();
    std::fs::rename(restored, file.path()).unwrap();
    assert_eq!(advance(&fence, "a", 15).await, Verdict::Stale { highest: Token::new(20) });
    let other = file.open();
    assert_eq!((highest(&other, "a").await, highest(&other, "b").await), (Some(20), Some(5)));
}

/// Many tokens of few names: the file is written anew before it grows without end, under everybody's feet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_is_written_anew_while_others_use_it() {
    let file = File::new();
    let fences = [file.open(), file.open(), file.open()];
    let first = std::fs::File::open(file.path()).unwrap(); // stays open: its number is nobody else's meanwhile
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    let long = "n".repeat(500);
    let mut tasks = Vec::new();
    for (number, fence) in fences.iter().cloned().enumerate() {
        let long = long.clone();
        tasks.push(tokio::spawn(async move {
            for token in 1..=150 {
                let _ = advance(&fence, &long, token * 3 + number as u64).await;
                let own = format!("own/{number}");
                assert!(advance(&fence, &own, token).await.is_accepted());
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let meta = std::fs::metadata(file.path()).unwrap();
    assert_ne!(meta.ino(), first.metadata().unwrap().ino(), "it was written anew");
    assert!(meta.len() < 2 * 64 * 1024, "{} bytes", meta.len());
    assert_eq!(meta.mode() & 0o777, 0o640, "with the rights that it had");
    let fence = file.open();
    assert_eq!(highest(&fence, &long).await, Some(452));
    for (number, everybody) in fences.iter().enumerate() {
        assert_eq!(highest(&fence, &format!("own/{number}")).await, Some(150));
        assert_eq!(highest(everybody, &long).await, Some(452), "and everybody sees it");
    }
    let neighbours = std::fs::read_dir(file.0.path()).unwrap().count();
    assert_eq!(neighbours, 1, "nothing is left beside it");
}

#[tokio::test]
async fn a_leftover_of_somebody_killed_while_writing_anew_is_in_nobodys_way() {
    let file = File::new();
    let mut leftover = std::fs::File::create(file.0.path().join(".fence.new")).unwrap();
    leftover.write_all(b"tenure-fence 1\nhalf a li").unwrap();
    let (fence, long) = (file.open(), "n".repeat(500));
    for token in 1..=150 {
        assert!(advance(&fence, &long, token).await.is_accepted());
    }
    assert!(std::fs::metadata(file.path()).unwrap().len() < 64 * 1024);
    assert_eq!(highest(&file.open(), &long).await, Some(150));
}

#[tokio::test]
async fn a_path_that_will_not_do_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    for (url, word) in [
        (format!("file://{}/no/such/fence", dir.path().display()), "directory exist"),
        (format!("file://{}/", dir.path().display()), "names no file"),
        ("file://".to_owned(), "names no file"),
        (format!("file://{}/fence?mode=fast", dir.path().display()), "no parameter"),
        (format!("file://{}", dir.path().display()), "fence"),
    ] {
        let refused = FileFence::connect(&url.parse().unwrap()).expect_err(&url).to_string();
        assert!(refused.contains(word), "{url}: {refused}");
    }
}
