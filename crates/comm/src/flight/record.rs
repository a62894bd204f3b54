//! A rank's recent calls as a file keeps them.

use serde::{Deserialize, Serialize};

/// The recent calls of one rank: what a [`FlightRecorder`](super::FlightRecorder) knew at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// The rank, by its world number, as all ranks in a record are.
    pub rank: usize,
    /// Number of ranks in the world.
    pub world_size: usize,
    /// When the record was taken, in seconds since the Unix epoch by this rank's clock, as all times in it are.
    pub written: f64,
    /// How long before that the rank last entered or left a call, in seconds.
    pub since_last_event: f64,
    /// How long before that it last made any progress: in a call, or in what it computes between them.
    #[serde(default)]
    pub silence: f64,
    /// Where the rank was, if the program noted it.
    pub place: Option<Place>,
    /// The failure that the rank reported to the others, if it did.
    pub aborted: Option<Aborted>,
    /// The last 256 calls that ended and all that are running, in the order of entry.
    pub calls: Vec<Call>,
}

/// A place in the program, as noted by [`Communicator::note_place`](crate::Communicator::note_place).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of the training step.
    pub step: u64,
    /// What the rank does in it, such as `forward` or `checkpoint`.
    pub what: String,
}

/// A failure that a rank reported to the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aborted {
    /// When it did.
    pub at: f64,
    /// The reason that it gave.
    pub reason: String,
}

/// One call of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The ranks of the group, in its order. A file has them as ranges.
    #[serde(with = "crate::rank_list")]
    pub group: Vec<usize>,
    /// Tells apart groups of the same ranks: how many times each group on the way from the world to this one had been
    /// split before.
    pub splits: Vec<u64>,
    /// The mesh axes of the group, as metered.
    pub axes: String,
    /// Number of this call in the group, from 0. Messages have numbers of their own per sender and receiver.
    pub seq: u64,
    /// The call, with the rank that it is from or to.
    pub collective: String,
    /// Sender and receiver of a `send` or `recv`.
    pub pair: Option<(usize, usize)>,
    /// Number of elements, if all ranks give the same number.
    pub len: Option<usize>,
    /// Element type, if all ranks give the same one.
    pub dtype: Option<String>,
    /// Bytes received from other ranks, once the call has succeeded.
    pub bytes: Option<u64>,
    /// When the rank entered the call.
    pub entered: f64,
    /// When the rank left the call; `None` while it runs.
    pub left: Option<f64>,
    /// The error, if it returned one.
    pub failed: Option<CallFailure>,
    /// Whether another thread than the rank's own made it, so that the rank may have computed meanwhile.
    pub background: bool,
    /// Where the rank was when it entered.
    pub place: Option<Place>,
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// Its text.
    pub error: String,
    /// The ranks that it names as failed or missing.
    pub blames: Vec<usize>,
    /// Whether the failure is this rank's own: an invalid argument or a broken engine.
    pub own: bool,
}

impl FlightRecord {
    /// Returns how long this rank had been in a call when it left it, or when the record was taken.
    pub(super) fn seconds_in(&self, call: &Call) -> f64 {
        call.left.unwrap_or(self.written) - call.entered
    }

    /// Returns how long before the record was taken the rank's own thread had left its last call; before its first one,
    /// how old the recorder was.
    pub(super) fn seconds_outside(&self) -> f64 {
        let own = self.calls.iter().filter(|call| !call.background).filter_map(|call| call.left);
        let last = own.fold(f64::NEG_INFINITY, f64::max);
        if last.is_finite() { self.written - last } else { self.since_last_event }
    }

    /// Returns how long before a call the rank had last entered or left another one, if the record reaches back so far.
    pub(super) fn seconds_before(&self, call: &Call) -> Option<f64> {
        let events = self.calls.iter().flat_map(|other| [Some(other.entered), other.left]).flatten();
        let last = events.filter(|at| *at < call.entered).fold(f64::NEG_INFINITY, f64::max);
        last.is_finite().then_some(call.entered - last)
    }
}
