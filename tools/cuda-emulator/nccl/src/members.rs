//! How ranks join communicators, what state these are in, and how they end.

use crate::abi::{Code, NO_COLOR};
use crate::cuda::Card;
use crate::launches::Progress;
use crate::links;
use crate::message::{Joining, Message, Name, Process};
use crate::say::refuse;
use crate::state::{Child, Comm, Locked, Member, State, changed, lock};
use std::ffi::c_int;

impl Member {
    /// # Errors
    /// The communicator has met an error, or an earlier call is still in progress.
    pub fn check_ready(&self) -> Result<(), Code> {
        if let Some(code) = self.error {
            return Err(code);
        }
        if self.world.is_none() || self.polls > 0 || self.pending.is_some() || self.child.is_some() || self.finalized {
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
        world: None,
        meeting: None,
        rank,
        size,
        card,
        blocking,
        polls,
        pending: None,
        issued: 0,
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
/// The system gives no socket, or no context is current.
pub fn begin((place, id): (Process, u64), rank: usize, size: usize, blocking: bool) -> Result<Comm, Code> {
    let (process, card) = (links::own()?, Card::current()?);
    let mut state = lock();
    state.own = process;
    let comm = add(&mut state, card, rank, size, blocking);
    let joining = Joining { rank, process, card: card.ordinal, waiting: comm, comm: Some(comm), order: (0, 0) };
    join(&mut state, place, Name::Id(id), size, joining);
    Ok(comm)
}

/// Lets a rank join those that meet in a process.
fn join(state: &mut State, place: Process, name: Name, size: usize, joining: Joining) {
    if let Some(member) = joining.comm.and_then(|comm| state.members.get_mut(&comm)) {
        member.meeting = Some((place, name));
        if state.lost.contains(&place) {
            member.error = Some(Code::REMOTE_ERROR);
        }
    }
    state.tell(place, Message::Join { name, size, joining });
    changed();
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
    let Some(world) = member.world else { return Err(Code::INTERNAL_ERROR) };
    let (rank, size, name) = (member.rank, member.size, Name::Split(world, member.splits));
    let blocking = blocking.unwrap_or(member.blocking);
    let child = (color != NO_COLOR).then(|| add(&mut state, card, rank, size, blocking));
    state.member(comm)?.child = Some(Child { comm: child, to, met: false });
    let (process, place) = (state.own, state.worlds[&world].seats[0].process);
    let joining = Joining { rank, process, card: card.ordinal, waiting: comm, comm: child, order: (color, key) };
    join(&mut state, place, name, size, joining);
    Ok(child)
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
            None if member.world.is_some() => return Ok(()),
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
    if member.world.is_none() {
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
    let Some(Child { comm: child, to, met }) = state.member(comm)?.child else { return Ok(None) };
    if !met {
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
    let moves = |state: &State| {
        let mut ops = state.cards.values().flatten().flat_map(|launch| &launch.ops);
        ops.any(|op| op.comm == comm && matches!(op.progress, Progress::Starting | Progress::Running))
    };
    state.member(comm)?;
    while moves(&state) {
        state = state.wait();
    }
    for op in state.cards.values_mut().flatten().flat_map(|launch| &mut launch.ops).filter(|op| op.comm == comm) {
        op.progress = Progress::Done;
    }
    state.retire();
    let Some(member) = state.members.remove(&comm) else { return Ok(()) };
    member.card.close();
    if let Some((place, name)) = member.meeting {
        state.tell(place, Message::Withdraw { name, comm });
    }
    if let Some(world) = member.world {
        state.leave(world, member.rank, true);
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
    let Some(member) = state.members.remove(&comm) else { return Ok(()) };
    member.card.close();
    let told = member.world.map(|world| state.leave(world, member.rank, false)).unwrap_or_default();
    changed();
    // The process may end now, and the others shall know that the rank has ended before.
    let is_on_its_way = |state: &Locked| {
        told.iter().any(|(process, number)| {
            !state.lost.contains(process) && state.links.get(process).is_some_and(|link| link.written < *number)
        })
    };
    while is_on_its_way(&state) {
        state = state.wait();
    }
    Ok(())
}
