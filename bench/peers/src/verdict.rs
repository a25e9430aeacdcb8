//! Whether tenure is ahead, and of whom; where it is not, the line says so and why.

use crate::catalogue::{Entry, Side};
use crate::lines::{Better, Figure, Line};
use crate::results::Results;
use crate::stats::Summary;
use crate::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Ahead,
    /// Some repetitions say one thing, some the other.
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
                .filter_map(|peer| Some((*peer, results.ratio(line, figure, ours.key, peer.key)?)))
                .collect();
            if !compared.is_empty() {
                sentences.extend(about(ours, figure, better, &compared));
            }
        }
    }
    sentences
}

fn about(ours: &Entry, figure: &Figure, better: Better, compared: &[(&Entry, Summary)]) -> Vec<String> {
    let standings = compared.iter().map(|(peer, ratio)| (*peer, *ratio, standing(ratio, better)));
    let (ahead, others): (Vec<_>, Vec<_>) = standings.partition(|(_, _, standing)| *standing == Standing::Ahead);
    let (who, what) = (ours.key, figure.head);
    if others.is_empty() {
        let all = if ahead.len() == 1 { "the peer measured".to_owned() } else { format!("all {} peers", ahead.len()) };
        return vec![format!("{who}, {what}: ahead of {all}")];
    }
    let mut sentences = vec![format!("{who}, {what}: ahead of {} of {} peers", ahead.len(), compared.len())];
    for (peer, ratio, standing) in others {
        let times =
            format!("{} of its ({} – {})", words::times(ratio.median), words::times(ratio.min), words::times(ratio.max));
        let word = if standing == Standing::Level { "level with" } else { "BEHIND" };
        sentences.push(format!("    {word} {}: {times}; it leaves out {}", peer.key, peer.leaves_out));
    }
    sentences
}

fn standing(ratio: &Summary, better: Better) -> Standing {
    let (worst, best) = match better {
        Better::Less => (ratio.max, ratio.min),
        Better::More => (1.0 / ratio.min, 1.0 / ratio.max), // now less is better here, too
    };
    match () {
        () if worst < 1.0 => Standing::Ahead,
        () if best > 1.0 => Standing::Behind,
        () => Standing::Level,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_only_who_always_was() {
        let of = |values: &[f64], better| standing(&Summary::of(values.iter().copied()).unwrap(), better);
        assert_eq!(of(&[0.5, 0.9], Better::Less), Standing::Ahead);
        assert_eq!(of(&[0.9, 1.1], Better::Less), Standing::Level);
        assert_eq!(of(&[1.1, 1.2], Better::Less), Standing::Behind);
        assert_eq!(of(&[2.0, 1.2], Better::More), Standing::Ahead);
        assert_eq!(of(&[2.0, 0.9], Better::More), Standing::Level);
        assert_eq!(of(&[0.5, 0.9], Better::More), Standing::Behind);
        assert_eq!(of(&[f64::INFINITY], Better::More), Standing::Ahead);
        assert_eq!(of(&[0.0], Better::Less), Standing::Ahead);
    }
}
