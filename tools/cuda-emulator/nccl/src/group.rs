//! Groups of calls: what a thread calls between `ncclGroupStart` and `ncclGroupEnd` starts at the end.

use crate::abi::Code;
use crate::launches::{Launch, Op};
use crate::members::wait_until_joined;
use crate::say::refuse;
use crate::state::{Comm, State, lock};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;

#[derive(Default)]
struct Group {
    depth: usize,
    ops: Vec<Op>,
    joining: Vec<Comm>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group, or one more inside it.
pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group. The outermost end starts everything.
///
/// # Errors
/// No group has begun, or an operation cannot start; none does then.
pub fn end() -> Result<(), Code> {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => refuse(Code::INVALID_USAGE, "ncclGroupEnd without ncclGroupStart"),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    let Some(Group { ops, joining, .. }) = group else { return Ok(()) };
    let mut answer = Ok(());
    for comm in joining {
        answer = answer.and(wait_until_joined(comm));
    }
    answer.and_then(|()| if ops.is_empty() { Ok(()) } else { issue(&mut lock(), ops) })
}

/// Waits for a rank's communicator at the end of the group, or now.
pub fn join(comm: Comm) -> Result<(), Code> {
    let grouped = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.joining.push(comm);
        }
        group.depth > 0
    });
    if grouped { Ok(()) } else { wait_until_joined(comm) }
}

/// Checks an operation, and starts it at the end of the group or now.
///
/// # Errors
/// An argument is wrong, or the communicator is not ready.
pub fn add(op: Op) -> Result<(), Code> {
    let mut state = lock();
    check(&mut state, &op)?;
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(op);
        }
        group.ops.push(op);
        None
    });
    alone.map_or(Ok(()), |op| issue(&mut state, vec![op]))
}

fn check(state: &mut State, op: &Op) -> Result<(), Code> {
    let member = state.member(op.comm)?;
    member.check_ready()?;
    let (card, size, rank) = (member.card, member.size, member.rank);
    let peer = match op.kind {
        crate::launches::Kind::Broadcast(peer)
        | crate::launches::Kind::Reduce(_, peer)
        | crate::launches::Kind::Send(peer)
        | crate::launches::Kind::Recv(peer) => peer,
        _ => 0,
    };
    if peer >= size {
        return refuse(Code::INVALID_ARGUMENT, &format!("there is no rank {peer} among {size} ranks"));
    }
    let (read, written) = op.bytes(size, rank);
    for (address, bytes) in [(op.from, read), (op.to, written)] {
        if bytes > 0 {
            card.owns(address, op.dtype.size())?;
        }
    }
    Ok(())
}

/// Makes one launch on each card.
fn issue(state: &mut State, ops: Vec<Op>) -> Result<(), Code> {
    let mut cards = BTreeMap::<c_int, Vec<Op>>::new();
    for mut op in ops {
        // A collective of nothing is no work; a message of nothing is.
        let member = state.member(op.comm)?;
        if op.count > 0 || op.kind.is_between_two() {
            member.open += 1;
            member.issued += 1;
            op.number = member.issued;
            cards.entry(member.card.ordinal).or_default().push(op);
        }
    }
    let mut answer = Ok(());
    for ops in cards.into_values() {
        let (launch, comms) = (ops.iter().map(|op| op.comm).collect::<Vec<_>>(), ops);
        let mut later = None;
        for comm in launch {
            let polls = state.below(3);
            let member = state.member(comm)?;
            if !member.blocking && polls > 0 && later.is_none() {
                member.polls = polls;
                later = Some(comm);
            }
        }
        match later {
            Some(comm) => {
                state.member(comm)?.pending = Some(Launch::new(comms));
                answer = Err(Code::IN_PROGRESS);
            }
            None => state.launch(Launch::new(comms))?,
        }
    }
    answer
}
