//! Whether tenure is ahead, and of whom; where it is not, the line says so and why.

use crate::catalogue::{Entry, Side};
use crate::lines::{Better, Figure, Line};
use crate::results::Results;
use crate::stats::Summary;
use crate::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Ahead,
    /// Some repetitions say one thing, some another.
    Level,
    Behind,
}

/// For each of ours and each figure that is compared: one sentence, and one more for everybody it is not ahead of.
pub(crate) fn sentences(results: &Results, entries: &[&Entry], line: Line) -> Vec<String> {
    let mut sentences = Vec::new();
    for ours in entries.iter().filter(|entry| entry.side == Side::Tenure) {
        for figure in line.figures() {
            let Some(better) = figure.better else { continue };
            let compared: Vec<_> = entries
                .iter()
                .filter(|entry| entry.side == Side::Peer)
                .map(|peer| (*peer, results.ratios(line, figure, ours.key, peer.key)))
                .filter(|(_, ratios)| !ratios.is_empty())
                .collect();
            if !compared.is_empty() {
                sentences.extend(about(ours, figure, better, &compared));
            }
        }
    }
    sentences
}

fn about(ours: &Entry, figure: &Figure, better: Better, compared: &[(&Entry, Vec<f64>)]) -> Vec<String> {
    let standings = compared.iter().map(|(peer, ratios)| (*peer, ratios, standing(ratios, better)));
    let (ahead, others): (Vec<_>, Vec<_>) = standings.partition(|(_, _, standing)| *standing == Standing::Ahead);
    let (who, what) = (ours.key, figure.head);
    if others.is_empty() {
        let all = if ahead.len() == 1 { "the peer measured".to_owned() } else { format!("all {} peers", ahead.len()) };
        return vec![format!("{who}, {what}: ahead of {all}")];
    }
    let mut sentences = vec![format!("{who}, {what}: ahead of {} of {} peers", ahead.len(), compared.len())];
    for (peer, ratios, standing) in others {
        let Some(ratio) = Summary::of(ratios.iter().copied()) else { continue };
        let times =
            format!("{} of its ({} – {})", words::times(ratio.median), words::times(ratio.min), words::times(ratio.max));
        let word = if standing == Standing::Level { "level with" } else { "BEHIND" };
        sentences.push(format!("    {word} {}: {times}; it leaves out {}", peer.key, peer.leaves_out));
    }
    sentences
}

/// How many of the repetitions must agree: one in five may have met somebody else's build.
const MOST: f64 = 0.8;

fn standing(ratios: &[f64], better: Better) -> Standing {
    let ahead = |ratio: &f64| match better {
        Better::Less => *ratio < 1.0,
        Better::More => *ratio > 1.0,
    };
    let share = |count: usize| count as f64 / ratios.len() as f64;
    let ahead_in = ratios.iter().filter(|ratio| ahead(ratio)).count();
    let alike_in = ratios.iter().filter(|ratio| **ratio == 1.0).count();
    match () {
        () if share(ahead_in) >= MOST => Standing::Ahead,
        () if share(ratios.len() - ahead_in - alike_in) >= MOST => Standing::Behind,
        () => Standing::Level,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_who_was_in_four_of_five() {
        assert_eq!(standing(&[0.5, 0.9], Better::Less), Standing::Ahead);
        assert_eq!(standing(&[0.9, 1.1], Better::Less), Standing::Level);
        assert_eq!(standing(&[1.1, 1.2], Better::Less), Standing::Behind);
        assert_eq!(standing(&[2.0, 1.2], Better::More), Standing::Ahead);
        assert_eq!(standing(&[2.0, 0.9], Better::More), Standing::Level);
        assert_eq!(standing(&[0.5, 0.9], Better::More), Standing::Behind);
        assert_eq!(standing(&[0.5, 0.5, 0.5, 0.5, 9.0], Better::Less), Standing::Ahead);
        assert_eq!(standing(&[0.5, 0.5, 0.5, 9.0, 9.0], Better::Less), Standing::Level);
        assert_eq!(standing(&[f64::INFINITY], Better::More), Standing::Ahead);
        assert_eq!(standing(&[1.0], Better::Less), Standing::Level);
    }
}
