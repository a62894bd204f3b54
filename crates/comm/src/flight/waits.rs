//! Which rank waits for which.

use super::index::{Index, Lane, Meeting};
use super::record::Call;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A call in which some ranks wait for others.
pub struct Gathering<'a> {
    pub meeting: Meeting<'a>,
    /// The call of the first rank that waits in it.
    pub call: &'a Call,
    pub waiting: Vec<usize>,
    pub missing: Vec<usize>,
    /// How long the first rank has waited.
    pub seconds: f64,
    /// Whether a rank is still in the call.
    pub running: bool,
}

/// The graph of waits: from a rank to the calls in which it waits, and from each of these to the ranks missing there.
pub struct Waits<'a> {
    pub gatherings: Vec<Gathering<'a>>,
    /// Where each waiting rank waits, as numbers of `gatherings`; its own thread's call comes first.
    pub of_rank: BTreeMap<usize, Vec<usize>>,
    /// Ranks whose own thread is in no call: only their other threads wait.
    pub outside: BTreeSet<usize>,
}

/// A step of a cycle: `rank` waits for `awaited` in this gathering.
pub struct Step {
    pub rank: usize,
    pub awaited: usize,
    pub gathering: usize,
}

impl<'a> Waits<'a> {
    pub fn new(index: &Index<'a>, failed: &BTreeSet<usize>) -> Self {
        let mut numbers = BTreeMap::new();
        let mut waits = Self { gatherings: vec![], of_rank: BTreeMap::new(), outside: BTreeSet::new() };
        for (rank, record) in index.records.iter().filter(|(rank, _)| !failed.contains(rank)) {
            let mut calls: Vec<&Call> = index.stuck(*rank).collect();
            calls.sort_by_key(|call| call.background);
            if calls.first().is_some_and(|call| call.background) {
                waits.outside.insert(*rank);
            }
            for call in calls {
                let meeting = (Lane::of(call), call.seq);
                let number = *numbers.entry(meeting).or_insert_with(|| {
                    let missing = index.missing(meeting);
                    let gathering = Gathering { meeting, call, waiting: vec![], missing, seconds: 0.0, running: false };
                    waits.gatherings.push(gathering);
                    waits.gatherings.len() - 1
                });
                let gathering = &mut waits.gatherings[number];
                gathering.waiting.push(*rank);
                gathering.seconds = gathering.seconds.max(record.seconds_in(call));
                gathering.running |= call.left.is_none();
                waits.of_rank.entry(*rank).or_default().push(number);
            }
        }
        waits
    }

    /// Returns the awaited ranks that wait for nobody, each with the gathering that misses it: the one of most ranks.
    pub fn ends(&self) -> BTreeMap<usize, usize> {
        let mut ends = BTreeMap::<usize, usize>::new();
        for (number, gathering) in self.gatherings.iter().enumerate() {
            for rank in gathering.missing.iter().filter(|rank| !self.of_rank.contains_key(rank)) {
                let best = ends.entry(*rank).or_insert(number);
                let weight = |number: usize| (self.gatherings[number].waiting.len(), self.gatherings[number].seconds);
                if weight(number) > weight(*best) {
                    *best = number;
                }
            }
        }
        ends
    }

    /// Returns the ranks that wait for this one, directly or behind others.
    pub fn behind(&self, rank: usize) -> BTreeSet<usize> {
        let (mut behind, mut next) = (BTreeSet::new(), vec![rank]);
        while let Some(awaited) = next.pop() {
            for gathering in self.gatherings.iter().filter(|gathering| gathering.missing.contains(&awaited)) {
                next.extend(gathering.waiting.iter().filter(|rank| behind.insert(**rank)));
            }
        }
        behind
    }

    /// Returns the cycles of ranks that wait for each other, without common ranks. The first rank of each is the one for
    /// which most ranks wait.
    pub fn cycles(&self) -> Vec<Vec<Step>> {
        let mut alive: BTreeSet<usize> = self.of_rank.keys().copied().collect();
        let mut cycles = vec![];
        loop {
            self.trim(&mut alive);
            let Some(start) = alive.iter().copied().min_by_key(|rank| Reverse(self.waiting_for(*rank))) else {
                return cycles;
            };
            let (mut path, mut rank) = (vec![], start);
            let first = loop {
                if let Some(first) = path.iter().position(|step: &Step| step.rank == rank) {
                    break first;
                }
                let step = self.next(rank, &alive).expect("a rank that is left waits for another one");
                rank = step.awaited;
                path.push(step);
            };
            let mut cycle = path.split_off(first);
            let most = (0..cycle.len()).min_by_key(|i| Reverse(self.waiting_for(cycle[*i].rank))).unwrap_or(0);
            cycle.rotate_left(most);
            alive.retain(|rank| cycle.iter().all(|step| step.rank != *rank));
            cycles.push(cycle);
        }
    }

    /// Removes the ranks that are on no way from a cycle to a cycle.
    fn trim(&self, alive: &mut BTreeSet<usize>) {
        loop {
            let awaited: BTreeSet<usize> = alive
                .iter()
                .flat_map(|rank| &self.of_rank[rank])
                .flat_map(|number| self.gatherings[*number].missing.iter().copied())
                .collect();
            let stays = |rank: &usize| awaited.contains(rank) && self.next(*rank, alive).is_some();
            let left: BTreeSet<usize> = alive.iter().copied().filter(stays).collect();
            if left.len() == alive.len() {
                return;
            }
            *alive = left;
        }
    }

    /// Returns one of the ranks for which a rank waits.
    fn next(&self, rank: usize, alive: &BTreeSet<usize>) -> Option<Step> {
        self.of_rank[&rank].iter().find_map(|gathering| {
            let missing = &self.gatherings[*gathering].missing;
            let awaited = *missing.iter().find(|awaited| alive.contains(awaited))?;
            Some(Step { rank, awaited, gathering: *gathering })
        })
    }

    fn waiting_for(&self, rank: usize) -> usize {
        let missing = self.gatherings.iter().filter(|gathering| gathering.missing.contains(&rank));
        missing.map(|gathering| gathering.waiting.len()).sum()
    }
}
