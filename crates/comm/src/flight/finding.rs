//! What a diagnosis says.

use super::record::{Call, Place};
use crate::rank_list;
use std::fmt;

/// One result of a [`diagnosis`](super::diagnose), which prints as a sentence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// No rank had failed, and none waited longer than usual.
    Healthy,
    /// Ranks failed on their own: an error of the program, a panic, or invalid arguments.
    Failed {
        /// The ranks that gave this reason, the first to fail first.
        ranks: Vec<usize>,
        /// The reason.
        reason: String,
        /// The call in which the first of them was.
        call: Option<CallName>,
        /// Where it was.
        place: Option<Place>,
    },
    /// There is no record of these ranks.
    NoRecord {
        /// The ranks.
        ranks: Vec<usize>,
        /// The ranks that wait for them, directly or behind others.
        waiting: Vec<usize>,
    },
    /// The ranks of a group made different calls.
    Disagreement {
        /// The group.
        over: String,
        /// Number of the call in the group.
        seq: u64,
        /// The calls, each with the ranks that made it, most ranks first.
        calls: Vec<(String, Vec<usize>)>,
    },
    /// Ranks wait for each other in a cycle.
    Deadlock(Vec<Wait>),
    /// A rank is missing in a call and waits for nobody.
    Absent(Absent),
    /// All ranks have entered a call, and some do not leave it.
    InTransfer {
        /// The call.
        call: CallName,
        /// The ranks in it.
        ranks: Vec<usize>,
        /// How long they have been in it.
        seconds: f64,
    },
    /// Ranks wait for others, which wait themselves or are named by another finding.
    Behind {
        /// The call in which they wait.
        call: CallName,
        /// The ranks that wait.
        ranks: Vec<usize>,
        /// The ranks that are missing.
        missing: Vec<usize>,
        /// How long they have waited.
        seconds: f64,
    },
    /// A rank enters its calls later than the others.
    Straggler {
        /// The rank.
        rank: usize,
        /// Number of calls that were compared.
        calls: usize,
        /// The median of its lateness in them.
        seconds: f64,
    },
}

/// A rank that is missing in a call and waits for nobody.
#[derive(Debug, Clone, PartialEq)]
pub struct Absent {
    /// The rank.
    pub rank: usize,
    /// The call.
    pub call: CallName,
    /// The ranks that wait in the call.
    pub waiting: Vec<usize>,
    /// How long they have waited.
    pub seconds: f64,
    /// Whether the rank entered the call after the others had given up.
    pub late: bool,
    /// How long the rank had been outside of any call when its record was written, or before it entered this one.
    pub outside: Option<f64>,
    /// Where it is.
    pub place: Option<Place>,
    /// The last call that it made before.
    pub last: Option<CallName>,
    /// A call that another thread of the rank is in. The rank may wait for it.
    pub beside: Option<CallName>,
}

/// A rank that waits for another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// The rank that waits.
    pub rank: usize,
    /// The rank that is missing.
    pub missing: usize,
    /// The call in which it waits.
    pub call: CallName,
}

/// The name of a call: `all_reduce number 41 over dp_shard`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallName {
    /// The call, with the rank that it is from or to.
    pub collective: String,
    /// Its number in the group.
    pub seq: u64,
    /// The group: its axes or its ranks.
    pub over: String,
    /// Whether it is a `send` or `recv`.
    pub message: bool,
}

impl Finding {
    /// Returns the ranks to look at.
    pub fn suspects(&self) -> Vec<usize> {
        match self {
            Self::Healthy | Self::InTransfer { .. } => vec![],
            Self::Failed { ranks, .. } | Self::NoRecord { ranks, .. } => ranks.clone(),
            Self::Disagreement { calls, .. } if calls[0].1.len() > calls[1].1.len() => {
                calls[1..].iter().flat_map(|(_, ranks)| ranks.clone()).collect()
            }
            Self::Disagreement { calls, .. } => calls.iter().flat_map(|(_, ranks)| ranks.clone()).collect(),
            Self::Deadlock(waits) => waits.iter().map(|wait| wait.rank).collect(),
            Self::Absent(absent) => vec![absent.rank],
            Self::Behind { missing, .. } => missing.clone(),
            Self::Straggler { rank, .. } => vec![*rank],
        }
    }
}

impl CallName {
    pub(super) fn new(call: &Call, world_size: usize) -> Self {
        let over = match &*call.axes {
            crate::communicator::WORLD if call.group.len() == world_size => "the world".into(),
            crate::communicator::WORLD => rank_list(&call.group),
            axes => axes.into(),
        };
        Self { collective: call.collective.clone(), seq: call.seq, over, message: call.pair.is_some() }
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, detail) = self.collective.split_once(' ').unwrap_or((&self.collective, ""));
        let space = if detail.is_empty() { "" } else { " " };
        write!(f, "{name} number {}{space}{detail} over {}", self.seq, self.over)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str(
                "the run was healthy as far as the records show: no rank had failed, and none waited longer than usual",
            ),
            Self::Failed { ranks, reason, call, place } => {
                let at = at(place);
                write!(f, "{} failed{at}", rank_list(ranks))?;
                if let Some(call) = call {
                    write!(f, ", in {call}")?;
                }
                write!(f, ": {reason}")
            }
            Self::NoRecord { ranks, waiting } => {
                write!(f, "there is no record of {}", rank_list(ranks))?;
                if !waiting.is_empty() {
                    write!(f, ", for which {} {}", rank_list(waiting), plural(waiting, "waits", "wait"))?;
                }
                let (was, could) = (plural(ranks, "it was", "they were"), plural(ranks, "it", "they"));
                write!(
                    f,
                    ": {was} killed before {could} could write one, or did not get the signal that asks for it; look "
                )?;
                f.write_str("at the system's log of their hosts")
            }
            Self::Disagreement { over, seq, calls } => {
                let made = |(call, ranks): &(String, Vec<usize>)| format!("{} called {call}", rank_list(ranks));
                let (most, others) = (&calls[0], &calls[1..]);
                let others_made = others.iter().map(made).collect::<Vec<_>>().join(", and ");
                if most.1.len() == others[0].1.len() {
                    return write!(f, "in call number {seq} over {over}, {}, but {others_made}", made(most));
                }
                let suspects: Vec<usize> = others.iter().flat_map(|(_, ranks)| ranks.clone()).collect();
                write!(f, "in call number {seq} over {over}, {others_made}, but {}", made(most))?;
                write!(f, ": look at the branch or the shape that only {} took", rank_list(&suspects))
            }
            Self::Deadlock(waits) => {
                let wait =
                    |Wait { rank, missing, call }: &Wait| format!("rank {rank} waits for rank {missing} in {call}");
                write!(f, "deadlock: {}", waits.iter().map(wait).collect::<Vec<_>>().join("; "))?;
                f.write_str(": look at the order in which these ranks make the calls")
            }
            Self::Absent(absent) => absent.fmt(f),
            Self::InTransfer { call, ranks, seconds } => {
                let (have, been) = (plural(ranks, "has", "have"), duration(*seconds));
                write!(f, "{} {have} been in {call} for {been}, which all its ranks have entered: ", rank_list(ranks))?;
                f.write_str("look at the network and the devices, unless the records are of different moments")
            }
            Self::Behind { call, ranks, missing, seconds } => {
                let (have, waited) = (plural(ranks, "has", "have"), duration(*seconds));
                write!(f, "{} {have} waited for {waited} in {call} for {}", rank_list(ranks), rank_list(missing))
            }
            Self::Straggler { rank, calls, seconds } => {
                let late = duration(*seconds);
                write!(f, "rank {rank} is late: in half of {calls} calls the others waited {late} or longer for it")
            }
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, call, waiting, .. } = self;
        let (others, waited, at) = (rank_list(waiting), duration(self.seconds), at(&self.place));
        let side = if call.message { "its side of " } else { "" };
        match (self.late, call.message) {
            (true, _) => {
                write!(f, "rank {rank} entered {side}{call} too late: {others} had waited for {waited}")?;
                if let Some(outside) = self.outside {
                    write!(f, "; it had been outside of any call for {}{at}", duration(outside))?;
                }
            }
            (false, message) => {
                let (made, have) = (if message { "made" } else { "entered" }, plural(waiting, "has", "have"));
                write!(f, "rank {rank} never {made} {side}{call}, where {others} {have} waited for {waited}; ")?;
                match (&self.beside, self.outside) {
                    (Some(beside), _) => {
                        write!(f, "its own thread is outside of any call{at}, while another one is in {beside}")?;
                    }
                    (None, Some(outside)) => {
                        let (outside, when) = (duration(outside), "when its record was written");
                        write!(f, "it had been outside of any call for {outside} {when}{at}")?;
                    }
                    (None, None) => write!(f, "it is outside of any call{at}")?,
                }
            }
        }
        match &self.last {
            Some(last) => write!(f, ": look at what rank {rank} does after {last}"),
            None => write!(f, ": look at what rank {rank} does before its first call"),
        }
    }
}

fn plural<'a>(ranks: &[usize], one: &'a str, many: &'a str) -> &'a str {
    if ranks.len() == 1 { one } else { many }
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

fn at(place: &Option<Place>) -> String {
    place.as_ref().map_or_else(String::new, |Place { step, what }| format!(", in step {step} ({what})"))
}
