use crate::{FsdpConfig, FsdpError, Strategy};
use comm::{Axis, Communicator, Mesh, MeshShape};

/// The communicators of a strategy: every one but `block` is a number of replicas, each of a number of shards.
pub(crate) struct Groups {
    pub world: Communicator,
    /// Ranks that hold different shards of the same replica, S of them.
    pub shard: Communicator,
    /// Ranks that hold the same shard of different replicas.
    pub replicate: Communicator,
}

impl Groups {
    pub fn new(world: Communicator, config: &FsdpConfig) -> Result<Self, FsdpError> {
        let n = world.world_size();
        let replicas = match config.strategy {
            Strategy::Ddp => n,
            Strategy::HybridShard => config.replicas(),
            _ => 1,
        };
        let mesh = Mesh::new(world, MeshShape::new(&[(Axis::DpReplicate, replicas), (Axis::DpShard, n / replicas)]))?;
        let [shard, replicate] = [Axis::DpShard, Axis::DpReplicate].map(|axis| mesh.axis(axis).clone());
        Ok(Self { world: mesh.world().clone(), shard, replicate })
    }
}

/// Which rank computes which call under [`Strategy::Block`]: the first call on rank 0, the last on the last rank, and those between in
/// as equal ranges as can be, the longer ones at the end. 61 blocks on 4 ranks: 15, 15, 15, 16.
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
