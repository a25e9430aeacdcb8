//! Medians and spreads: few repetitions on a noisy machine, so order statistics and no means.

/// What a handful of repetitions came to.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// `None` of nothing.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        // Infinity is a value here, and infinity minus itself is no number.
        let median = if below == above { below } else { below + (above - below) / 2.0 };
        Some(Summary { median, min, max })
    }
}

/// The smallest value that at least `share` of all are not above, so it is one that did occur. `None` of nothing.
pub(crate) fn percentile(values: &mut [u64], share: f64) -> Option<u64> {
    let rank = (values.len() as f64 * share).ceil() as usize;
    let place = rank.clamp(1, values.len().max(1)) - 1;
    (!values.is_empty()).then(|| *values.select_nth_unstable(place).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let median = |values: &[f64]| Summary::of(values.iter().copied()).map(|it| it.median);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[1.0, f64::INFINITY, f64::INFINITY]), Some(f64::INFINITY));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn percentiles_did_occur() {
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 0.99), Some(99));
        assert_eq!(percentile(&mut hundred, 0.5), Some(50));
        assert_eq!(percentile(&mut [8], 0.99), Some(8));
        assert_eq!(percentile(&mut [], 0.5), None);
    }
}
