//! Asynchronous copies that are under way.

use super::unwritten::Bytes;
use crate::lanes::LANES;
use crate::tensor::Reduction;

/// One `cp.async` of a warp.
#[derive(Debug)]
pub(super) struct Small {
    pub mask: u32,
    pub group: u32,
    pub bytes: u32,
    pub to: [u32; LANES],
    pub data: Box<[u128; LANES]>,
    /// Lanes and bytes of what nothing has written.
    pub missing: Vec<(usize, u32)>,
}

/// Bytes on their way to global memory.
#[derive(Debug)]
pub(super) struct Out {
    pub lane: usize,
    pub group: u32,
    pub to: u64,
    pub from: u32,
    pub bytes: u32,
    pub reduce: Option<Reduction>,
}

/// What a warp has started and not waited for.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub small: Vec<Small>,
    #[allow(clippy::vec_box)] // The boxes move to copies.
    pub spare: Vec<Box<[u128; LANES]>>,
    /// Groups that each lane has committed.
    pub committed: [u32; LANES],
    pub out: Vec<Out>,
    pub bulk_committed: [u32; LANES],
}

/// What happens at some later time.
#[derive(Debug)]
pub(super) enum Later {
    /// Bytes arrive in shared memory of a block, and complete bytes of a barrier.
    Bytes {
        cta: usize,
        to: u32,
        data: Bytes,
        barrier: Option<(usize, u32)>,
        complete: u32,
        /// How they are combined with those that are there.
        reduce: Option<Reduction>,
    },
    /// The copies of a warp's lanes arrive, and then lanes arrive at a barrier.
    Arrive { cta: usize, warp: usize, lane: usize, barrier: (usize, u32), group: u32 },
}

impl Pending {
    pub fn restart(&mut self) {
        self.small.clear();
        self.out.clear();
        (self.committed, self.bulk_committed) = ([0; LANES], [0; LANES]);
    }
}
