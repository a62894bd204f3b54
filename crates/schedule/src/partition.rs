//! Distributes the blocks of a model over stages by cost.

/// Splits a sequence of items with these costs into `places` contiguous parts, each with at least one item, and returns
/// the number of items in each part.
///
/// The split minimizes the cost of the most expensive part. Among the splits that do, it minimizes the sum of the
/// squared costs of all parts.
///
/// # Panics
/// Panics if there are fewer items than places, or no places.
///
/// ```
/// // An embedding that costs nothing, six blocks, and a head that costs as much as two blocks.
/// assert_eq!(schedule::partition(&[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0], 4), [3, 2, 2, 1]);
/// ```
pub fn partition(costs: &[f64], places: usize) -> Vec<usize> {
    assert!(0 < places && places <= costs.len(), "{} things for {places} places", costs.len());
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(costs.iter().scan(0.0, |sum, cost| {
            *sum += cost;
            Some(*sum)
        }))
        .collect();
    let cost = |from: usize, to: usize| sums[to] - sums[from];
    // least[n]: the lowest possible cost of the most expensive part when the first n items are split.
    let mut least: Vec<f64> = (0..=costs.len()).map(|n| cost(0, n)).collect();
    for place in 1..places {
        least = best(place, costs.len(), &|n, count| least[n - count].max(cost(n - count, n)), &|_, _| true).0;
    }
    let limit = least[costs.len()] * (1.0 + 1e-12); // rounding errors of the sums
    // Within that limit: the least sum of squares, and the number of items that the last part gets for it.
    let square = |from: usize, to: usize| match cost(from, to) {
        cost if cost <= limit => cost * cost,
        _ => f64::INFINITY,
    };
    let mut squares: Vec<f64> = (0..=costs.len()).map(|n| square(0, n)).collect();
    let mut lasts = vec![(0..=costs.len()).collect::<Vec<usize>>()];
    for place in 1..places {
        let within = |n: usize, count: usize| cost(n - count, n) <= limit;
        let (sums, counts) = best(place, costs.len(), &|n, count| squares[n - count] + square(n - count, n), &within);
        squares = sums;
        lasts.push(counts);
    }
    let (mut rest, mut counts) = (costs.len(), vec![]);
    for last in lasts.iter().rev() {
        counts.push(last[rest]);
        rest -= last[rest];
    }
    counts.reverse();
    counts
}

/// Returns, for each number of items split into `place + 1` parts, the least `value` and the size of the last part that
/// attains it.
///
/// Sizes are tried in increasing order up to the first one that `tried` rejects, because larger parts cost more.
fn best(
    place: usize,
    things: usize,
    value: &dyn Fn(usize, usize) -> f64,
    tried: &dyn Fn(usize, usize) -> bool,
) -> (Vec<f64>, Vec<usize>) {
    let of = |n: usize| {
        let counts = (1..=n.saturating_sub(place)).take_while(|count| tried(n, *count));
        let values = counts.map(|count| (value(n, count), count));
        values.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
    };
    (0..=things).map(of).unzip()
}
