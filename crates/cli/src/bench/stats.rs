//! Medians and spreads: few repetitions on a noisy machine, so order statistics and no means.

/// What a handful of repetitions came to.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Summary {
    /// The middle one, or the mean of the two in the middle.
    pub(super) median: f64,
    /// The smallest.
    pub(super) min: f64,
    /// The largest.
    pub(super) max: f64,
    /// A quarter of them are below.
    pub(super) lower_quartile: f64,
    /// A quarter of them are above.
    pub(super) upper_quartile: f64,
}

impl Summary {
    /// `None` of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Summary {
            median: quantile(&sorted, 0.5),
            min,
            max,
            lower_quartile: quantile(&sorted, 0.25),
            upper_quartile: quantile(&sorted, 0.75),
        })
    }
}

/// The median; `None` of nothing.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

/// The smallest value that at least `share` of all are not above: no interpolation, so it is one that did occur. `None` of
/// nothing.
pub(super) fn percentile<T: Copy + Ord>(values: &mut [T], share: f64) -> Option<T> {
    let rank = (values.len() as f64 * share).ceil() as usize;
    let place = rank.clamp(1, values.len().max(1)) - 1;
    (!values.is_empty()).then(|| *values.select_nth_unstable(place).1)
}

/// Between two neighbours in proportion. `sorted` must not be empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    // An unbounded value next to a bounded one has nothing in between, and infinity times zero is no number.
    if below == above || place.fract() == 0.0 { below } else { below + (above - below) * place.fract() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_one_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([7.0]), Some(7.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn quartiles_and_ends() {
        let summary = Summary::of([5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        let expected = Summary { median: 3.0, min: 1.0, max: 5.0, lower_quartile: 2.0, upper_quartile: 4.0 };
        assert_eq!(summary, expected);
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        assert_eq!(median([1.0, 1.0, 1.0, 1.0, 1e9]), Some(1.0));
    }

    #[test]
    fn infinity_is_a_value() {
        let summary = Summary::of([1.0, f64::INFINITY, f64::INFINITY]).unwrap();
        assert_eq!((summary.min, summary.median, summary.max), (1.0, f64::INFINITY, f64::INFINITY));
        assert!(!summary.lower_quartile.is_nan());
    }

    #[test]
    fn percentiles_did_occur() {
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 0.99), Some(99));
        assert_eq!(percentile(&mut hundred, 0.5), Some(50));
        assert_eq!(percentile(&mut hundred, 1.0), Some(100));
        assert_eq!(percentile(&mut hundred, 0.0), Some(1));
        assert_eq!(percentile(&mut [8_u64], 0.99), Some(8));
        assert_eq!(percentile::<u64>(&mut [], 0.5), None);
    }
}
