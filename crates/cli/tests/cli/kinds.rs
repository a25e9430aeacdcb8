//! Writers, readers, permits, fairness, and names in use as another kind.

use crate::support::{STANDS_STILL, Store, unless_stalled};

#[test]
fn readers_run_together_and_exclude_writers() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let (one, other) = (store.hold(&["-s", "x"]), store.hold(&["--shared", "x"]));
        assert_eq!(store.holders("x"), 2);
        assert_eq!(store.tenure(["run", "-n", "-x", "x", "--", "true"]).code(), 1);
        let writer = store.queue(&["-x", "x"], "x");
        // A reader that comes after a waiting writer stands behind it.
        assert_eq!(store.tenure(["run", "-n", "-s", "x", "--", "true"]).code(), 1);
        one.end();
        assert_eq!(store.view("x")["line"].as_array().unwrap().len(), 1, "one reader is still in");
        other.end();
        writer.expect_line("in");
        let refused = store.tenure(["run", "-n", "-s", "x", "--", "true"]).code();
        let ended = writer.end();
        if ended.was_lost() {
            return Err(ended);
        }
        assert_eq!(refused, 1);
        store.assert_empty();
        Ok(())
    });
}

#[test]
fn permits_are_counted() {
    let store = Store::new();
    let (one, two) = (store.hold(&["--permits", "3", "gpu"]), store.hold(&["--permits", "3", "--take", "2", "gpu"]));
    assert_eq!(store.tenure(["run", "-n", "--permits", "3", "gpu", "--", "true"]).code(), 1);
    one.end();
    assert_eq!(store.tenure(["run", "-n", "--permits", "3", "gpu", "--", "true"]).code(), 0);
    assert_eq!(store.tenure(["run", "-n", "--permits", "3", "--take", "2", "gpu", "--", "true"]).code(), 1);
    let other = store.tenure(["run", "-n", "--permits", "4", "gpu", "--", "true"]);
    assert_eq!(other.code(), 125);
    assert!(other.stderr.contains("3 permits") && other.stderr.contains("--permits 3 gpu"), "{other:?}");
    let none = store.tenure(["run", "--permits", "3", "--take", "4", "gpu", "--", "true"]);
    assert_eq!(none.code(), 125, "{none:?}");
    two.end();
    store.assert_empty();
}

#[test]
fn fair_is_first_come_first_served() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let holder = store.hold(&["--fair", "x"]);
        let waiters: Vec<_> = (0..5).map(|_| store.queue(&["--fair", "x"], "x")).collect();
        holder.end();
        for waiter in waiters {
            waiter.expect_line("in");
            let (view, pid) = (store.view("x"), waiter.pid().as_raw_nonzero().get());
            let ended = waiter.end();
            if ended.was_lost() {
                return Err(ended);
            }
            assert_eq!(view["holders"][0]["pid"], pid);
        }
        store.assert_empty();
        Ok(())
    });
}

#[test]
fn a_name_in_use_as_another_kind_says_how_to_meet_it() {
    let store = Store::new();
    for (held_as, meets) in [
        (vec!["run", "-x", "a name"], "`tenure run -x 'a name'` or `tenure run -s 'a name'`"),
        (vec!["run", "-s", "a name"], "`tenure run -x 'a name'` or `tenure run -s 'a name'`"),
        (vec!["run", "--fair", "a name"], "tenure run --fair 'a name'"),
        (vec!["run", "--permits", "2", "a name"], "tenure run --permits 2 'a name'"),
        (vec!["elect", "a name"], "tenure elect 'a name'"),
    ] {
        let mut args = held_as;
        args.extend(["--", "sh", "-c", crate::support::STAY]);
        let holder = store.start(args);
        holder.expect_line("in");
        let refused = store.tenure(["run", "-n", "a name", "--", "true"]);
        assert_eq!(refused.code(), 125);
        assert!(refused.stderr.contains(meets), "{refused:?}");
        holder.end();
    }
    let holder = store.hold(&["x"]);
    let refused = store.tenure(["run", "-n", "--fair", "x", "--", "true"]);
    assert!(refused.stderr.contains("Use `tenure run x` to meet"), "{refused:?}");
    holder.end();
    store.assert_empty();
}

/// A program that takes `client.mutex(NAME)` and `tenure run NAME` exclude each other, and so do the sides of an rw lock.
#[test]
fn the_library_and_the_command_meet() {
    let store = Store::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = tenure::connect(store.url()).await.unwrap();
        let held = client.mutex("x").unwrap().lock().await.unwrap();
        assert_eq!(store.tenure(["run", "-n", "x", "--", "true"]).code(), 1, "busy, and not another kind");
        held.release().await.unwrap();
        let holder = store.hold(&["x"]);
        assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none());
        let refused = client.rw_lock("x").unwrap().try_write().await.unwrap_err();
        assert!(refused.to_string().contains("`client.mutex(..)` to meet its holder"), "{refused}");
        holder.end();
        let readers = store.hold(&["-s", "x"]);
        assert!(client.rw_lock("x").unwrap().try_read().await.unwrap().is_some());
        assert!(client.rw_lock("x").unwrap().try_write().await.unwrap().is_none());
        let refused = client.mutex("x").unwrap().try_lock().await.unwrap_err();
        assert!(refused.to_string().contains("`client.rw_lock(..).write()` or `.read()`"), "{refused}");
        readers.end();
        client.close().await.unwrap();
    });
}
