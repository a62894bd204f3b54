//! Deals the blocks of a model out to stages by their cost.

/// Deals things that follow each other, of these costs, out to so many places, at least one to each: how many each
/// place gets, so that the costliest place costs as little as can be, and of the ways to do so that the squares of all
/// places' costs add up to the least.
///
/// # Panics
/// If there are fewer things than places, or no place.
///
/// ```
/// // An embedding that costs nothing, six blocks, and a head that costs as much as two of them.
/// assert_eq!(schedule::deal(&[0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0], 4), [3, 2, 2, 1]);
/// ```
pub fn deal(costs: &[f64], places: usize) -> Vec<usize> {
    assert!(0 < places && places <= costs.len(), "{} things for {places} places", costs.len());
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(costs.iter().scan(0.0, |sum, cost| {
            *sum += cost;
            Some(*sum)
        }))
        .collect();
    let cost = |from: usize, to: usize| sums[to] - sums[from];
    // Of the first n things on so many places: the least that the costliest place can cost.
    let mut least: Vec<f64> = (0..=costs.len()).map(|n| cost(0, n)).collect();
    for place in 1..places {
        least = best(place, costs.len(), &|n, count| least[n - count].max(cost(n - count, n)), &|_, _| true).0;
    }
    let limit = least[costs.len()] * (1.0 + 1e-12); // sums round
    // Within that, the least sum of squares, and how many things the last place gets then.
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

/// Of each number of things on `place + 1` places the least `value`, and how many things the last place gets for it;
/// only counts that come before the first one that is not `tried`, for more cost more.
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
