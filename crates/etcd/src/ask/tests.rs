//! A claim that asks again and finds that it is in.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_testkit::eventually_async;

use super::*;
use crate::scene::{claim, client, holds, key, waits};

fn permits(take: u32, of: u32) -> Claim {
    let number = |number| NonZeroU32::new(number).unwrap();
    claim(Kind::Semaphore, Mode::Permits { take: number(take), of: number(of) }, "permits")
}

/// Let in by its second ask, since the answer to the first was not waited for: the one behind it is told, as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ask_that_is_let_in_tells_the_next() {
    let (one, other) = (client(), client());
    let (before, first) = (permits(2, 3), permits(2, 3));
    holds(&one, &before).await;
    let asking = tokio::spawn({
        let (other, first) = (Arc::clone(&other), first.clone());
        async move { other.acquire(&first, Wait::Forever).await }
    });
    waits(&other, &first).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    one.end(&before, Duration::ZERO).await.unwrap();
    let written = key(&other, &first).await.mod_revision;
    other.acquire(&first, Wait::Forever).await.unwrap().expect("it is in");
    eventually_async("its key is written anew", async || key(&other, &first).await.mod_revision > written).await;
    other.end(&first, Duration::ZERO).await.unwrap();
}
