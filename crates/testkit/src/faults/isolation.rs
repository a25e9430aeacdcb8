//! F38: sixteen processes on one name, at every level of isolation that a server may have as its default, some of them killed
//! in the middle of whatever they were doing.

use std::time::Duration;

use super::{Database as _, Store, Wish, client, leaves_nothing, second};
use crate::history::{History, expect_sound_but_order};
use crate::taker::{Order, Reply, Wanted};
use crate::{Shape, eventually};

const PROCESSES: usize = 16;
const KILLED: usize = 4;
const ROUNDS: u32 = 12;
/// More than anybody gets to: whoever is to be killed is in the middle of it then, however its dice fall.
const ENDLESS: u32 = u32::MAX;

/// Everybody else is served, and what they did is sound.
pub async fn sixteen_processes_at_every_level<S: Store>() {
    let server = S::Server::start(Wish { connections: Some(200), ..Wish::default() });
    let observer = client::<S>(&server.url()).await;
    for level in S::Server::LEVELS {
        server.set_level(level);
        let dir = tempfile::tempdir().unwrap();
        let file = |number: usize| dir.path().join(format!("history {number}"));
        let mut takers: Vec<_> = (0..PROCESSES).map(|_| second(&server.url())).collect();
        for taker in &mut takers {
            taker.ready().await;
        }
        for (number, taker) in takers.iter_mut().enumerate() {
            let wanted = Wanted::new("x", Shape::FairMutex).ttl(Duration::from_secs(2));
            let rounds = if number < KILLED { ENDLESS } else { ROUNDS };
            taker.send(Order::Stress { wanted, tasks: 2, rounds, history: file(number) });
        }
        let grants = |number: usize| History::read([file(number)]).map(|history| history.grants()).unwrap_or(0);
        for (number, taker) in takers.iter_mut().enumerate().take(KILLED) {
            eventually("it is in the middle of it", || grants(number) > 0).await;
            taker.kill();
        }
        for taker in &mut takers[KILLED..] {
            assert_eq!(taker.finished().await, Reply::Done, "{level}");
        }
        let all = History::read((0..PROCESSES).map(file)).unwrap();
        eprintln!("{level}: {} grants to {PROCESSES} processes, {KILLED} of them killed", all.grants());
        // Some let a hold of 100 ms expire. On a busy machine one may be over before its waiter knew, who then asks again.
        expect_sound_but_order(&all);
    }
    leaves_nothing::<S>(&server, [observer]).await;
}
