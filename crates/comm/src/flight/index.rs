//! All ranks' records, arranged by call.

use super::finding::CallName;
use super::record::{Call, FlightRecord};
use std::collections::{BTreeMap, HashMap};

/// The calls of a group, or the messages from one of its ranks to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane<'a> {
    group: &'a [usize],
    splits: &'a [u64],
    pair: Option<(usize, usize)>,
}

/// One call of all ranks of a lane, by its number.
pub type Meeting<'a> = (Lane<'a>, u64);

pub struct Index<'a> {
    pub world_size: usize,
    pub records: BTreeMap<usize, &'a FlightRecord>,
    /// Every recorded call with the ranks that entered it.
    pub meetings: BTreeMap<Meeting<'a>, Vec<(usize, &'a Call)>>,
    /// Number of a rank's last call in a lane.
    reached: HashMap<(Lane<'a>, usize), u64>,
    /// The call of a rank that the others had blamed before it entered.
    pub late: BTreeMap<usize, &'a Call>,
}

impl<'a> Lane<'a> {
    pub fn of(call: &'a Call) -> Self {
        Self { group: &call.group, splits: &call.splits, pair: call.pair }
    }

    pub fn ranks(&self) -> Vec<usize> {
        self.pair.map_or_else(|| self.group.to_vec(), |(from, to)| vec![from, to])
    }

    pub fn is_collective(&self) -> bool {
        self.pair.is_none()
    }
}

impl<'a> Index<'a> {
    /// Arranges the records; of several records of a rank the last one counts.
    pub fn new(records: &'a [FlightRecord]) -> Self {
        let world_size = records.iter().map(|record| record.world_size).max().unwrap_or(0);
        let mut by_rank = BTreeMap::<usize, &FlightRecord>::new();
        for record in records {
            let kept = by_rank.entry(record.rank).or_insert(record);
            if record.written > kept.written {
                *kept = record;
            }
        }
        let (mut meetings, mut reached) = (BTreeMap::<_, Vec<_>>::new(), HashMap::new());
        for (rank, record) in &by_rank {
            for call in &record.calls {
                let lane = Lane::of(call);
                meetings.entry((lane, call.seq)).or_default().push((*rank, call));
                let last = reached.entry((lane, *rank)).or_insert(call.seq);
                *last = call.seq.max(*last);
            }
        }
        let late = late(&by_rank, &meetings);
        Self { world_size, records: by_rank, meetings, reached, late }
    }

    pub fn without_record(&self) -> Vec<usize> {
        (0..self.world_size).filter(|rank| !self.records.contains_key(rank)).collect()
    }

    pub fn name(&self, call: &Call) -> CallName {
        CallName::new(call, self.world_size)
    }

    /// Returns whether a rank entered a call after the others had stopped waiting for it.
    pub fn entered_late(&self, rank: usize, meeting: Meeting<'a>) -> bool {
        self.late.get(&rank).is_some_and(|late| (Lane::of(late), late.seq) == meeting)
    }

    /// Returns whether a rank entered a call, however late.
    pub fn entered(&self, rank: usize, (lane, seq): Meeting<'a>) -> bool {
        self.reached.get(&(lane, rank)).is_some_and(|last| *last >= seq)
    }

    /// Returns the ranks for which those in a call wait.
    pub fn missing(&self, meeting: Meeting<'a>) -> Vec<usize> {
        let is_there = |rank| self.entered(rank, meeting) && !self.entered_late(rank, meeting);
        meeting.0.ranks().into_iter().filter(|rank| !is_there(*rank)).collect()
    }

    /// Returns the calls in which a rank waits, or waited when it learned of the first failure. It reports no failure of
    /// its own.
    pub fn stuck(&self, rank: usize) -> impl Iterator<Item = &'a Call> {
        let calls = self.records.get(&rank).map_or(&[][..], |record| &record.calls);
        let failed = calls.iter().filter(|call| call.failed.is_some()).filter_map(|call| call.left);
        let first_failure = failed.fold(f64::INFINITY, f64::min);
        let late = self.late.get(&rank).copied();
        calls.iter().filter(move |call| {
            let waits = match &call.failed {
                Some(failure) => !failure.blames.is_empty(),
                None => call.left.is_none(),
            };
            waits && call.entered <= first_failure && late.is_none_or(|late| !std::ptr::eq(late, *call))
        })
    }
}

/// Finds the ranks that entered a call after others had timed out because of them. The error of such a call, or of
/// another rank in it, blames the rank; and it returned at once, in less than a tenth of the longest wait that failed.
fn late<'a>(
    records: &BTreeMap<usize, &'a FlightRecord>,
    meetings: &BTreeMap<Meeting<'a>, Vec<(usize, &'a Call)>>,
) -> BTreeMap<usize, &'a Call> {
    let blames = |call: &Call, rank| call.failed.as_ref().is_some_and(|failure| failure.blames.contains(&rank));
    let failed = || {
        let calls = records.values().flat_map(|record| record.calls.iter().map(|call| (*record, call)));
        calls.filter(|(_, call)| call.failed.as_ref().is_some_and(|failure| !failure.blames.is_empty()))
    };
    let longest = failed().map(|(record, call)| record.seconds_in(call)).fold(0.0, f64::max);
    let mut late = BTreeMap::new();
    for (record, call) in failed().filter(|(record, call)| record.seconds_in(call) < longest / 10.0) {
        if meetings[&(Lane::of(call), call.seq)].iter().any(|(_, call)| blames(call, record.rank)) {
            late.entry(record.rank).or_insert(call);
        }
    }
    late
}
