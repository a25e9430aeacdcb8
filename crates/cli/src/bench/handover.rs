//! One name, several processes: from the call of release in one to the next holder running in another.
//!
//! Every process takes the lock again and again, holds it for two milliseconds, and notes when it asked, ran and let go, on
//! the clock that all processes of a host share. The holds are then put in the order of their tokens. A hand-over counts if
//! the holder changed and the new one, as well as everybody else who should, was already waiting.

use std::time::Duration;

use tenure::{Error, ErrorKind, Instant, Result};

use super::helpers::Helpers;
use super::lines::CROWD;
use super::orders::{Answer, Order, Round};
use super::results::Reading;
use super::{Bench, broken, stats};

/// Long enough for whoever just let go to be in line again.
const HOLD: Duration = Duration::from_millis(2);

/// Whoever asked this long before the release is in line by then, and asleep.
const SETTLED: Duration = Duration::from_micros(500);

pub(super) async fn between_two(bench: &Bench, helpers: &mut Helpers) -> Result<Vec<Reading>> {
    measure(bench, helpers, 2, ["handover", "handover_p99"]).await
}

pub(super) async fn in_a_crowd(bench: &Bench, helpers: &mut Helpers) -> Result<Vec<Reading>> {
    measure(bench, helpers, CROWD + 2, ["crowd_handover", "crowd_handover_p99"]).await
}

async fn measure(bench: &Bench, helpers: &mut Helpers, count: usize, keys: [&'static str; 2]) -> Result<Vec<Reading>> {
    let crew = helpers.open(count).await?;
    // So many processes do not start in no time, and everybody passes once before it counts.
    let from = Instant::now() + Duration::from_millis(20 + count as u64);
    let until = from + HOLD * 2 * count as u32 + bench.pace.processes;
    let order = Order::Contend {
        name: bench.name(keys[0]),
        hold_ns: HOLD.as_nanos() as u64,
        from_ns: from.as_nanos(),
        until_ns: until.as_nanos(),
    };
    for helper in crew.iter_mut() {
        helper.order(&order)?;
    }
    let mut rounds = Vec::new();
    for (process, helper) in crew.iter_mut().enumerate() {
        match helper.answer().await? {
            Answer::Rounds(own) => rounds.extend(own.into_iter().map(|round| (process, round))),
            other => return Err(Error::new(ErrorKind::Backend, format!("bench: a second process answered {other:?}"))),
        }
    }
    helpers.close().await?;

    let mut gaps = gaps(rounds, count, until.as_nanos())?;
    let samples = gaps.len() as u64;
    let mut reading = |key, share| {
        let value = stats::percentile(&mut gaps, share).map(|nanos| nanos as f64 / 1e9);
        Reading { key, value, samples }
    };
    Ok(vec![reading(keys[0], 0.5), reading(keys[1], 0.99)])
}

/// The hand-overs among these holds, in nanoseconds each; an error if two processes were inside at once.
fn gaps(mut rounds: Vec<(usize, Round)>, processes: usize, until: u64) -> Result<Vec<u64>> {
    rounds.sort_unstable_by_key(|(_, round)| round.token);
    let settled = SETTLED.as_nanos() as u64;
    let mut gaps = Vec::new();
    for neighbours in rounds.windows(2) {
        let [(from, before), (to, after)] = [neighbours[0], neighbours[1]];
        if before.token == after.token {
            return Err(broken(format!("token {} was granted twice", after.token)));
        }
        if after.got < before.released {
            let overlap = Duration::from_nanos(before.released - after.got);
            return Err(broken(format!("two processes were inside at once for {overlap:?}")));
        }
        let in_line = |round: &Round| round.asked + settled <= before.released && round.got > before.released;
        let waiting = || rounds.iter().filter(|(_, round)| in_line(round)).count();
        if from != to && in_line(&after) && before.released < until && waiting() + 1 == processes {
            gaps.push(after.got - before.released);
        }
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn round(token: u64, asked: u64, got: u64, released: u64) -> Round {
        Round { token, asked: asked * MS, got: got * MS, released: released * MS }
    }

    #[test]
    fn a_handover_is_from_release_to_running() {
        let rounds = vec![(1, round(2, 1, 13, 15)), (0, round(1, 0, 0, 10)), (0, round(3, 11, 16, 18))];
        assert_eq!(gaps(rounds, 2, 100 * MS).unwrap(), [3 * MS, MS]);
    }

    #[test]
    fn the_same_process_again_is_none() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (0, round(2, 1, 11, 12))];
        assert!(gaps(rounds, 2, 100 * MS).unwrap().is_empty());
    }

    #[test]
    fn who_had_not_waited_does_not_count() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (1, round(2, 10, 11, 12))];
        assert!(gaps(rounds, 2, 100 * MS).unwrap().is_empty());
    }

    #[test]
    fn a_crowd_that_is_not_complete_does_not_count() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (1, round(2, 1, 11, 12)), (2, round(3, 11, 13, 14))];
        assert!(gaps(rounds.clone(), 3, 100 * MS).unwrap().is_empty());
        assert_eq!(gaps(rounds, 2, 100 * MS).unwrap(), [MS, MS]);
    }

    #[test]
    fn nothing_counts_after_the_end() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (1, round(2, 1, 11, 12))];
        assert!(gaps(rounds, 2, 9 * MS).unwrap().is_empty());
    }

    #[test]
    fn an_overlap_is_an_error() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (1, round(2, 1, 9, 12))];
        assert!(gaps(rounds, 2, 100 * MS).unwrap_err().to_string().contains("BROKEN"));
    }

    #[test]
    fn a_token_given_twice_is_an_error() {
        let rounds = vec![(0, round(1, 0, 0, 10)), (1, round(1, 1, 11, 12))];
        assert!(gaps(rounds, 2, 100 * MS).is_err());
    }
}
