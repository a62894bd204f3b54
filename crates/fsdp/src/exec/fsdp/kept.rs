//! The state that a run keeps between steps, and resuming from it.

use super::Fsdp;
use crate::shard::sharded_unit::ShardedUnit;
use crate::shard::state::{Progress, ReadPart, State, StatePart};
use crate::{Copies, FsdpConfig, FsdpError, Units};
use comm::Communicator;
use std::fmt;

/// One rank's part of a model that resumes from a saved state: sharded, without any values. You can only
/// [load](Self::load_state) it.
pub struct Unloaded<B>(pub(super) Fsdp<B>);

impl<B: 'static> Unloaded<B> {
    /// Shards `units` as [`Fsdp::new`] does. A module with lazily initialized values never creates them, and nothing is
    /// [drawn](Units::initializer).
    ///
    /// # Errors
    /// Returns the same errors as [`Fsdp::new`].
    pub fn new(units: Units<B>, comm: Communicator, config: FsdpConfig) -> Result<Self, FsdpError> {
        Fsdp::sharded(units, comm, config, false).map(Self)
    }

    /// Resumes from a [`state`](Fsdp::state) that any number of ranks has saved under any strategy; `read` is called
    /// for every part that this rank holds. This is a collective: every rank calls it with the same `progress`.
    ///
    /// # Errors
    /// Returns an error if a part cannot be read or has another length, or if a rank fails.
    pub fn load_state(self, progress: Progress, read: &mut ReadPart) -> Result<Fsdp<B>, FsdpError> {
        let Self(mut fsdp) = self;
        for unit in &mut fsdp.units {
            unit.load_state(progress.optimizer_steps, read)?;
        }
        for unit in &mut fsdp.units {
            let replicas = unit.replicate(&fsdp.streams).wait()?;
            unit.set_replicas(replicas);
        }
        fsdp.loss_scale.resume(progress.loss_scale);
        fsdp.optimizer_steps = progress.optimizer_steps;
        Ok(fsdp)
    }

    /// Sums values over the ranks, as [`Fsdp::all_reduce`] does.
    pub fn all_reduce(&self, values: &[f64]) -> Result<Vec<f64>, FsdpError> {
        self.0.all_reduce(values)
    }
}

impl<B: 'static> Fsdp<B> {
    /// Returns this rank's part of the run's state between steps. Parameters and the moments of Kiln's AdamW are not
    /// copied: the tensors share memory with the model until the next step. States of Burn's optimizers are copied to
    /// the host.
    pub fn state(&self) -> State {
        State { parts: self.parts(), progress: self.progress(), copies: self.copies() }
    }

    /// Returns all of the run's state that this rank holds, including what other ranks hold and save. With it, the
    /// ranks that survive a failure can save the run without the others: two ranks that hold the same shard return
    /// equal [parts](crate::Part). `None` if the failure has interrupted the optimizer's step, which leaves some
    /// parameters behind others. It is no collective.
    pub fn held_state(&self) -> Option<State> {
        let parts = || self.units.iter().flat_map(ShardedUnit::held_state).collect();
        (!self.is_stepping).then(|| State { parts: parts(), progress: self.progress(), copies: Copies::default() })
    }

    pub(super) fn parts(&self) -> Vec<StatePart> {
        self.units.iter().flat_map(ShardedUnit::state).collect()
    }

    /// Returns the progress of the optimizer.
    pub fn progress(&self) -> Progress {
        Progress { optimizer_steps: self.optimizer_steps, loss_scale: self.loss_scale.state() }
    }

    /// Returns the shards that other ranks also hold.
    fn copies(&self) -> Copies {
        Copies(self.units.iter().flat_map(ShardedUnit::copies).collect())
    }
}

impl<B> fmt::Debug for Unloaded<B> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Unloaded").field(&self.0).finish()
    }
}
