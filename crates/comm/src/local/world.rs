//! What the ranks of a world share, and how it ends: the first failure in any group ends all of them.

use super::group::{Group, GroupState, Wait};
use crate::Timeouts;
use burn::tensor::Device;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a group came of the world, for each split on the way: the number of the split in its parent, and the first
/// member there.
pub type GroupId = Vec<(u64, usize)>;

/// Locks are taken in this order: the world's, then groups'. Who holds a group's takes no other.
pub struct World {
    /// Of each rank.
    pub devices: Vec<Device>,
    pub timeouts: Timeouts,
    state: Mutex<WorldState>,
}

#[derive(Default)]
struct WorldState {
    /// From the first rank's joining to the last one's leaving.
    groups: HashMap<GroupId, Arc<Group>>,
    /// How many engines each rank has, in all groups; who has none left has left. Not one by one: a rank that fails
    /// drops those of its groups before it can tell why.
    engines: HashMap<usize, usize>,
    left: Vec<usize>,
    failure: Option<Arc<Failure>>,
}

/// The first failure: it ends the world. Ranks are numbered as in the world.
pub struct Failure {
    /// The rank that noticed it.
    pub reporter: usize,
    /// The rank that failed.
    pub failed: usize,
    /// What became of it.
    pub reason: String,
}

/// A group that is held still.
type Held<'a> = (&'a Group, MutexGuard<'a, GroupState>);

impl World {
    pub fn new(devices: Vec<Device>, timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Self { devices, timeouts, state: Mutex::default() })
    }

    /// The group, for an engine of its rank `rank`, whom the world has under number `world_rank`; the first to come
    /// makes it of `members`.
    pub fn join(&self, id: GroupId, world_rank: usize, members: impl FnOnce() -> Vec<usize>) -> Arc<Group> {
        let mut state = self.lock();
        let WorldState { groups, engines, left, failure } = &mut *state;
        let group =
            groups.entry(id.clone()).or_insert_with(|| Arc::new(Group::new(id, members(), left, failure.clone())));
        *engines.entry(world_rank).or_default() += 1;
        group.clone()
    }

    /// An engine of the group is dropped. With a rank's last one it leaves the world.
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

    /// Ends the world, unless it has ended: rounds that are not complete never will be, complete ones can still be
    /// taken.
    pub fn fail(&self, failure: Failure) {
        self.hold_still(|failed, groups| end(failed, groups, failure));
    }

    /// Ends the world because of those who are late for this rank of the group: returns them, unless the world has
    /// ended before, or `done` says that what the rank waits for has come at the last moment.
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

    /// Whether the world has ended and this rank was the first to notice.
    pub fn first_to_notice(&self, world_rank: usize) -> bool {
        self.lock().failure.as_ref().is_some_and(|failure| failure.reporter == world_rank)
    }

    /// Calls `look` while no rank enters a call or leaves one.
    fn hold_still(&self, look: impl FnOnce(&mut Option<Arc<Failure>>, &mut [Held])) {
        let mut state = self.lock();
        let WorldState { groups, failure, .. } = &mut *state;
        let mut held: Vec<Held> = groups.values().map(|group| (&**group, group.lock())).collect();
        look(failure, &mut held);
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(failed: &mut Option<Arc<Failure>>, groups: &mut [Held], failure: Failure) {
    if failed.is_some() {
        return;
    }
    let failure = failed.insert(Arc::new(failure));
    groups.iter_mut().for_each(|(group, state)| group.fail(state, failure));
}

/// Who is to blame that `missing` are missing: they, unless they wait for others themselves, in any group, but then
/// those. Ranks that wait for each other in a circle are all to blame.
fn to_blame(groups: &[Held], missing: Vec<usize>) -> Vec<usize> {
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
    /// The groups that there are, and each rank's engines.
    pub fn inventory(&self) -> (Vec<Arc<Group>>, HashMap<usize, usize>) {
        let state = self.lock();
        (state.groups.values().cloned().collect(), state.engines.clone())
    }
}
