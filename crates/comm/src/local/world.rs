//! The state that the ranks of a world share, and the end of a world: the first failure in any group ends all groups.

use super::group::{Group, GroupState, Wait};
use crate::Timeouts;
use burn::tensor::Device;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The splits that lead from the world to a group. Each entry is the number of the split in its parent group and the
/// first member's number there.
pub type GroupId = Vec<(u64, usize)>;

/// The ranks of a world. Lock order: the world's lock first, then the groups'. A thread that holds only a group's lock
/// takes no other.
pub struct World {
    /// The device of each rank.
    pub devices: Vec<Device>,
    /// The number of each rank's machine.
    pub machines: Vec<usize>,
    pub timeouts: Timeouts,
    state: Mutex<WorldState>,
}

#[derive(Default)]
struct WorldState {
    /// Groups; each exists from when its first rank joins until its last rank leaves.
    groups: HashMap<GroupId, Arc<Group>>,
    /// Number of engines per rank, over all groups. A rank leaves the world with its last engine, not group by group,
    /// because a failing rank drops the engines of its groups before it can report why it fails.
    engines: HashMap<usize, usize>,
    left: Vec<usize>,
    failure: Option<Arc<Failure>>,
}

/// The first failure, which ends the world. Ranks have their world numbers.
pub struct Failure {
    /// The rank that noticed it.
    pub reporter: usize,
    /// The rank that failed.
    pub failed: usize,
    /// What happened to it.
    pub reason: String,
}

/// A group that is locked.
type LockedGroup<'a> = (&'a Group, MutexGuard<'a, GroupState>);

impl World {
    pub fn new(devices: Vec<Device>, machines: Vec<usize>, timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Self { devices, machines, timeouts, state: Mutex::default() })
    }

    /// Returns the group, for an engine of world rank `world_rank`. The first rank to arrive creates it from `members`.
    pub fn join(&self, id: GroupId, world_rank: usize, members: impl FnOnce() -> Vec<usize>) -> Arc<Group> {
        let mut state = self.lock();
        let WorldState { groups, engines, left, failure } = &mut *state;
        let group =
            groups.entry(id.clone()).or_insert_with(|| Arc::new(Group::new(id, members(), left, failure.clone())));
        *engines.entry(world_rank).or_default() += 1;
        group.clone()
    }

    /// Records that an engine of the group was dropped. With its last engine, a rank leaves the world.
    pub fn leave(&self, group: &Group, world_rank: usize) {
        let mut state = self.lock();
        if group.lock().one_less() == 0 {
            state.groups.remove(&group.id);
        }
        let engines = state.engines.get_mut(&world_rank).expect("this one was counted");
        *engines -= 1;
        if *engines == 0 {
            state.engines.remove(&world_rank);
            state.left.push(world_rank);
            state.groups.values().for_each(|group| group.loses(world_rank));
        }
    }

    /// Ends the world, unless it has already ended. Incomplete rounds will never complete; complete ones can still be
    /// taken.
    pub fn fail(&self, failure: Failure) {
        self.hold_still(|failed, groups| end(failed, groups, failure));
    }

    /// Ends the world because of the ranks for which this rank has waited too long, and returns them. Does nothing if
    /// the world has already ended, or if `done` says that the awaited result has arrived at the last moment.
    pub fn fail_late(
        &self,
        group: &Group,
        rank: usize,
        what: Wait,
        done: impl FnOnce(&GroupState) -> bool,
        reason: String,
    ) -> Option<Vec<usize>> {
        let mut late = None;
        self.hold_still(|failed, groups| {
            let state = groups.iter().find(|(held, _)| std::ptr::eq(*held, group)).map(|(_, state)| state);
            let state = state.expect("a group is there as long as its ranks");
            if failed.is_some() || done(state) {
                return;
            }
            let missing = state.missing(rank, what).into_iter().map(|rank| group.members[rank]).collect();
            let to_blame = to_blame(groups, missing);
            end(failed, groups, Failure { reporter: group.members[rank], failed: to_blame[0], reason });
            late = Some(to_blame);
        });
        late
    }

    /// Returns whether the world has ended and this rank was the first to notice.
    pub fn first_to_notice(&self, world_rank: usize) -> bool {
        self.lock().failure.as_ref().is_some_and(|failure| failure.reporter == world_rank)
    }

    /// Calls `look` while no rank can enter or leave a call.
    fn hold_still(&self, look: impl FnOnce(&mut Option<Arc<Failure>>, &mut [LockedGroup])) {
        let mut state = self.lock();
        let WorldState { groups, failure, .. } = &mut *state;
        let mut held: Vec<LockedGroup> = groups.values().map(|group| (&**group, group.lock())).collect();
        look(failure, &mut held);
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(failed: &mut Option<Arc<Failure>>, groups: &mut [LockedGroup], failure: Failure) {
    if failed.is_some() {
        return;
    }
    let failure = failed.insert(Arc::new(failure));
    groups.iter_mut().for_each(|(group, state)| group.fail(state, failure));
}

/// Returns the ranks to blame for `missing` ranks. A missing rank that itself waits for others, in any group, is
/// replaced by the ranks that it waits for. Ranks that wait for each other in a cycle are all to blame.
fn to_blame(groups: &[LockedGroup], missing: Vec<usize>) -> Vec<usize> {
    let mut waits = BTreeMap::<usize, Vec<usize>>::new();
    for (group, state) in groups {
        for (rank, what) in &state.waits {
            let of_group = state.missing(*rank, *what).into_iter().map(|rank| group.members[rank]);
            waits.entry(group.members[*rank]).or_default().extend(of_group);
        }
    }
    let (mut known, mut next) = (missing.clone(), 0);
    while next < known.len() {
        let waits_for = waits.get(&known[next]).map_or(&[][..], Vec::as_slice);
        let new: Vec<usize> = waits_for.iter().copied().filter(|rank| !known.contains(rank)).collect();
        known.extend(new);
        next += 1;
    }
    known.retain(|rank| waits.get(rank).is_none_or(Vec::is_empty));
    known.sort_unstable();
    if known.is_empty() { missing } else { known }
}

#[cfg(test)]
impl World {
    /// Returns the existing groups and each rank's number of engines.
    pub fn inventory(&self) -> (Vec<Arc<Group>>, HashMap<usize, usize>) {
        let state = self.lock();
        (state.groups.values().cloned().collect(), state.engines.clone())
    }
}
