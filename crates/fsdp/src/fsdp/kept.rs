//! What is kept of a run between steps, and how a run goes on from it.

use super::Fsdp;
use crate::sharded_unit::ShardedUnit;
use crate::state::{Progress, ReadPart, State};
use crate::{Copies, FsdpConfig, FsdpError, Units};
use comm::Communicator;

/// One rank's part of a model that goes on from a kept state: sharded, and not a value made. It can only be
/// [loaded](Self::load_state).
pub struct Unloaded<B>(Fsdp<B>);

impl<B: 'static> Unloaded<B> {
    /// Shards `units` as [`Fsdp::new`] does. A module that makes its values when they are read makes none, and nothing
    /// is [drawn](Units::draw).
    ///
    /// # Errors
    /// As of [`Fsdp::new`].
    pub fn new(units: Units<B>, comm: Communicator, config: FsdpConfig) -> Result<Self, FsdpError> {
        Fsdp::sharded(units, comm, config, false).map(Self)
    }

    /// Goes on from a [`state`](Fsdp::state) that any number of ranks has kept under any strategy: `read` is asked for
    /// every part that this rank holds. A collective: every rank calls it with the same `progress`.
    ///
    /// # Errors
    /// If a part cannot be read, or has another length; if a rank fails.
    pub fn load_state(self, progress: Progress, read: &mut ReadPart) -> Result<Fsdp<B>, FsdpError> {
        let Self(mut fsdp) = self;
        for unit in &mut fsdp.units {
            unit.load_state(progress.optimizer_steps, read)?;
        }
        for unit in &mut fsdp.units {
            let replicas = unit.replicate(&fsdp.lanes).wait()?;
            unit.set_replicas(replicas);
        }
        fsdp.loss_scale.resume(progress.loss_scale);
        Ok(fsdp)
    }

    /// [`Fsdp::all_reduce`].
    pub fn all_reduce(&self, values: &[f64]) -> Result<Vec<f64>, FsdpError> {
        self.0.all_reduce(values)
    }
}

impl<B: 'static> Fsdp<B> {
    /// This rank's part of the run's state between steps. It costs no copy: the tensors share memory until the next
    /// step.
    pub fn state(&self) -> State {
        let optimizer_steps = self.units.iter().map(ShardedUnit::optimizer_steps).max().unwrap_or(0);
        let progress = Progress { optimizer_steps, loss_scale: self.loss_scale.state() };
        State { parts: self.units.iter().flat_map(ShardedUnit::state).collect(), progress, copies: self.copies() }
    }

    /// What this rank holds that others hold too, without a copy.
    fn copies(&self) -> Copies {
        Copies(self.units.iter().flat_map(ShardedUnit::copies).collect())
    }
}
