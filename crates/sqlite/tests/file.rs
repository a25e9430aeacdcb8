//! The file on its bad days: foreign, damaged, read-only, full, from another boot, replaced. Each is an error that says
//! what it is, and nothing is destroyed.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Place, Second, order, say};
use rusqlite::Connection;
use tenure_core::backend::{Backend as _, Level};
use tenure_core::{Client, ErrorKind, Result};
use tenure_sqlite::{Settings, Sqlite, connect};
use tenure_testkit::{eventually, eventually_async, in_time};

fn open(path: &Path) -> Result<Sqlite> {
    Sqlite::open(path, Settings::default())
}

/// The error of opening a file, after which every byte in its directory is as it was.
fn refused(place: &Place, says: &str) {
    // A reader of a file in WAL mode makes an index, and a log without anything in it; those are nobody's data.
    let snapshot = || -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = std::fs::read_dir(place.directory()).unwrap().map(|entry| entry.unwrap().path());
        let files = paths.map(|path| (path.clone(), std::fs::read(path).unwrap()));
        files.filter(|(path, bytes)| !path.to_string_lossy().ends_with("-shm") && !bytes.is_empty()).collect()
    };
    let before = snapshot();
    let error = open(&place.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.hint().is_some(), "{error}");
    assert!(snapshot() == before, "nothing was changed");
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    for journal in ["DELETE", "WAL"] {
        let place = Place::new();
        let theirs = place.raw();
        theirs.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |_| Ok(())).unwrap();
        theirs.execute_batch("CREATE TABLE customers (name TEXT); INSERT INTO customers VALUES ('them')").unwrap();
        refused(&place, "another program");
        drop(theirs);
        refused(&place, "another program");
    }
}

#[test]
fn a_marked_database_without_tables_is_not_taken_over() {
    let place = Place::new();
    place.raw().execute_batch("PRAGMA application_id = 77; PRAGMA user_version = 3").unwrap();
    refused(&place, "another program");
}

#[test]
fn a_text_is_not_a_database() {
    let place = Place::new();
    std::fs::write(place.path(), "shopping list: milk, bread, and something that makes this long enough".repeat(20))
        .unwrap();
    refused(&place, "not an SQLite database");
}

#[test]
fn a_newer_format_is_refused() {
    let place = Place::new();
    drop(place.sqlite());
    place.raw().execute_batch("PRAGMA user_version = 2").unwrap();
    refused(&place, "format 2");
}

#[test]
fn an_empty_file_is_taken() {
    let place = Place::new();
    std::fs::write(place.path(), "").unwrap();
    assert_eq!(open(&place.path()).unwrap().residue().unwrap(), 0);
}

#[test]
fn directories() {
    let place = Place::new();
    let error = open(&place.directory().join("missing/locks.db")).unwrap_err();
    assert!(error.to_string().contains("missing cannot be used"), "{error}");
    assert!(!place.directory().join("missing").exists(), "only the default directory is made by itself");
    assert_eq!(open(place.directory()).unwrap_err().kind(), ErrorKind::BadUrl);
}

#[tokio::test]
async fn nobody_else_may_read_the_file_or_what_is_beside_it() {
    for (mode, rest) in [(0o600, ""), (0o640, "?mode=0640"), (0o666, "?mode=666")] {
        let place = Place::new();
        let url = format!("sqlite://{}{rest}", place.path().display());
        let sqlite = connect(&url.parse().unwrap()).unwrap();
        let found = sqlite.examine().await.unwrap().into_iter().find(|finding| finding.what == "permissions").unwrap();
        assert_eq!(found.level == Level::Good, mode != 0o666, "{found:?}");
        let client = Client::new(sqlite).unwrap();
        let guard = client.mutex("x").unwrap().lock().await.unwrap();
        for suffix in ["", "-wal", "-shm"] {
            let file = format!("{}{suffix}", place.path().display());
            let found = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{file} has {found:o}");
        }
        guard.release().await.unwrap();
    }
    for mode in ["0700", "0400", "rw", "8", ""] {
        let url = format!("sqlite:///nowhere/locks.db?mode={mode}");
        assert_eq!(connect(&url.parse().unwrap()).unwrap_err().kind(), ErrorKind::BadUrl, "{mode}");
    }
}

#[test]
fn a_link_to_nothing_makes_no_file() {
    let place = Place::new();
    let aim = place.directory().join("aim.db");
    std::os::unix::fs::symlink(&aim, place.path()).unwrap();
    assert_eq!(open(&place.path()).unwrap_err().kind(), ErrorKind::Backend);
    assert!(!aim.exists());
}

#[test]
fn urls() {
    let place = Place::new();
    let url = |rest: &str| format!("sqlite://{}{rest}", place.path().display()).parse().unwrap();
    assert!(connect(&url("")).is_ok());
    assert!(connect(&url("?network=allow&wake=poll")).is_ok());
    let unknown = connect(&url("?colour=red")).unwrap_err();
    assert!(unknown.to_string().contains("mode, network, wake"), "{unknown}");
    let value = connect(&url("?wake=never")).unwrap_err();
    assert_eq!(value.kind(), ErrorKind::BadUrl);
    assert!(value.to_string().contains("message or poll"), "{value}");
}

#[tokio::test]
async fn a_garbled_record_is_an_error_for_its_name_alone() {
    let place = Place::new();
    let client = place.client();
    let held = client.mutex("bad").unwrap().lock().await.unwrap();
    let raw = place.raw();
    raw.execute("UPDATE lock SET record = x'01ff' WHERE name = 'bad'", []).unwrap();
    let error = client.mutex("bad").unwrap().try_lock().await.unwrap_err();
    assert!(error.to_string().contains("corrupt") && error.hint().is_some(), "{error}");
    assert!(client.view("bad").await.is_err());
    client.mutex("good").unwrap().lock().await.unwrap().release().await.unwrap();
    let record: Vec<u8> = raw.query_row("SELECT record FROM lock WHERE name = 'bad'", [], |row| row.get(0)).unwrap();
    assert_eq!(record, [1, 255], "it is left as it is");
    drop(held);
}

#[tokio::test]
async fn damaged_pages_are_an_error_that_says_so() {
    let place = Place::new();
    let client = place.client();
    for number in 0..200 {
        client.mutex(format!("name {number}")).unwrap().lock().await.unwrap().release().await.unwrap();
    }
    client.close().await.unwrap();
    drop(client);
    // While the client's last connection reads, pages stay in the other file and would be taken from there.
    let is_busy = || place.raw().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0)).unwrap();
    eventually("all pages are in the file", || !is_busy()).await;
    let mut bytes = std::fs::read(place.path()).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(place.path(), &bytes).unwrap();
    let says = match open(&place.path()) {
        Err(error) => error,
        Ok(sqlite) => Client::new(sqlite).unwrap().mutex("name 7").unwrap().try_lock().await.unwrap_err(),
    };
    assert_eq!(says.kind(), ErrorKind::Backend);
    assert!(says.to_string().contains("corrupt") && says.hint().is_some_and(|hint| hint.contains("-wal")), "{says}");
    assert!(std::fs::read(place.path()).unwrap() == bytes, "nothing was changed");
}

#[tokio::test]
async fn a_record_that_contradicts_itself_is_an_error_and_can_be_broken() {
    let place = Place::new();
    let client = place.client();
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    // The one holder twice: its ticket begins behind version, kind, last token and count.
    let raw = place.raw();
    let record: Vec<u8> = raw.query_row("SELECT record FROM lock", [], |row| row.get(0)).unwrap();
    let (head, ticket) = record.split_at(14);
    let twice = [&head[..10], &2u32.to_le_bytes(), ticket, ticket].concat();
    raw.execute("UPDATE lock SET record = ?1", [twice]).unwrap();
    let error = client.mutex("x").unwrap().try_lock().await.unwrap_err();
    assert!(error.to_string().contains("contradicts itself"), "{error}");
    assert_eq!(client.break_holds("x", None).await.unwrap(), 2);
    client.mutex("x").unwrap().try_lock().await.unwrap().unwrap().release().await.unwrap();
    assert!(held.check().is_err());
}

#[tokio::test]
async fn a_restart_of_the_machine_voids_every_hold_and_tokens_rise_by_an_hour() {
    let place = Place::new();
    let before = place.client();
    let held = before.mutex("x").unwrap().ttl(Duration::from_secs(60)).unwrap().lock().await.unwrap();
    place.raw().execute("UPDATE meta SET value = 'another boot' WHERE what = 'boot'", []).unwrap();
    let after = place.client();
    assert!(after.view("x").await.unwrap().is_free());
    let new = after.mutex("x").unwrap().try_lock().await.unwrap().expect("nobody holds it");
    assert!(new.token().get() >= held.token().get() + 3_600_000_000);
    // Once is enough: the next one finds the boot it knows.
    let third = place.client();
    assert!(third.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let other = third.mutex("y").unwrap().try_lock().await.unwrap().unwrap();
    assert!(other.token().get() >= held.token().get() + 3_600_000_000, "the floor is for all names");
}

#[tokio::test]
async fn tokens_rise_though_the_file_was_deleted() {
    let place = Place::new();
    let first = place.client();
    let token = {
        let held = first.mutex("x").unwrap().lock().await.unwrap();
        let token = held.token();
        held.release().await.unwrap();
        token
    };
    first.close().await.unwrap();
    drop(first);
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", place.path().display()));
    }
    let second = place.client().mutex("x").unwrap().lock().await.unwrap();
    assert!(second.token() > token);
}

#[tokio::test]
async fn a_file_that_was_replaced_under_its_client_is_lost() {
    let place = Place::new();
    let client = place.client();
    let held = client.mutex("x").unwrap().ttl(Duration::from_millis(300)).unwrap().lock().await.unwrap();
    let waiting = client.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { waiting.lock().await.map(drop) });
    for suffix in ["", "-wal", "-shm"] {
        std::fs::rename(format!("{}{suffix}", place.path().display()), place.directory().join(format!("moved.db{suffix}")))
            .unwrap();
    }
    in_time("the hold is lost", held.lost()).await;
    let error = in_time("the waiter is told", waiting).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    assert!(client.mutex("y").unwrap().try_lock().await.is_err());
    assert!(client.view("x").await.is_err());
    // Whoever connects again has a new file, and the old client does not get in its way.
    let again = place.client();
    again.mutex("x").unwrap().try_lock().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() {
    let place = Place::new();
    let mount = place.directory().join("small");
    std::fs::create_dir(&mount).unwrap();
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&mount).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT TESTED: a full disk; this user may not mount one");
        return;
    }
    let unmount = Unmount(&mount);
    let client = Client::new(open(&mount.join("locks.db")).unwrap()).unwrap();
    let held = client.mutex("before").unwrap().lock().await.unwrap();
    let filler = mount.join("filler");
    let _ = std::fs::write(&filler, vec![0; 2 << 20]);
    let mut error = None;
    for number in 0..1000 {
        match client.mutex(format!("name {number}")).unwrap().try_lock().await {
            Ok(_) => {}
            Err(full) => {
                error = Some(full);
                break;
            }
        }
    }
    let error = error.expect("the disk is full");
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("disk is full") && error.hint().is_some(), "{error}");
    held.check().unwrap();
    std::fs::remove_file(&filler).unwrap();
    // What was dropped while the disk was full is let go of in the background, and whoever writes together with that shares its
    // fate: until one of them has found that there is room.
    let works = async || matches!(client.mutex("again").unwrap().try_lock().await, Ok(Some(_)));
    eventually_async("there is room again", works).await;
    held.release().await.unwrap();
    client.mutex("after").unwrap().lock().await.unwrap().release().await.unwrap();
    drop(client);
    drop(unmount);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_read_only_file_shows_its_locks_and_gives_none() {
    let place = Place::new();
    let keeper = place.sqlite();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(keeper).unwrap();
    let held = runtime.block_on(client.mutex("x").unwrap().lock()).unwrap();
    for suffix in ["-wal", "-shm"] {
        let path = format!("{}{suffix}", place.path().display());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o444)).unwrap();
    }
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::set_permissions(place.directory(), std::fs::Permissions::from_mode(0o555)).unwrap();
    // Whoever runs as root may write everything; another user may not.
    let mut other = Second::start_with("read", &place.path(), |command| {
        if rustix::process::geteuid().is_root() { command.uid(65534).gid(65534).current_dir("/") } else { command }
    });
    let said = other.hear();
    std::fs::set_permissions(place.directory(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(said.contains("x is held, 1 listed") && said.contains("read-only"), "{said}");
    runtime.block_on(held.release()).unwrap();
}

/// A shell, a cron job, `sudo` and a systemd unit of one user have different environments, and must exclude each other.
#[test]
fn the_default_file_does_not_depend_on_the_environment() {
    let place = Place::new();
    let with = |change: fn(&mut std::process::Command) -> &mut std::process::Command| {
        Second::start_with("default", &place.path(), change).hear()
    };
    let usual = with(|command| command);
    assert!(usual.ends_with("/.local/state/tenure/locks.db"), "{usual}");
    assert_eq!(with(|command| command.env_remove("HOME").env_remove("XDG_STATE_HOME")), usual);
    assert_eq!(with(|command| command.env("HOME", "/tmp/elsewhere").env("XDG_STATE_HOME", "/tmp/state")), usual);
}

#[tokio::test]
async fn the_doctor_finds_nothing_wrong() {
    let findings = Place::new().sqlite().examine().await.unwrap();
    assert!(findings.len() >= 5);
    assert!(findings.iter().all(|finding| finding.level == Level::Good), "{findings:?}");
}

#[tokio::test]
async fn somebody_elses_long_transaction_is_waited_for_without_holding_up_the_executor() {
    let place = Place::new();
    let client = place.client();
    let theirs = Connection::open(place.path()).unwrap();
    theirs.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mutex = client.mutex("x").unwrap();
    let mut asking = std::pin::pin!(mutex.lock());
    for _ in 0..20 {
        // One thread runs both: were it waiting for the file, this could not go on.
        tokio::select! {
            biased;
            guard = &mut asking => panic!("nobody can write: {guard:?}"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    theirs.execute_batch("COMMIT").unwrap();
    in_time("it gets its turn", asking).await.unwrap().release().await.unwrap();
}

/// Not a test: what this binary does as a second process.
#[test]
fn child() {
    let Some((what, path)) = order() else { return };
    match what.as_str() {
        "open" => match open(&path) {
            Ok(_) => say("it opened"),
            Err(error) => say(error),
        },
        "read" => {
            let client = Client::new(open(&path).unwrap()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (view, listed) = (client.view("x").await.unwrap(), client.list("", None, 9).await.unwrap());
                let is = if view.holders.len() == 1 { "is held" } else { "is free" };
                let refused = client.mutex("y").unwrap().try_lock().await.unwrap_err();
                say(format!("x {is}, {} listed: {refused}", listed.len()));
            });
        }
        "default" => say(tenure_sqlite::default_path().unwrap().display()),
        other => panic!("{other}?"),
    }
}

/// Somebody puts back what the file was an hour ago: every token since is forgotten, and the next one is higher all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_does_not_start_over() {
    let place = Place::new();
    let take = async || {
        let client = Client::new(open(&place.path()).unwrap()).unwrap();
        let held = in_time("it is free", client.mutex("x").unwrap().lock()).await.unwrap();
        let token = held.token();
        held.release().await.unwrap();
        client.close().await.unwrap();
        token
    };
    let first = take().await;
    let backup = tenure_testkit::servers::Backup::of(place.directory());
    let last = take().await;
    assert!(last > first);
    backup.put_back();
    assert!(take().await > last, "it goes on above what it has forgotten");
}
