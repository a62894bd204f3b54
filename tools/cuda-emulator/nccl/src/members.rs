//! How ranks join communicators, what state these are in, and how they end.

use crate::abi::{Code, NO_COLOR};
use crate::cuda::Card;
use crate::launches::Progress;
use crate::say::refuse;
use crate::state::{Comm, Joining, Member, Name, State, changed, lock};
use std::ffi::c_int;

impl Member {
    /// # Errors
    /// The communicator has met an error, or an earlier call is still in progress.
    pub fn check_ready(&self) -> Result<(), Code> {
        if let Some(code) = self.error {
            return Err(code);
        }
        if self.world == 0 || self.polls > 0 || self.pending.is_some() || self.child.is_some() || self.finalized {
            let why = "a communicator is used before its last call has ended; poll ncclCommGetAsyncError";
            return refuse(Code::INVALID_ARGUMENT, why);
        }
        Ok(())
    }
}

/// Makes a rank that has not joined yet.
fn add(state: &mut State, card: Card, rank: usize, size: usize, blocking: bool) -> Comm {
    let comm = 0x1000 + 16 * state.fresh() as usize;
    let polls = if blocking { 0 } else { state.below(4) };
    let member = Member {
        world: 0,
        rank,
        size,
        card,
        blocking,
        polls,
        pending: None,
        open: 0,
        splits: 0,
        child: None,
        error: None,
        finalized: false,
    };
    state.members.insert(comm, member);
    comm
}

/// Begins to join the communicator of an identifier, and returns the handle.
///
/// # Errors
/// Another rank has the same number, or another size.
pub fn begin(id: u64, rank: usize, size: usize, blocking: bool) -> Result<Comm, Code> {
    let card = Card::current()?;
    let mut state = lock();
    let (of, waiting) = state.meetings.entry(Name::Id(id)).or_insert_with(|| (size, vec![]));
    if *of != size || waiting.iter().any(|other| other.rank == rank) {
        return refuse(Code::INVALID_USAGE, &format!("two ranks {rank}, or {size} and {of} ranks, of one identifier"));
    }
    let comm = add(&mut state, card, rank, size, blocking);
    meet(&mut state, Name::Id(id), size, Joining { rank, comm: Some(comm), order: (0, 0) });
    Ok(comm)
}

/// Begins a split, and returns the handle of this rank's part, if it has one.
///
/// # Errors
/// The communicator is not ready, or has work that is not done.
pub fn begin_split(
    comm: Comm,
    color: c_int,
    key: c_int,
    blocking: Option<bool>,
    to: usize,
) -> Result<Option<Comm>, Code> {
    if color < NO_COLOR {
        return refuse(Code::INVALID_ARGUMENT, &format!("there is no colour {color}"));
    }
    let card = Card::current()?;
    let mut state = lock();
    let member = state.member(comm)?;
    member.check_ready()?;
    if member.open > 0 {
        return refuse(Code::INVALID_USAGE, "a communicator is split while its work is under way");
    }
    member.splits += 1;
    let (rank, size, name) = (member.rank, member.size, Name::Split(member.world, member.splits));
    let blocking = blocking.unwrap_or(member.blocking);
    let child = (color != NO_COLOR).then(|| add(&mut state, card, rank, size, blocking));
    state.member(comm)?.child = Some((child, to));
    meet(&mut state, name, size, Joining { rank, comm: child, order: (color, key) });
    Ok(child)
}

/// Adds a rank to those that wait; the last one makes the communicators.
fn meet(state: &mut State, name: Name, size: usize, mine: Joining) {
    let (_, waiting) = state.meetings.entry(name.clone()).or_insert_with(|| (size, vec![]));
    waiting.push(mine);
    if waiting.len() < size {
        return;
    }
    let mut all = state.meetings.remove(&name).map(|(_, all)| all).unwrap_or_default();
    // Ranks of a communicator are in the order of their keys, then of their ranks before.
    all.sort_by_key(|one| (one.order, one.rank));
    for same in all.chunk_by(|a, b| a.order.0 == b.order.0).filter(|same| same[0].comm.is_some()) {
        let world = state.fresh();
        let comms: Vec<Comm> = same.iter().filter_map(|one| one.comm).collect();
        let members = comms.iter().filter_map(|comm| state.members.get(comm));
        let mut cards: Vec<_> = members.map(|member| member.card.ordinal).collect();
        cards.sort_unstable();
        let twice = cards.windows(2).any(|pair| pair[0] == pair[1]);
        for (rank, comm) in comms.iter().enumerate() {
            if let Some(member) = state.members.get_mut(comm) {
                (member.world, member.rank, member.size) = (world, rank, comms.len());
                member.error = twice.then_some(Code::INVALID_USAGE);
            }
        }
        if twice {
            eprintln!("emulated NCCL: two ranks of a communicator are on the same card");
        }
    }
    changed();
}

/// Waits until all ranks have joined, if the communicator is blocking.
///
/// # Errors
/// It is not blocking, or cannot be made.
pub fn wait_until_joined(comm: Comm) -> Result<(), Code> {
    let mut state = lock();
    loop {
        let member = state.member(comm)?;
        match member.error {
            Some(code) => return Err(code),
            None if !member.blocking => return Err(Code::IN_PROGRESS),
            None if member.world != 0 => return Ok(()),
            None => state = state.wait(),
        }
    }
}

/// The state of a communicator, and the handle of a split that has ended with the place where it goes. Launches what has
/// waited.
///
/// # Errors
/// A call is in progress, or the communicator has met an error.
pub fn poll(comm: Comm) -> Result<Option<(Comm, usize)>, Code> {
    let mut state = lock();
    let member = state.member(comm)?;
    if let Some(code) = member.error {
        return Err(code);
    }
    if member.world == 0 {
        return Err(Code::IN_PROGRESS);
    }
    if member.polls > 0 {
        member.polls -= 1;
        return Err(Code::IN_PROGRESS);
    }
    if member.finalized && member.open > 0 {
        return Err(Code::IN_PROGRESS);
    }
    if let Some(launch) = member.pending.take() {
        state.launch(launch)?;
    }
    let Some((child, to)) = state.member(comm)?.child else { return Ok(None) };
    let (world, splits) = (state.member(comm)?.world, state.member(comm)?.splits);
    if state.meetings.contains_key(&Name::Split(world, splits)) {
        return Err(Code::IN_PROGRESS);
    }
    state.member(comm)?.child = None;
    Ok(Some((child.unwrap_or(0), to)))
}

/// Waits until a split is done, if the communicator is blocking.
///
/// # Errors
/// It is not blocking, or has met an error.
pub fn wait_until_split(comm: Comm) -> Result<Option<(Comm, usize)>, Code> {
    if !lock().member(comm)?.blocking {
        return Err(Code::IN_PROGRESS);
    }
    loop {
        match poll(comm) {
            Err(Code::IN_PROGRESS) => drop(lock().wait()),
            answer => return answer,
        }
    }
}

/// Frees a rank at once: its work ends undone. The next rank learns of it, as by a closed connection; the others wait.
///
/// # Errors
/// There is no such communicator.
pub fn abort(comm: Comm) -> Result<(), Code> {
    let mut state = lock();
    let running = |state: &State| {
        let ops = || state.cards.values().flatten().flat_map(|launch| &launch.ops);
        ops().any(|op| op.comm == comm && op.progress == Progress::Running)
    };
    state.member(comm)?;
    while running(&state) {
        state = state.wait();
    }
    for op in state.cards.values_mut().flatten().flat_map(|launch| &mut launch.ops).filter(|op| op.comm == comm) {
        op.progress = Progress::Done;
    }
    state.retire();
    for (_, waiting) in state.meetings.values_mut() {
        waiting.retain(|one| one.comm != Some(comm));
    }
    let Some(member) = state.members.remove(&comm) else { return Ok(()) };
    member.card.close();
    let next = |other: &&mut Member| {
        member.world != 0 && other.world == member.world && other.rank == (member.rank + 1) % member.size
    };
    if let Some(next) = state.members.values_mut().find(next) {
        next.error.get_or_insert(Code::REMOTE_ERROR);
    }
    drop(state);
    changed();
    Ok(())
}

/// Lets a rank's work end; afterwards the rank takes no more.
///
/// # Errors
/// There is no such communicator, or it is not blocking.
pub fn finalize(comm: Comm) -> Result<(), Code> {
    let mut state = lock();
    state.member(comm)?.check_ready()?;
    state.member(comm)?.finalized = true;
    while state.member(comm)?.open > 0 {
        if !state.member(comm)?.blocking {
            return Err(Code::IN_PROGRESS);
        }
        state = state.wait();
    }
    Ok(())
}

/// Frees a rank when its work is done.
///
/// # Errors
/// There is no such communicator.
pub fn destroy(comm: Comm) -> Result<(), Code> {
    let mut state = lock();
    while state.member(comm)?.open > 0 {
        state = state.wait();
    }
    if let Some(member) = state.members.remove(&comm) {
        member.card.close();
    }
    Ok(())
}
