use std::time::Duration;
use tenure_core::Client;
use tenure_sqlite::{Settings, Sqlite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l.db");
    let a = Client::new(Sqlite::open(&path, Settings::default()).unwrap()).unwrap();
    let b = Client::new(Sqlite::open(&path, Settings::default()).unwrap()).unwrap();
    let guard = a.mutex("x").unwrap().lock().await.unwrap();
    assert!(b.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.mutex("x").unwrap().lock().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("{:?}", a.view("x").await.unwrap());
    let first = guard.token();
    guard.release().await.unwrap();
    let second = waiter.await.unwrap();
    assert!(second.token() > first);
    println!("{:?}", b.examine().await.unwrap());
    second.release().await.unwrap();
    for i in 0..300 {
        a.mutex(format!("n{i}")).unwrap().lock().await.unwrap().release().await.unwrap();
    }
    a.close().await.unwrap();
    b.close().await.unwrap();
    let c = Sqlite::open(&path, Settings::default()).unwrap();
    assert_eq!(c.residue().unwrap(), 0);
}
