//! Saving a model on disk, and resuming from it with different ranks.

use super::{Fsdp, Unloaded};
use crate::shard::pieces::{pieces, read_part};
use crate::shard::state::{LossScale, Progress};
use crate::{FsdpError, Part};
use checkpoint::{Checkpoint, CheckpointError, Folder, Index, Parameter, Written, write_rank};
use std::path::{Path, PathBuf};

impl<B: 'static> Fsdp<B> {
    /// Saves the model and the optimizer's state as checkpoint `step` of the folder `run`, and returns the checkpoint's
    /// folder. Each rank writes the part that it holds. The checkpoint appears when all have written theirs. This is a
    /// collective: every rank calls it.
    ///
    /// # Errors
    /// Returns an error on every rank if one cannot write its part, or if a parameter is not finite.
    pub fn save(&self, run: impl AsRef<Path>, step: u64) -> Result<PathBuf, FsdpError> {
        let folder = Folder::of_run(run.as_ref());
        let (rank, Progress { optimizer_steps, loss_scale }) = (self.world.rank(), self.progress());
        let index = Index {
            step,
            world_size: self.world.world_size(),
            strategy: self.config.strategy.name().into(),
            optimizer_steps,
            loss_scale: loss_scale.map(|LossScale { factor, good_steps }| checkpoint::LossScale { factor, good_steps }),
            ..Index::default()
        };
        let begin = || {
            // Leftovers of a killed process would otherwise be taken for parts of this checkpoint.
            if folder.partial(step).exists() {
                folder.discard(step)?
            }
            folder.begin(&index, &[])
        };
        let path = folder.step(step);
        self.all(if rank == 0 { begin() } else { Ok(()) }, &path)?;
        self.all(write_rank(&folder.partial(step), rank, &pieces(self.parts()), &Written::default()), &path)?;
        let completed = if rank == 0 { folder.complete(step).map(drop) } else { Ok(()) };
        self.all(completed, &path)?;
        Ok(path)
    }

    /// Returns this rank's error, or that of another rank. This is a collective.
    fn all(&self, mine: Result<(), CheckpointError>, checkpoint: &Path) -> Result<(), FsdpError> {
        let failed = if mine.is_err() { self.world.rank() as f64 + 1.0 } else { 0.0 };
        let mut of_ranks = vec![0.0; self.world.world_size()];
        of_ranks[self.world.rank()] = failed;
        let of_ranks = self.all_reduce(&of_ranks)?;
        mine?;
        match of_ranks.iter().position(|failed| *failed > 0.0) {
            Some(rank) => {
                let path = checkpoint.display();
                Err(FsdpError::State(format!(
                    "rank {rank} could not write checkpoint {path}: see the error of that rank"
                )))
            }
            None => Ok(()),
        }
    }
}

impl<B: 'static> Unloaded<B> {
    /// Resumes from a checkpoint's folder, such as [`Fsdp::save`] returns, whatever ranks and strategy have saved it.
    /// This is a collective: every rank calls it with the same folder.
    ///
    /// # Errors
    /// Returns an error if the folder is not a complete checkpoint of this model, if it lacks a state that an optimizer
    /// needs, or if a rank fails. A state that the optimizer does not use is dropped.
    pub fn load(self, checkpoint: impl AsRef<Path>) -> Result<Fsdp<B>, FsdpError> {
        let checkpoint = Checkpoint::open(checkpoint.as_ref())?;
        let Index { optimizer_steps, loss_scale, .. } = checkpoint.index();
        let loss_scale =
            loss_scale.map(|checkpoint::LossScale { factor, good_steps }| LossScale { factor, good_steps });
        let progress = Progress { optimizer_steps: *optimizer_steps, loss_scale };
        // With the states of optimizers, which are stored as further parameters.
        let parameter = |(name, shape)| Parameter { name, shape };
        let states = checkpoint.index().parameters.iter().filter(|parameter| parameter.name.contains('@'));
        let of_model = self.0.units.iter().flat_map(|unit| unit.params()).map(parameter);
        checkpoint.expect(&of_model.chain(states.cloned()).collect::<Vec<_>>())?;
        let read = &mut |part: &Part| read_part(&checkpoint, part).map_err(|error| error.to_string());
        let fsdp = self.load_state(progress, read)?;
        fsdp.all_reduce(&[0.0])?; // an error on one rank is an error on all
        Ok(fsdp)
    }
}
