//! Ranks that keep the others waiting, though they arrive.

use super::finding::Finding;
use super::index::Index;
use std::collections::BTreeMap;

/// A straggler is late by this many seconds in half of its calls, ...
const LATE: f64 = 0.01;
/// ... which are so many or more, ...
const CALLS: usize = 8;
/// ... and costs the others this share of the time.
const SHARE: f64 = 0.05;

/// Calls that end on all ranks at the same time.
const SYNCHRONOUS: [&str; 5] = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "barrier"];

/// Returns the stragglers, the latest first.
///
/// A call ends on all ranks at the same time, so the rank that arrives last spends the shortest time in it. A rank's
/// lateness in a call is the median time of the others in it, less its own. No clocks are compared.
pub fn stragglers(index: &Index) -> Vec<Finding> {
    let mut lateness = BTreeMap::<usize, Vec<f64>>::new();
    for ((lane, _), calls) in &index.meetings {
        let synchronous = |name: &str| SYNCHRONOUS.contains(&name.split(' ').next().unwrap_or(name));
        let complete = calls.len() == lane.ranks().len() && calls.iter().all(|(_, call)| call.bytes.is_some());
        if !lane.is_collective() || !complete || !calls.iter().all(|(_, call)| synchronous(&call.collective)) {
            continue;
        }
        let seconds: Vec<f64> = calls.iter().map(|(rank, call)| index.records[rank].seconds_in(call)).collect();
        for (i, (rank, _)) in calls.iter().enumerate() {
            let mut others = seconds.clone();
            let own = others.swap_remove(i);
            lateness.entry(*rank).or_default().push(median(&mut others) - own);
        }
    }
    let mut found = vec![];
    for (rank, mut late) in lateness.into_iter().filter(|(_, late)| late.len() >= CALLS) {
        let calls = &index.records[&rank].calls;
        let span = index.records[&rank].written - calls.first().map_or(0.0, |call| call.entered);
        let (lost, calls, seconds) = (late.iter().filter(|s| **s > 0.0).sum::<f64>(), late.len(), median(&mut late));
        if seconds >= LATE && lost >= SHARE * span {
            found.push((seconds, Finding::Straggler { rank, calls, seconds }));
        }
    }
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Returns the upper median; there is at least one value.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
