//! The checkpoint of a run that has lost a rank, from what the other ranks hold.
//!
//! ```text
//!               rank 0   rank 1   rank 2   rank 3 ✗
//! ddp           all      all      all      all        any rank has all of the state: it is saved
//! hybrid_shard  a        b        a        b          a and b are there: saved
//! full_shard    a        b        c        d          d is lost: the newest checkpoint counts
//! ```
//!
//! A rank that returns leaves its state here, so no step is lost. Nothing is copied: the tensors share memory with the
//! rank's model, which is gone. The ranks must be threads of one process: `mpirun` kills all processes within a second of
//! the first failure.

use crate::error::TrainError;
use crate::host::attempt::Cause;
use crate::run::saver::with_progress;
use checkpoint::{Folder, Index, Written, write_rank};
use comm::RankFailure;
use fsdp::{FsdpError, State, StatePart};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the ranks of a failed run have left.
#[derive(Default)]
pub(crate) struct Survivors(Mutex<Vec<Survivor>>);

struct Survivor {
    rank: usize,
    /// What is known of the run after the steps that the state has made.
    index: Index,
    state: State,
}

impl Survivors {
    /// Takes what a rank holds after the steps in `index`.
    pub fn add(&self, rank: usize, index: Index, state: State) {
        self.all().push(Survivor { rank, index, state });
    }

    /// Saves the newest state of which the survivors hold all `parameters` parameters, unless there is a checkpoint of its
    /// step. Returns the step and the folder.
    ///
    /// # Errors
    /// If a file cannot be written, if a value is not finite, or if two survivors hold different copies of a parameter.
    /// Nothing is left of the checkpoint then.
    pub fn save(
        &self,
        folder: &Folder,
        extra: &[(String, Vec<u8>)],
        parameters: usize,
    ) -> Result<Option<(u64, PathBuf)>, TrainError> {
        let mut all = std::mem::take(&mut *self.all());
        all.sort_by_key(|survivor| survivor.rank);
        let Some((index, parts)) = newest_whole(all, parameters) else { return Ok(None) };
        let step = index.step;
        // A rank that is stuck may still write the checkpoint of this step.
        if folder.step(step).exists() || folder.partial(step).exists() {
            return Ok(None);
        }
        // One file holds all.
        let index = Index { world_size: 1, strategy: format!("{}, when others were lost", index.strategy), ..index };
        let write = || {
            let pieces = fsdp::pieces(compared(parts)?);
            folder.begin(&index, extra)?;
            write_rank(&folder.partial(step), 0, &pieces, &Written::default())?;
            Ok(folder.complete(step)?)
        };
        // The values of a device that has failed cannot be read.
        let written = catch_unwind(AssertUnwindSafe(write)).map_or(Ok(None), |path| path.map(Some));
        match written {
            Ok(Some(path)) => Ok(Some((step, path))),
            other => {
                let _ = folder.discard(step); // the error below says more; the next start cleans up
                other.map(|_| None)
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Survivor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what is left after a failure is worth saving: it has to do with a rank, and not with the numbers of the model,
/// which all ranks share.
pub(crate) fn can_save(failure: &RankFailure<TrainError>) -> bool {
    match failure {
        RankFailure::Failed { source, .. } => {
            let differ = matches!(source, TrainError::Fsdp(FsdpError::Copies { .. }));
            let not_finite = matches!(source, TrainError::Skipped { .. } | TrainError::NotSaved { .. });
            !differ && !not_finite && source.cause().0 != Cause::NonFinite
        }
        RankFailure::Stuck { failure, .. } => can_save(failure),
        _ => true,
    }
}

/// A part of a parameter, as each rank holds it that has a copy.
type PartOfRanks = Vec<(usize, StatePart)>;

/// The state after the most steps of which these ranks hold all `parameters` parameters.
fn newest_whole(survivors: Vec<Survivor>, parameters: usize) -> Option<(Index, Vec<PartOfRanks>)> {
    let mut states: BTreeMap<_, (Index, BTreeMap<_, PartOfRanks>)> = BTreeMap::new();
    for Survivor { rank, index, state: State { parts, progress, .. } } in survivors {
        let after = (index.step, progress.optimizer_steps);
        let (_, of_state) = states.entry(after).or_insert_with(|| (with_progress(index, progress), BTreeMap::new()));
        for part in parts {
            let of = (part.of.name.clone(), part.of.region.start.clone(), part.of.range.start);
            of_state.entry(of).or_default().push((rank, part));
        }
    }
    let held = |copies: &PartOfRanks| copies[0].1.of.range.len();
    let is_whole = |parts: &BTreeMap<_, _>| parts.values().map(held).sum::<usize>() == parameters;
    let (index, parts) = states.into_values().rev().find(|(_, parts)| is_whole(parts))?;
    Some((index, parts.into_values().collect()))
}

/// Each part once, if all of its copies are the same.
fn compared(parts: Vec<PartOfRanks>) -> Result<Vec<StatePart>, TrainError> {
    let first = |copies: PartOfRanks| {
        let mut copies = copies.into_iter();
        let (rank, part) = copies.next().expect("a part has a rank");
        match copies.find(|(_, copy)| !copy.is_same(&part)) {
            None => Ok(part),
            Some((other, _)) => {
                Err(FsdpError::Copies { unit: part.of.name, ranks: [rank, other], majority: None }.into())
            }
        }
    };
    parts.into_iter().map(first).collect()
}
