//! The ranks that compute a model together.

use comm::{Axis, Communicator, ContextParallel, FirstError, Mesh, SequenceRanks, TensorParallel};
use fsdp::{FsdpConfig, FsdpError};
use moe::ExpertParallel;

/// The ranks that compute a model's sequences together; by default only this one.
///
/// A module that holds a shard of its parameters infers its number of heads and columns from the widths of these
/// parameters. A block takes and returns the rank's rows of each sequence. Tokens and targets cover whole sequences, or
/// the rank's part of their context.
#[derive(Clone, Default)]
pub struct Parallel {
    /// The ranks that share the experts.
    pub experts: Option<ExpertParallel>,
    /// The ranks that share the sequences' rows, and the heads, columns and the vocabulary.
    pub sequences: SequenceRanks,
    /// The first error in the collectives of any of them.
    pub first_error: FirstError,
}

impl Parallel {
    /// Creates the groups of ranks that compute a model's sequences together with this one. A collective.
    ///
    /// # Errors
    /// If the configuration does not fit the number of ranks, or a rank is lost.
    pub fn new(config: &FsdpConfig, world: &Communicator) -> Result<Self, FsdpError> {
        let (mut parallel, mesh) = (Self::default(), Mesh::new(world.clone(), config.mesh(world.world_size())?)?);
        if config.ep > 1 {
            parallel.experts = Some(ExpertParallel::new(mesh.over(&[Axis::Ep])?, parallel.first_error.clone()));
        }
        if config.tp > 1 {
            parallel.sequences.tp = TensorParallel::new(mesh.over(&[Axis::Tp])?, parallel.first_error.clone());
        }
        if config.cp > 1 {
            parallel.sequences.cp = ContextParallel::new(mesh.over(&[Axis::Cp])?, parallel.first_error.clone());
        }
        Ok(parallel)
    }
}
