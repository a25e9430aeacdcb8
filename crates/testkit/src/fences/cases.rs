//! The cases: what every fence promises.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{Clock, ErrorKind, LockName, Token};

use super::order::{self, Said, Shown};
use super::racer::show;
use super::{Plan, Stage};
use crate::polls::{Polled, at_most};
use crate::{Rng, eventually_async, names};

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a good name")
}

async fn advance(fence: &dyn Fence, name: &LockName, token: u64) -> Verdict {
    fence.advance(name, Token::new(token), Rule::ANY).await.expect("the fence works")
}

async fn highest(fence: &dyn Fence, name: &LockName) -> Option<u64> {
    fence.highest(name).await.expect("the fence works").map(Token::get)
}

fn stale(highest: u64) -> Verdict {
    Verdict::Stale { highest: Token::new(highest) }
}

pub(super) async fn lower_is_refused(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    assert_eq!(advance(&*fence, &a, 10).await, Verdict::Accepted);
    assert_eq!(advance(&*fence, &a, 9).await, stale(10));
    assert_eq!(advance(&*fence, &a, 0).await, stale(10));
    assert_eq!(highest(&*fence, &a).await, Some(10), "a refusal changes nothing");
}

pub(super) async fn an_equal_token_is_accepted(stage: &Arc<Stage>) {
    let (fence, other, a) = (stage.fence().await, stage.fence().await, name("a"));
    for _ in 0..3 {
        assert_eq!(advance(&*fence, &a, 10).await, Verdict::Accepted, "a holder writes many times");
        assert_eq!(advance(&*other, &a, 10).await, Verdict::Accepted, "and from several places");
    }
}

pub(super) async fn a_higher_token_is_remembered(stage: &Arc<Stage>) {
    let (fence, other, a) = (stage.fence().await, stage.fence().await, name("a"));
    for token in [1, 2, 10, 1_000, 1_731_664_000_000_001] {
        assert_eq!(advance(&*fence, &a, token).await, Verdict::Accepted);
        assert_eq!(advance(&*other, &a, token - 1).await, stale(token), "whoever else has the fence sees it at once");
        assert_eq!(highest(&*other, &a).await, Some(token));
    }
}

pub(super) async fn names_are_different(stage: &Arc<Stage>) {
    let fence = stage.fence().await;
    let names: Vec<LockName> = names::corpus().iter().map(|text| name(text)).collect();
    for (number, name) in (1..).zip(&names) {
        assert_eq!(highest(&*fence, name).await, None, "{name:?} was never shown a token");
        assert_eq!(advance(&*fence, name, number * 10).await, Verdict::Accepted, "{name:?}");
    }
    let again = stage.fence().await;
    for (number, name) in (1..).zip(&names) {
        assert_eq!(highest(&*again, name).await, Some(number * 10), "{name:?}");
        assert_eq!(advance(&*again, name, number * 10 - 1).await, stale(number * 10), "{name:?}");
    }
}

pub(super) async fn the_lowest_and_the_highest_token(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    let most = i64::MAX as u64;
    assert_eq!(highest(&*fence, &a).await, None);
    assert_eq!(advance(&*fence, &a, 0).await, Verdict::Accepted);
    assert_eq!(highest(&*fence, &a).await, Some(0), "0 was shown, which is more than nothing");
    assert_eq!(advance(&*fence, &a, most - 1).await, Verdict::Accepted);
    assert_eq!(advance(&*fence, &a, most).await, Verdict::Accepted, "no digit is lost");
    assert_eq!(advance(&*fence, &a, most).await, Verdict::Accepted);
    assert_eq!(advance(&*fence, &a, most - 1).await, stale(most));
}

pub(super) async fn a_number_that_is_no_token_is_refused(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    for number in [i64::MAX as u64 + 1, u64::MAX] {
        let refused = fence.advance(&a, Token::new(number), Rule::ANY).await.expect_err("it does not fit");
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{refused}");
    }
    assert_eq!(highest(&*fence, &a).await, None);
}

pub(super) async fn a_step_that_is_too_large_changes_nothing(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    let step = async |token: u64| fence.advance(&a, Token::new(token), Rule::max_step(100)).await.expect("the fence works");
    assert_eq!(advance(&*fence, &a, 1_000).await, Verdict::Accepted);
    for too_high in [1_101, 1 << 40, i64::MAX as u64] {
        assert_eq!(step(too_high).await, Verdict::Implausible { highest: Some(Token::new(1_000)) });
        assert_eq!(highest(&*fence, &a).await, Some(1_000));
    }
    assert_eq!(step(1_000).await, Verdict::Accepted);
    assert_eq!(step(999).await, stale(1_000), "late is late, whatever the rule");
    assert_eq!(step(1_100).await, Verdict::Accepted);
    assert_eq!(step(1_200).await, Verdict::Accepted, "counted from the last one");
}

pub(super) async fn a_token_from_the_future_changes_nothing(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    let now = Clock::Boot.wall_micros();
    let hour = 3_600_000_000;
    let ahead = async |token: u64| {
        let rule = Rule::max_ahead(Duration::from_secs(600));
        fence.advance(&a, Token::new(token), rule).await.expect("the fence works")
    };
    assert_eq!(ahead(now + hour).await, Verdict::Implausible { highest: None });
    assert_eq!(ahead(now - 100 * 24 * hour).await, Verdict::Accepted);
    assert_eq!(ahead(now).await, Verdict::Accepted, "a lock that was idle for a hundred days");
    assert_eq!(ahead(now + hour).await, Verdict::Implausible { highest: Some(Token::new(now)) });
    assert_eq!(highest(&*fence, &a).await, Some(now));
    assert_eq!(advance(&*fence, &a, now + hour).await, Verdict::Accepted, "without the rule");
    assert_eq!(ahead(now + hour + 1).await, Verdict::Accepted, "a store whose clock was ahead goes on from there");
}

pub(super) async fn the_first_token_has_a_rule_too(stage: &Arc<Stage>) {
    let fence = stage.fence().await;
    let first = async |text: &str, token: u64, rule: Rule| {
        fence.advance(&name(text), Token::new(token), rule).await.expect("the fence works")
    };
    assert_eq!(first("a", 101, Rule::max_step(100)).await, Verdict::Implausible { highest: None });
    assert_eq!(highest(&*fence, &name("a")).await, None, "it was not even begun");
    assert_eq!(first("a", 100, Rule::max_step(100)).await, Verdict::Accepted);
    assert_eq!(
        first("b", 7_000_000, Rule::ANY).await,
        Verdict::Accepted,
        "numbers that begin higher are shown once by hand"
    );
    assert_eq!(first("b", 7_000_001, Rule::max_step(100)).await, Verdict::Accepted);
}

pub(super) async fn looking_changes_nothing(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    for _ in 0..2 {
        assert_eq!(highest(&*fence, &a).await, None);
    }
    assert_eq!(advance(&*fence, &a, 0).await, Verdict::Accepted);
    for _ in 0..2 {
        assert_eq!(highest(&*fence, &a).await, Some(0));
    }
}

pub(super) async fn a_probe_touches_no_name(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    assert_eq!(advance(&*fence, &a, 5).await, Verdict::Accepted);
    for number in [u64::MAX, 0, 7] {
        fence.probe(number).await.expect("the store can be written");
    }
    assert_eq!(highest(&*fence, &a).await, Some(5));
    for text in names::corpus().iter().take(50) {
        assert_eq!(highest(&*fence, &name(text)).await.filter(|_| text != "a"), None, "{text:?}");
    }
}

pub(super) async fn opened_again_it_remembers(stage: &Arc<Stage>) {
    let a = name("a");
    for token in 1..=20 {
        let fence = stage.fence().await;
        assert_eq!(highest(&*fence, &a).await, (token > 1).then_some((token - 1) * 2));
        assert_eq!(advance(&*fence, &a, token * 2).await, Verdict::Accepted);
        drop(fence);
        assert_eq!(advance(&*stage.fence().await, &a, token * 2 - 1).await, stale(token * 2));
    }
}

const RACERS: u64 = 16;

fn plan(seed: u64, rounds: u64) -> Plan {
    Plan { name: "race".to_owned(), seed, rounds, disorder: 60, from: 0 }
}

/// The check itself, and that it had something to check.
async fn sound(fence: &dyn Fence, name: &LockName, shown: &[Shown]) {
    order::check(shown).unwrap_or_else(|contradiction| panic!("the fence went back: {contradiction}"));
    let end = highest(fence, name).await;
    order::check_end(shown, end).unwrap_or_else(|contradiction| panic!("the fence forgot: {contradiction}"));
}

pub(super) async fn many_tasks_race(stage: &Arc<Stage>) {
    let fences = [stage.fence().await, stage.fence().await];
    let seed = Rng::from_entropy().next_u64();
    let mut tasks = Vec::new();
    for task in 0..RACERS {
        let fence = Arc::clone(&fences[task as usize % 2]);
        tasks.push(tokio::spawn(async move {
            let mut all = Vec::new();
            plan(seed ^ task, 40).run(&*fence, |shown| all.push(shown)).await;
            all
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("it does not panic"));
    }
    let of = |said: fn(&Said) -> bool| all.iter().filter(|it| said(&it.said)).count();
    assert_eq!(all.len() as u64, RACERS * 40, "seed {seed}");
    assert!(of(|said| *said == Said::Accepted) > 0 && of(|said| matches!(said, Said::Stale(_))) > 0, "they raced");
    sound(&*fences[0], &name("race"), &all).await;
}

pub(super) async fn many_processes_race(stage: &Arc<Stage>) {
    let fence = stage.fence().await;
    let seed = Rng::from_entropy().next_u64();
    let mut racers = Vec::new();
    for number in 0..4 {
        let Some(racer) = stage.racer(plan(seed ^ number, 100)).await else { return };
        racers.push(racer);
    }
    let mut all = Vec::new();
    plan(seed ^ 99, 100).run(&*fence, |shown| all.push(shown)).await;
    for mut racer in racers {
        all.extend(racer.rest().await);
    }
    assert_eq!(all.len(), 500, "seed {seed}: every process said everything");
    sound(&*fence, &name("race"), &all).await;
}

/// Killed at any instant, in the middle of whatever it does.
pub(super) async fn a_killed_client_takes_nothing_back(stage: &Arc<Stage>) {
    let long = format!("race/{}", "n".repeat(500));
    let (mut rng, race) = (Rng::from_entropy(), name(&long));
    let mut all: Vec<Shown> = Vec::new();
    for round in 0..15 {
        let from = all.iter().map(|it| it.token).max().unwrap_or(0);
        let plan = Plan { name: long.clone(), disorder: 0, from, ..plan(round, 0) };
        let Some(mut racer) = stage.racer(plan).await else { return };
        all.extend(racer.next().await); // it is at it
        tokio::time::sleep(rng.up_to(Duration::from_millis(20))).await;
        racer.kill();
        let rest = racer.rest().await;
        let last = rest.last().or(all.last()).expect("it said something").token;
        all.extend(rest);
        let fence = stage.fence().await;
        // One more than it was heard to say may have been on its way, and may come at any time, but once.
        for is_late in [false, true] {
            let remembered = highest(&*fence, &race).await.expect("something was accepted");
            assert!((last..=last + 3).contains(&remembered), "it heard {last} accepted, and {remembered} is remembered");
            all.push(show(&*fence, &race, remembered).await);
            let below = advance(&*fence, &race, remembered - 1).await;
            if below == stale(remembered) {
                break;
            }
            assert!(!is_late, "{remembered} is remembered, and one below it is {below:?}");
        }
    }
    order::check(&all.iter().copied().filter(|it| it.said == Said::Accepted).collect::<Vec<_>>()).expect("never back");
}

pub(super) async fn cancelled_at_any_poll(stage: &Arc<Stage>) {
    let (fence, a) = (stage.fence().await, name("a"));
    let (mut last, mut token) = (0, 0);
    for linger in [Duration::ZERO, Duration::from_millis(2)] {
        for polls in 0..40 {
            token += 10;
            let polled = at_most(polls, linger, fence.advance(&a, Token::new(token), Rule::ANY)).await;
            let now = highest(&*fence, &a).await.unwrap_or(0);
            assert!(now >= last && now <= token && now % 10 == 0, "{now} after {last}, with {token} shown to {polls} polls");
            last = now;
            if let Polled::Done(verdict, _) = polled {
                assert_eq!(verdict.expect("the fence works"), Verdict::Accepted);
                assert_eq!(now, token);
                break;
            }
        }
    }
    // Whatever was dropped on its way has arrived by now, or never will, and nothing lower passes after something higher.
    let last = token + 10;
    assert_eq!(advance(&*fence, &a, last).await, Verdict::Accepted);
    assert_eq!(advance(&*fence, &a, last - 1).await, stale(last));
}

/// In the middle of everything, three times.
pub(super) async fn a_killed_server_takes_nothing_back(stage: &Arc<Stage>) {
    let (fence, race) = (stage.fence().await, name("race"));
    let mut all = vec![show(&*fence, &race, 1).await];
    for round in 1..=3 {
        let from = all.iter().map(|it| it.token).max().unwrap_or(0);
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let mut tasks = Vec::new();
        for task in 0..4 {
            let (fence, race, stopped) = (Arc::clone(&fence), race.clone(), stopped.clone());
            tasks.push(tokio::spawn(async move {
                let (mut all, mut token) = (Vec::new(), from + task);
                while !*stopped.borrow() {
                    token += 4;
                    all.push(show(&*fence, &race, token).await);
                }
                all
            }));
        }
        eventually_async("they are at it", async || highest(&*fence, &race).await > Some(from + 40)).await;
        let has_server = stage.crash().await;
        if has_server {
            eventually_async("it answers again", async || fence.highest(&race).await.is_ok()).await;
        }
        stop.send_replace(true);
        let _ = stopped.changed().await;
        for task in tasks {
            all.extend(task.await.expect("it does not panic"));
        }
        sound(&*stage.fence().await, &race, &all).await;
        assert!(all.len() > round * 10);
        if !has_server {
            return; // there is none that could be killed: what the client's death does is another case
        }
    }
}
