//! Operations, and launches of them on cards.

use crate::abi::{Code, DType, Reduction};
use crate::cuda::{Address, Handle};
use crate::message::Terms;
use crate::proxy;
use crate::state::{Comm, State, changed, lock};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    Broadcast(usize),
    Reduce(Reduction, usize),
    Send(usize),
    Recv(usize),
}

impl Kind {
    /// Whether it is between two ranks.
    pub fn is_between_two(self) -> bool {
        matches!(self, Self::Send(_) | Self::Recv(_))
    }
}

/// An operation of a rank.
#[derive(Clone, Debug)]
pub struct Op {
    /// The rank.
    pub comm: Comm,
    /// Its number among the rank's operations, once it is issued.
    pub number: u64,
    /// What it does.
    pub kind: Kind,
    /// The type of its elements.
    pub dtype: DType,
    /// Elements as the call counts them.
    pub count: usize,
    /// What it reads; 0 if nothing.
    pub from: Address,
    /// What it writes; 0 if nothing.
    pub to: Address,
    /// The stream.
    pub stream: Handle,
    /// How far it is.
    pub progress: Progress,
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Progress {
    Waiting,
    /// What it will write is overwritten, and what it reads is read for others.
    Starting,
    /// The other ranks may count on it.
    Offered,
    Running,
    Done,
}

impl Op {
    /// What the ranks must agree on, with its number.
    pub fn terms(&self) -> Terms {
        let Self { number, kind, dtype, count, .. } = *self;
        Terms { number, kind, dtype, count }
    }

    /// Bytes that it reads and writes, for a communicator of `n` ranks, this one being `rank`.
    pub fn bytes(&self, n: usize, rank: usize) -> (usize, usize) {
        let bytes = self.count * self.dtype.size();
        match self.kind {
            Kind::AllReduce(_) => (bytes, bytes),
            Kind::ReduceScatter(_) => (n * bytes, bytes),
            Kind::AllGather => (bytes, n * bytes),
            Kind::Broadcast(root) => (if rank == root { bytes } else { 0 }, bytes),
            Kind::Reduce(_, root) => (bytes, if rank == root { bytes } else { 0 }),
            Kind::Send(_) => (bytes, 0),
            Kind::Recv(_) => (0, bytes),
        }
    }
}

/// The operations of one group on one card, which start and end together.
#[derive(Debug)]
pub struct Launch {
    id: u64,
    /// The operations.
    pub ops: Vec<Op>,
    streams: Vec<Handle>,
    arrived: usize,
    /// Whether what it will write has been overwritten.
    pub started: bool,
}

/// Pinned words; they are used in turn.
const WORDS: u64 = 1 << 16;

impl Launch {
    /// A launch of operations on one card.
    pub fn new(ops: Vec<Op>) -> Self {
        let mut streams: Vec<_> = ops.iter().map(|op| op.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        Self { id: 0, ops, streams, arrived: 0, started: false }
    }

    /// Whether all its streams have come so far.
    pub fn has_arrived(&self) -> bool {
        self.arrived == self.streams.len()
    }
}

impl State {
    /// Queues a launch in its streams, behind all launches of its card.
    pub fn launch(&mut self, mut launch: Launch) -> Result<(), Code> {
        let card = self.member(launch.ops[0].comm)?.card;
        let words = match self.words {
            Some(words) => words,
            None => *self.words.insert(card.pinned(4 * WORDS as usize)?),
        };
        self.launches += 1;
        launch.id = self.launches;
        let (id, streams) = (launch.id, launch.streams.clone());
        self.cards.entry(card.ordinal).or_default().push_back(launch);
        if !std::mem::replace(&mut self.proxy, true) {
            proxy::start();
        }
        let (word, value) = word(words, id);
        streams.into_iter().try_for_each(|stream| card.queue(stream, arrived, id as usize, word, value))
    }

    /// Notes how far an operation is.
    pub fn progress(&mut self, comm: Comm, number: u64, progress: Progress) {
        let mut ops = self.cards.values_mut().flatten().flat_map(|launch| &mut launch.ops);
        if let Some(op) = ops.find(|op| op.comm == comm && op.number == number) {
            op.progress = progress;
        }
    }

    /// Ends what is done at the heads of the cards' launches.
    pub fn retire(&mut self) {
        let Some(words) = self.words else { return };
        for queue in self.cards.values_mut() {
            // A launch whose operations have been aborted ends in any place.
            queue.retain(|launch| {
                let done = launch.ops.iter().all(|op| op.progress == Progress::Done);
                if done {
                    let (word, value) = word(words, launch.id);
                    // SAFETY: a word of pinned memory that stays, which is written as an atomic only.
                    unsafe { AtomicU32::from_ptr(word as *mut u32) }.store(value, Ordering::Release);
                }
                !done
            });
        }
        changed();
    }
}

/// The word of a launch, and its value once the launch is done. It had smaller ones before.
fn word(words: Address, id: u64) -> (Address, u32) {
    (words + 4 * (id % WORDS), (id / WORDS) as u32 + 1)
}

/// Notes that a stream has come to a launch.
unsafe extern "C" fn arrived(launch: *mut c_void) {
    let mut state = lock();
    let found = state.cards.values_mut().flatten().find(|found| found.id == launch as u64);
    if let Some(launch) = found {
        launch.arrived += 1;
    }
    drop(state);
    changed();
}

/// The reduction of a number.
///
/// # Errors
/// It is none that NCCL has by itself.
pub fn reduction(number: c_int) -> Result<Reduction, Code> {
    match Reduction::of(number) {
        Some(how) => Ok(how),
        None => crate::say::refuse(Code::INVALID_ARGUMENT, &format!("there is no reduction {number}")),
    }
}
