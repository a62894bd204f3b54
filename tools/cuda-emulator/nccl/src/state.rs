//! What the library knows: the ranks of this process and their communicators, and the launches of all cards.

use crate::abi::Code;
use crate::cuda::{Address, Card};
use crate::launches::Launch;
use crate::links::Link;
use crate::message::{Joining, Name, Process, World};
use crate::worlds::Ranks;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Handle of a rank in a communicator (`ncclComm_t`).
pub type Comm = usize;

/// A rank of a communicator, in this process.
pub struct Member {
    /// The communicator; none until all ranks have joined.
    pub world: Option<World>,
    /// Where the ranks meet until they have joined.
    pub meeting: Option<(Process, Name)>,
    /// This rank's number.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Its card.
    pub card: Card,
    /// Whether calls return when they are done.
    pub blocking: bool,
    /// How often the state is still "in progress".
    pub polls: usize,
    /// A launch that is queued when `polls` is 0.
    pub pending: Option<Launch>,
    /// Number of operations so far.
    pub issued: u64,
    /// Number of operations that are not done.
    pub open: usize,
    /// Number of splits so far.
    pub splits: u64,
    /// A split that has not ended.
    pub child: Option<Child>,
    /// The error that the communicator has met.
    pub error: Option<Code>,
    /// Whether it has been finalized.
    pub finalized: bool,
}

/// A split that has not ended, as a rank sees it.
#[derive(Clone, Copy)]
pub struct Child {
    /// The rank's handle in the new communicator, if it joins one.
    pub comm: Option<Comm>,
    /// Where this handle goes.
    pub to: usize,
    /// Whether all ranks have met.
    pub met: bool,
}

/// Everything.
#[derive(Default)]
pub struct State {
    /// This process; 0 before it has joined anything.
    pub own: Process,
    /// All ranks of this process.
    pub members: HashMap<Comm, Member>,
    /// Their communicators, and those of which others have told already.
    pub worlds: BTreeMap<World, Ranks>,
    /// Ranks that wait for others in this process, and how many there will be.
    pub meetings: HashMap<Name, (usize, Vec<Joining>)>,
    /// Connections to other processes.
    pub links: HashMap<Process, Link>,
    /// Processes that have connected to this one.
    pub heard: HashSet<Process>,
    /// Processes that have ended.
    pub lost: HashSet<Process>,
    /// Launches by card, in the order of issue. The first of each may run.
    pub cards: BTreeMap<c_int, VecDeque<Launch>>,
    /// Pinned words, and how many launches have taken one.
    pub words: Option<Address>,
    /// Number of launches so far.
    pub launches: u64,
    /// The last number given to a communicator, a handle or an identifier.
    pub last: u64,
    /// Source of the choices that a seed makes.
    random: Option<u64>,
    /// Whether the proxy runs.
    pub proxy: bool,
}

impl State {
    /// A number that nothing else has.
    pub fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A number below `bound`, which is not 0, chosen by `KILN_EMULATED_SEED` (splitmix64).
    pub fn below(&mut self, bound: u64) -> usize {
        let seed = || std::env::var("KILN_EMULATED_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
        let state = self.random.get_or_insert_with(seed);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound) as usize
    }

    /// The rank of a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn member(&mut self, comm: Comm) -> Result<&mut Member, Code> {
        match self.members.get_mut(&comm) {
            Some(member) => Ok(member),
            None => crate::say::refuse(Code::INVALID_ARGUMENT, &format!("there is no communicator {comm:#x}")),
        }
    }
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

/// The state, locked.
pub struct Locked(MutexGuard<'static, Option<State>>);

/// Locks the state.
pub fn lock() -> Locked {
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Locked(guard)
}

impl Locked {
    /// Waits until somebody changes something.
    pub fn wait(self) -> Self {
        Self(CHANGED.wait(self.0).unwrap_or_else(PoisonError::into_inner))
    }
}

/// Wakes all that wait.
pub fn changed() {
    CHANGED.notify_all();
}

impl std::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("`lock` makes it")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("`lock` makes it")
    }
}
