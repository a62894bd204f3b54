//! Finds out from the ranks' records who waits for whom, and why.

use super::finding::{Absent, Finding, Wait};
use super::index::Index;
use super::record::{Call, FlightRecord};
use super::stragglers::stragglers;
use super::waits::{Step, Waits};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The number of findings that a diagnosis keeps.
const MOST: usize = 10;
/// Seconds that a rank may wait even if no recorded call took as long: while another one validates, saves or writes a
/// sample.
const USUAL: f64 = 5.0;

/// What the ranks' records say, the likely cause first. It prints one finding per line.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// At most ten findings; none without records.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.findings.iter().map(Finding::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Compares the records of the ranks of a world.
///
/// If no rank has failed and none waits longer than in the calls before, nothing is a cause: the first finding says so,
/// and the others say who waited for whom. The causes come in this order: failures of a program, calls that differ, ranks
/// without a record that others wait for, deadlocks, ranks that are outside of any call while others wait for them. Of
/// the calls that the ranks of a group made at the same place, the one that most of them made counts as right.
///
/// The machines' clocks may differ. A verdict compares times of one rank only, except that failures of several ranks are
/// listed in the order of their times. Records of different moments may show a wait that was over soon; a hang does not
/// change any more.
///
/// Records reach back 256 calls, so a call that one rank skipped before that shows only by its consequences.
pub fn diagnose(records: &[FlightRecord]) -> Diagnosis {
    if records.is_empty() {
        return Diagnosis { findings: vec![] };
    }
    let index = Index::new(records);
    let mut findings = if is_healthy(&index) { waits_of_moment(&index) } else { causes(&index) };
    findings.extend(stragglers(&index));
    findings.truncate(MOST);
    Diagnosis { findings }
}

/// Whether no rank has failed or called anything else than the others, and none waits longer than in the calls before.
fn is_healthy(index: &Index) -> bool {
    let calls = || index.records.values().flat_map(|record| record.calls.iter().map(|call| (*record, call)));
    let has_failed =
        index.records.values().any(|record| record.aborted.is_some()) || calls().any(|(_, call)| call.failed.is_some());
    let seconds = |is_over: bool| {
        let calls = calls().filter(move |(_, call)| call.left.is_some() == is_over);
        calls.map(|(record, call)| record.seconds_in(call)).fold(0.0, f64::max)
    };
    !has_failed && disagreements(index).is_empty() && seconds(false) <= seconds(true).max(USUAL)
}

/// Says which ranks a healthy run's ranks waited for when they were asked.
fn waits_of_moment(index: &Index) -> Vec<Finding> {
    let waits = Waits::new(index, &BTreeSet::new());
    let mut findings = vec![Finding::Healthy];
    findings.extend(no_record(index, &waits));
    findings.extend(other_waits(index, &waits, &BTreeSet::new()).filter(|finding| !finding.suspects().is_empty()));
    findings
}

/// Finds what has failed, or holds the ranks up.
fn causes(index: &Index) -> Vec<Finding> {
    let failures = Failures::new(index);
    let waits = Waits::new(index, &failures.ranks);
    let (disagreements, missing) = (disagreements(index), no_record(index, &waits));
    let mut accused: BTreeSet<usize> = disagreements.iter().flat_map(Finding::suspects).collect();
    accused.extend(&failures.ranks);

    let mut findings = failures.findings(index);
    let needed = matches!(&missing, Some(Finding::NoRecord { waiting, .. }) if !waiting.is_empty());
    findings.extend(disagreements);
    findings.extend(missing.clone().filter(|_| needed));
    let mut told = BTreeSet::new();
    findings.extend(cycles(index, &waits, &mut told));
    findings.extend(absents(index, &waits, &accused, &mut told));
    findings.extend(missing.filter(|_| !needed));
    findings.extend(other_waits(index, &waits, &told));
    findings
}

/// The failures of the program itself, in the order of time: not their consequences on other ranks.
struct Failures<'a> {
    ranks: BTreeSet<usize>,
    found: Vec<Failure<'a>>,
}

struct Failure<'a> {
    rank: usize,
    at: f64,
    reason: &'a str,
    call: Option<&'a Call>,
}

impl<'a> Failures<'a> {
    fn new(index: &Index<'a>) -> Self {
        let mut found: Vec<Failure> = index.records.values().filter_map(|record| Failure::of(record)).collect();
        found.sort_by(|one, other| one.at.total_cmp(&other.at));
        Self { ranks: found.iter().map(|failure| failure.rank).collect(), found }
    }

    /// Returns one finding per reason.
    fn findings(&self, index: &Index) -> Vec<Finding> {
        let mut findings = Vec::<Finding>::new();
        for Failure { rank, reason: new, call, .. } in &self.found {
            let same = findings.iter_mut().find_map(|finding| match finding {
                Finding::Failed { ranks, reason, .. } if reason == new => Some(ranks),
                _ => None,
            });
            match same {
                Some(ranks) => ranks.push(*rank),
                None => {
                    let place = call.map_or(&index.records[rank].place, |call| &call.place).clone();
                    let (reason, call) = (new.to_string(), call.map(|call| index.name(call)));
                    findings.push(Finding::Failed { ranks: vec![*rank], reason, call, place });
                }
            }
        }
        findings
    }
}

impl<'a> Failure<'a> {
    /// Returns the failure of a rank, unless it had been told of another rank's before.
    fn of(record: &'a FlightRecord) -> Option<Self> {
        let failed = |own: bool| {
            let calls = record.calls.iter().filter_map(|call| Some((call.left?, call, call.failed.as_ref()?)));
            let calls = calls.filter(|(_, _, failure)| failure.own == own);
            calls.min_by(|(one, ..), (other, ..)| one.total_cmp(other))
        };
        let told = failed(false).map_or(f64::INFINITY, |(at, ..)| at);
        let rank = record.rank;
        if let Some((at, call, failure)) = failed(true).filter(|(at, ..)| *at < told) {
            return Some(Self { rank, at, reason: &failure.error, call: Some(call) });
        }
        let aborted = record.aborted.as_ref().filter(|aborted| aborted.at < told)?;
        let call = record.calls.iter().find(|call| call.left.is_none() && !call.background);
        Some(Self { rank, at: aborted.at, reason: &aborted.reason, call })
    }
}

fn no_record(index: &Index, waits: &Waits) -> Option<Finding> {
    let ranks = index.without_record();
    let waiting: BTreeSet<usize> = ranks.iter().flat_map(|rank| waits.behind(*rank)).collect();
    (!ranks.is_empty()).then(|| Finding::NoRecord { ranks, waiting: waiting.into_iter().collect() })
}

/// Finds the first call in each group that its ranks made differently.
fn disagreements(index: &Index) -> Vec<Finding> {
    let mut found = BTreeMap::new();
    for ((lane, seq), calls) in index.meetings.iter().filter(|((lane, _), _)| lane.is_collective()) {
        let mut versions = BTreeMap::<String, Vec<usize>>::new();
        for (rank, call) in calls {
            versions.entry(signature(call)).or_default().push(*rank);
        }
        if versions.len() > 1 {
            let over = index.name(calls[0].1).over;
            let mut calls: Vec<_> = versions.into_iter().collect();
            calls.sort_by_key(|(_, ranks)| (Reverse(ranks.len()), ranks[0]));
            found.entry(*lane).or_insert(Finding::Disagreement { over, seq: *seq, calls });
        }
    }
    found.into_values().collect()
}

/// Formats what all ranks of a group have to agree on.
fn signature(call: &Call) -> String {
    let len = call.len.map_or_else(String::new, |len| format!("[{len}] "));
    let of = call.dtype.as_ref().map_or_else(String::new, |dtype| format!(" of {len}{dtype}"));
    format!("{}{of}", call.collective)
}

/// Finds deadlocks. `told` gets the numbers of the gatherings that they tell of.
fn cycles(index: &Index, waits: &Waits, told: &mut BTreeSet<usize>) -> Vec<Finding> {
    let mut findings = vec![];
    for cycle in waits.cycles() {
        told.extend(cycle.iter().map(|step| step.gathering));
        let name = |gathering: usize| index.name(waits.gatherings[gathering].call);
        // A rank whose own thread is outside of any call may compute: its other threads do not hold it up.
        let outside: Vec<_> = cycle.iter().filter(|step| waits.outside.contains(&step.rank)).collect();
        if outside.is_empty() {
            let wait = |step: &Step| {
                let call = name(step.gathering);
                Wait { rank: step.rank, missing: step.awaited, call }
            };
            findings.push(Finding::Deadlock(cycle.iter().map(wait).collect()));
        }
        for step in outside {
            let misses = cycle.iter().find(|other| other.awaited == step.rank).expect("a cycle returns to each rank");
            let beside = Some(name(step.gathering));
            findings.push(Finding::Absent(Absent { beside, ..absent(index, waits, step.rank, misses.gathering) }));
        }
    }
    findings
}

/// Finds the ranks at the ends of the chains of waits: first those that the others' errors name, then those for which
/// most ranks wait. `told` gets the numbers of the gatherings that they tell of.
fn absents(index: &Index, waits: &Waits, accused: &BTreeSet<usize>, told: &mut BTreeSet<usize>) -> Vec<Finding> {
    let failures = || index.records.values().flat_map(|record| &record.calls).filter_map(|call| call.failed.as_ref());
    let mut found = vec![];
    for (rank, number) in waits.ends() {
        told.insert(number);
        if accused.contains(&rank) || !index.records.contains_key(&rank) {
            continue;
        }
        let named = failures().filter(|failure| failure.blames.contains(&rank)).count();
        let weight = (Reverse(named), Reverse(waits.behind(rank).len()));
        found.push((weight, absent(index, waits, rank, number)));
    }
    found.sort_by(|(one, a), (other, b)| one.cmp(other).then(b.seconds.total_cmp(&a.seconds)));
    found.into_iter().map(|(_, absent)| Finding::Absent(absent)).collect()
}

/// Describes a rank that is missing in a gathering.
fn absent(index: &Index, waits: &Waits, rank: usize, number: usize) -> Absent {
    let (record, gathering) = (index.records[&rank], &waits.gatherings[number]);
    let late = index.late.get(&rank).copied();
    let before = late.map_or(f64::INFINITY, |call| call.entered);
    let last = record.calls.iter().rfind(|call| call.entered < before && !call.background);
    Absent {
        rank,
        call: index.name(gathering.call),
        waiting: gathering.waiting.clone(),
        seconds: gathering.seconds,
        late: index.entered_late(rank, gathering.meeting),
        outside: late.map_or(Some(record.seconds_outside()), |call| record.seconds_before(call)),
        place: late.map_or(&record.place, |call| &call.place).clone(),
        last: last.map(|call| index.name(call)),
        beside: None,
    }
}

/// Lists the gatherings of which no cause has told, first those that all ranks have entered.
fn other_waits(index: &Index, waits: &Waits, told: &BTreeSet<usize>) -> impl Iterator<Item = Finding> {
    let (mut transfers, mut behind) = (vec![], vec![]);
    for (_, gathering) in waits.gatherings.iter().enumerate().filter(|(number, _)| !told.contains(number)) {
        let (call, ranks, seconds) = (index.name(gathering.call), gathering.waiting.clone(), gathering.seconds);
        if !gathering.missing.is_empty() {
            behind.push(Finding::Behind { call, ranks, missing: gathering.missing.clone(), seconds });
        } else if gathering.running {
            transfers.push(Finding::InTransfer { call, ranks, seconds });
        }
    }
    transfers.into_iter().chain(behind)
}
