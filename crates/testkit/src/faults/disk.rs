//! F40: a server whose disk is full. What it cannot store it refuses whole and with words; what is held is kept for as long as
//! it can be, and when there is room again all goes on.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant, Phase};

use super::{Database as _, Store, Wish, client, leaves_nothing};
use crate::{eventually, eventually_async, in_time};

/// How many names are asked for until the tables must grow.
const MANY: usize = 20_000;

/// New names need new room, and at some point there is none.
pub async fn a_full_disk_refuses_and_keeps<S: Store>() {
    let server = S::Server::start(Wish { small_disk: true, ..Wish::default() });
    // Where nothing can be stored, some answers never come: then all of this time is waited for them.
    let client = client::<S>(&format!("{}?answer_limit=5s", server.url())).await;
    let ttl = Duration::from_secs(12);
    let held = client.mutex("held").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let leaving = client.mutex("leaving").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    server.fill_disk();
    let mut taken = Vec::new();
    let mut refused = None;
    for number in 0..MANY {
        let name = format!("name {number}");
        match in_time("an answer", client.mutex(&name).unwrap().ttl(ttl).unwrap().keep(false).lock()).await {
            Ok(guard) => taken.push(guard),
            Err(error) => {
                refused = Some((name, error));
                break;
            }
        }
    }
    let (name, refused) = refused.expect("the disk is full");
    eprintln!("{} locks fitted, and then: {refused}", taken.len());
    assert!(matches!(refused.kind(), ErrorKind::Backend | ErrorKind::Unavailable), "{refused}");
    let says = refused.to_string();
    assert!(says.contains("full") || says.contains("store anything more"), "{says}");
    // A release that cannot be stored says so, and the hold ends by itself.
    if let Err(error) = in_time("an answer", leaving.release()).await {
        assert!(matches!(error.kind(), ErrorKind::Backend | ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
    }
    server.free_disk();
    eventually_async("nothing is half taken", async || client.view(&name).await.is_ok_and(|view| view.is_free())).await;
    let leaving = client.mutex("leaving").unwrap().keep(false); // so it is let in for all of its ttl
    in_time("it is free", leaving.lock()).await.unwrap().release().await.unwrap();
    if held.phase() != Phase::Lost {
        let until = held.valid_until();
        let has_time = Instant::now() + ttl / 2 < until; // what is all but over may end before its renewal has an answer
        let is_settled = || held.valid_until() > until || (!has_time && held.phase() == Phase::Lost);
        eventually("what is held is renewed", is_settled).await;
    }
    eprintln!("what was held is {:?}", held.phase());
    drop((held, taken));
    leaves_nothing::<S>(&server, [client]).await;
}
