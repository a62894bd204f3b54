//! Reduces series of millions of points to a few thousand that look the same.

use serde::{Serialize, Serializer};

/// Maximum number of points of a series; it keeps the pages of long runs small.
pub(crate) const POINTS: usize = 2000;

/// A number on the page: six significant digits, or null if it is not finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rounded(pub f64);

impl Serialize for Rounded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.0.is_finite() {
            return serializer.serialize_none();
        }
        let short = format!("{:.5e}", self.0).parse().unwrap_or(self.0);
        // Omits the `.0` of whole numbers, which would otherwise make up a tenth of the page.
        if short == f64::trunc(short) && short.abs() < 1e15 {
            serializer.serialize_i64(short as i64)
        } else {
            serializer.serialize_f64(short)
        }
    }
}

/// Values over steps. A value that is not finite is a gap.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Series {
    pub step: Vec<u64>,
    pub value: Vec<Rounded>,
    /// For each point, the mean of all values that it represents. Smoothing needs it, because the extremes are not
    /// balanced. Empty if each point is one value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mean: Vec<Rounded>,
}

impl Series {
    /// Thins the given points to at most `points`, or 5 if `points` is less. The result includes the first and last
    /// point and each stretch's minimum and maximum, so no spike is lost. A stretch with a gap shows a gap.
    pub fn new(step: &[u64], value: &[f64], points: usize) -> Self {
        // Room for both ends, the extremes and a gap of one stretch.
        let points = points.max(5);
        let len = step.len().min(value.len());
        if len <= points {
            return Self {
                step: step[..len].to_vec(),
                value: value[..len].iter().map(|&v| Rounded(v)).collect(),
                mean: vec![],
            };
        }
        let has_gaps = value[..len].iter().any(|v| !v.is_finite());
        let stretches = (points - 2) / if has_gaps { 3 } else { 2 };
        let mut series = Self::default();
        for stretch in 0..stretches {
            let (start, end) = (stretch * len / stretches, (stretch + 1) * len / stretches);
            let (kept, mean) = extremes(value, start, end, len);
            for index in kept {
                series.step.push(step[index]);
                series.value.push(Rounded(value[index]));
                series.mean.push(Rounded(if value[index].is_finite() { mean } else { f64::NAN }));
            }
        }
        series
    }

    /// Whether no point has a value.
    pub fn is_empty(&self) -> bool {
        self.value.iter().all(|v| !v.0.is_finite())
    }
}

/// The ascending indices to keep of a stretch, and the mean of its values.
fn extremes(value: &[f64], start: usize, end: usize, len: usize) -> (Vec<usize>, f64) {
    let finite = || (start..end).filter(|&i| value[i].is_finite());
    let least = finite().min_by(|&a, &b| value[a].total_cmp(&value[b]));
    let greatest = finite().max_by(|&a, &b| value[a].total_cmp(&value[b]));
    let gap = (start..end).find(|&i| !value[i].is_finite());
    let end_of_all = [(start == 0).then_some(0), (end == len).then_some(len - 1)];
    let mut kept: Vec<_> = [least, greatest, gap].into_iter().chain(end_of_all).flatten().collect();
    kept.sort_unstable();
    kept.dedup();
    (kept, finite().map(|i| value[i]).sum::<f64>() / finite().count() as f64)
}

/// The median of the finite values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_thinned_series_keeps_ends_and_extremes(
            values in prop::collection::vec(prop_oneof![8 => -1e3..1e3, 1 => Just(f64::NAN)], 1..3000),
            points in 0..300usize,
        ) {
            let steps: Vec<u64> = (1..=values.len() as u64).collect();
            let series = Series::new(&steps, &values, points);
            prop_assert!(series.step.len() <= points.max(5), "{} points", series.step.len());
            prop_assert!(series.step.is_sorted_by(|a, b| a < b));
            prop_assert_eq!((series.step[0], *series.step.last().unwrap()), (1, values.len() as u64));
            for (step, value) in series.step.iter().zip(&series.value) {
                prop_assert_eq!(value.0.to_bits(), values[*step as usize - 1].to_bits());
            }
            let of = |values: &mut dyn Iterator<Item = f64>| {
                values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)))
            };
            prop_assert_eq!(of(&mut values.iter().copied()), of(&mut series.value.iter().map(|v| v.0)));
            let gap = values.iter().any(|v| !v.is_finite());
            prop_assert_eq!(gap, series.value.iter().any(|v| !v.0.is_finite()));
        }
    }

    #[test]
    fn the_smallest_series_has_both_ends_the_extremes_and_a_gap() {
        let values = [2.0, 9.0, 3.0, f64::NAN, 0.0, 5.0, 4.0];
        assert_eq!(Series::new(&[1, 2, 3, 4, 5, 6, 7], &values, 0).step, [1, 2, 4, 5, 7]);
    }

    #[test]
    fn means_are_those_of_what_a_point_stands_for() {
        let values: Vec<f64> = (0..1000).map(|i| if i % 10 == 0 { 11.0 } else { 1.0 }).collect();
        let steps: Vec<u64> = (0..1000).collect();
        let series = Series::new(&steps, &values, 102);
        assert!(series.mean.iter().all(|mean| (mean.0 - 2.0).abs() < 1e-12), "{:?}", series.mean);
    }

    #[test]
    fn numbers_are_short_and_gaps_are_null() {
        let json = serde_json::to_string(&[3.0, 0.1 + 0.2, f64::NAN, 1.234_567_89e-7, 4096.0].map(Rounded)).unwrap();
        assert_eq!(json, "[3,0.3,null,1.23457e-7,4096]");
    }

    #[test]
    fn the_median_ignores_gaps() {
        assert_eq!(median([3.0, f64::NAN, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median([f64::NAN].into_iter()), None);
    }
}
