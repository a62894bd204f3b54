//! The ranks that keep each parameter and those that compute each call.

use crate::groups::plan::{Class, UnitStages};
use crate::{FsdpConfig, FsdpError, PipelineConfig, Strategy};
use comm::{Axis, CommError, Communicator, Mesh};
use schedule::partition;
use std::collections::BTreeSet;
use std::ops::Range;

/// The communicators of a rank.
pub(crate) struct Groups {
    pub world: Communicator,
    /// The ranks that keep dense parameters, and those that keep experts if experts are distributed.
    dense: ShardGroups,
    experts: Option<ShardGroups>,
    /// The ranks that keep parts of matrices, if matrices are cut over ranks.
    tensor: Option<ShardGroups>,
    /// One rank of each stage, in stage order: the one with this rank's place in its stage.
    pub stages: Communicator,
    /// For each unit that several stages hold: the ranks of [`stages`](Self::stages) that hold it.
    pub ties: Vec<Communicator>,
}

/// The ranks of a stage that keep a class of parameters. A strategy is a number of replicas with a number of shards
/// each; only `block` moves its shards in a different order.
pub(crate) struct ShardGroups {
    /// The S ranks that hold different shards of the same replica.
    pub shard: Communicator,
    /// The ranks that hold the same shard of different replicas.
    pub replicate: Communicator,
    /// The ranks that hold different parts of each parameter: experts, columns.
    pub parts: Communicator,
}

/// Returns the axes along which a class of parameters is sharded, replicated and cut into parts.
pub(crate) fn axes_of(class: Class, strategy: Strategy) -> [Vec<Axis>; 3] {
    use Axis::{Cp, DpReplicate, DpShard, Efsdp, Ep, Tp};
    let (shard, parts) = match class {
        // Tensor-parallel ranks are data-parallel ranks for parameters that are not cut: each has its own rows.
        Class::Dense | Class::Fp32 => (vec![DpShard, Cp, Tp], vec![]),
        Class::Expert => (vec![Efsdp], vec![Ep]),
        Class::Tensor => (vec![DpShard, Cp], vec![Tp]),
    };
    // If nothing is sharded, the ranks of shards are replicas.
    match strategy.shards().optimizer {
        true => [shard, vec![DpReplicate], parts],
        false => [vec![], [shard, vec![DpReplicate]].concat(), parts],
    }
}

impl Groups {
    /// Creates the groups, and returns the stage of this rank.
    pub fn new(world: Communicator, config: &FsdpConfig) -> Result<(Self, usize), FsdpError> {
        let shape = config.mesh(world.world_size())?;
        let mesh = Mesh::new(world, shape)?;
        let shard_groups = |class| {
            let [shard, replicate, parts] = axes_of(class, config.strategy);
            let (shard, replicate) = (mesh.over(&shard)?, mesh.over(&replicate)?);
            Ok::<_, CommError>(ShardGroups { shard, replicate, parts: mesh.over(&parts)? })
        };
        let dense = shard_groups(Class::Dense)?;
        let experts = (config.ep > 1).then(|| shard_groups(Class::Expert)).transpose()?;
        let tensor = (config.tp > 1).then(|| shard_groups(Class::Tensor)).transpose()?;
        let stages = mesh.over(&[Axis::Pp])?;
        let stage = stages.rank();
        Ok((Self { world: mesh.world().clone(), dense, experts, tensor, stages, ties: vec![] }, stage))
    }

    /// Returns the same groups with a separate order of collectives. This is a collective.
    pub fn again(&self) -> Result<Self, CommError> {
        let again = |of: &ShardGroups| {
            let (shard, replicate) = (of.shard.split(0)?, of.replicate.split(0)?);
            Ok::<_, CommError>(ShardGroups { shard, replicate, parts: of.parts.split(0)? })
        };
        Ok(Self {
            world: self.world.split(0)?,
            dense: again(&self.dense)?,
            experts: self.experts.as_ref().map(again).transpose()?,
            tensor: self.tensor.as_ref().map(again).transpose()?,
            stages: self.stages.split(0)?,
            ties: self.ties.iter().map(|tie| tie.split(0)).collect::<Result<_, _>>()?,
        })
    }

    /// Calls [`Communicator::expect_agreement`] of all groups.
    pub fn expect_agreement(&self) {
        let of_shards = [Some(&self.dense), self.experts.as_ref(), self.tensor.as_ref()].into_iter().flatten();
        let of_shards = of_shards.flat_map(|of| [&of.shard, &of.replicate, &of.parts]);
        of_shards.chain([&self.world, &self.stages]).chain(&self.ties).for_each(Communicator::expect_agreement);
    }

    /// Returns the ranks that keep a class of parameters.
    pub fn of(&self, class: Class) -> &ShardGroups {
        match class {
            Class::Dense | Class::Fp32 => &self.dense,
            Class::Expert => self.experts.as_ref().expect("experts are a class where they are spread"),
            Class::Tensor => self.tensor.as_ref().expect("parts are a class where matrices are cut"),
        }
    }

    /// Returns the stages that hold a unit with these calls. All ranks ask for all units in turn, because a unit on
    /// several stages gets a group.
    pub fn unit_stages(
        &mut self,
        stages: &Stages,
        calls: impl Iterator<Item = usize>,
    ) -> Result<UnitStages, FsdpError> {
        let all: BTreeSet<usize> = calls.map(|call| stages.of_call(call)).collect();
        let first = *all.first().expect("a unit has a call");
        let (is_here, is_first) = (all.contains(&stages.stage), first == stages.stage);
        let mut tie = None;
        if all.len() > 1 {
            let others = self.stages.world_size(); // a color that no stage has
            self.ties.push(self.stages.split(if is_here { first } else { others })?);
            tie = Some(self.ties.len() - 1);
        }
        Ok(UnitStages { first, is_here, is_first, tie })
    }
}

/// A call of the forward: its unit, and the ranks that compute it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Name of the unit.
    pub unit: String,
    /// Number of its parameters, without padding.
    pub parameters: usize,
    /// The ranks that compute the call, unless all ranks do, each for its own part of the batch: those of a stage, or a
    /// single rank under `block`.
    pub ranks: Option<Range<usize>>,
}

/// The assignment of calls to the stages of the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Stages {
    /// This rank's stage.
    pub stage: usize,
    /// The calls of each chunk of the model, and the chunk's stage.
    chunks: Vec<(Range<usize>, usize)>,
}

impl Stages {
    /// Creates the assignment for a rank in `stage`; `calls` is the number of calls in each chunk.
    pub fn new(config: &PipelineConfig, calls: &[usize], stage: usize) -> Result<Self, FsdpError> {
        let pipeline = config.of_a_round()?;
        let mut end = 0;
        let mut range = |count| {
            end += count;
            end - count..end
        };
        let chunk = |(chunk, count): (usize, &usize)| (range(*count), pipeline.stage_of(chunk));
        Ok(Self { stage, chunks: calls.iter().enumerate().map(chunk).collect() })
    }

    /// Returns the number of calls in each chunk; `parameters` is the number of parameters of each call's module.
    pub fn calls_of_chunks(config: &PipelineConfig, parameters: &[usize]) -> Result<Vec<usize>, FsdpError> {
        let (calls, chunks) = (parameters.len(), config.of_a_round()?.chunks());
        if calls < chunks {
            return Err(FsdpError::Config(format!(
                "a pipeline of {} stages of {} chunks each, but only {calls} calls: take fewer stages",
                config.stages, config.virtual_stages
            )));
        }
        let counts = match config.calls.as_slice() {
            [] => partition(&parameters.iter().map(|count| *count as f64).collect::<Vec<_>>(), chunks),
            given => given.to_vec(),
        };
        if counts.len() != chunks || counts.contains(&0) || counts.iter().sum::<usize>() != calls {
            return Err(FsdpError::Config(format!(
                "{calls} calls in {chunks} chunks, but their numbers of calls are given as {counts:?}"
            )));
        }
        Ok(counts)
    }

    /// Returns the calls of each chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        self.chunks.iter().map(|(calls, _)| calls.clone())
    }

    /// Returns the stage that computes a call.
    pub fn of_call(&self, call: usize) -> usize {
        self.chunks.iter().find(|(calls, _)| calls.contains(&call)).expect("every call is in a chunk").1
    }
}

/// Returns the rank that computes each call under [`Strategy::Block`]: the first call on rank 0, the last call on the
/// last rank, and the calls between them in ranges that are as equal as possible, with longer ones at the end. 61
/// blocks on 4 ranks: 15, 15, 15, 16.
pub fn block_owners(calls: usize, world_size: usize) -> Vec<usize> {
    let blocks = calls.saturating_sub(2);
    let end = |rank: usize| (rank + 1) * blocks / world_size;
    let owner = |block: usize| (0..world_size).find(|rank| block < end(*rank)).expect("the last range ends at the end");
    let mut owners: Vec<usize> = std::iter::once(0).chain((0..blocks).map(owner)).collect();
    if calls > 1 {
        owners.push(world_size - 1);
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks_per_rank(blocks: usize, ranks: usize) -> Vec<usize> {
        let owners = block_owners(blocks + 2, ranks);
        assert_eq!((owners[0], owners[blocks + 1]), (0, ranks - 1));
        (0..ranks).map(|rank| owners[1..=blocks].iter().filter(|owner| **owner == rank).count()).collect()
    }

    #[test]
    fn deepseek_v3_and_gpt2_on_four_ranks() {
        assert_eq!(blocks_per_rank(61, 4), [15, 15, 15, 16]);
        assert_eq!(blocks_per_rank(12, 4), [3, 3, 3, 3]);
    }

    proptest! {
        #[test]
        fn ranges_are_contiguous_and_differ_by_one_at_most(blocks in 0usize..200, ranks in 1usize..20) {
            prop_assert!(block_owners(blocks + 2, ranks).is_sorted());
            let counts = blocks_per_rank(blocks, ranks);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
