//! Comparison of the copies of a shard on all ranks that hold one.

use crate::FsdpError;
use crate::groups::plan::Class;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The parameters and moments of which other ranks also hold a copy, between two steps: everything under `ddp` (of
/// distributed experts, those that several ranks hold) and `hybrid_shard`, and units that several stages hold.
///
/// It makes no copy: the tensors share memory with the model until the next step, which creates new ones.
#[derive(Debug, Clone, Default)]
pub struct Copies(pub(crate) Vec<ShardCopy>);

/// A shard of a class of a unit's parameters.
#[derive(Debug, Clone)]
pub(crate) struct ShardCopy {
    pub unit: String,
    pub of: ShardOf,
    pub tensors: Vec<Tensor<1>>,
}

/// Identifies a shard of a unit; all ranks that hold it must have the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ShardOf {
    pub class: Class,
    pub is_trained: bool,
    /// The part of each parameter, if the parameters are cut.
    pub part: usize,
    pub shard: usize,
}

/// The digest of one of a rank's [`Copies`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyDigest {
    unit: String,
    of: ShardOf,
    digest: u64,
}

impl Copies {
    /// Hashes all copies. This reads them once and takes a while; it may run on a thread other than the training
    /// thread.
    pub fn digests(self) -> Vec<CopyDigest> {
        let digest = |ShardCopy { unit, of, tensors }: ShardCopy| {
            let mut hasher = DefaultHasher::new();
            tensors.into_iter().for_each(|tensor| tensor.into_data().as_bytes().hash(&mut hasher));
            CopyDigest { unit, of, digest: hasher.finish() }
        };
        self.0.into_iter().map(digest).collect()
    }
}

/// Checks that the copies on all ranks are bitwise the same, given the digests of each rank in rank order. If they
/// differ, a device or its memory has failed, or the ranks do not run the same program.
///
/// # Errors
/// Returns [`FsdpError::Copies`] with a unit and two ranks that differ in it: one of most ranks that hold a copy, if there
/// is a majority, and one that differs from them.
pub fn compare_copies<'a>(of_ranks: impl IntoIterator<Item = &'a [CopyDigest]>) -> Result<(), FsdpError> {
    let mut holders = HashMap::<_, Vec<(usize, u64)>>::new();
    let mut differs = None;
    for (rank, digests) in of_ranks.into_iter().enumerate() {
        for CopyDigest { unit, of, digest } in digests {
            let holders = holders.entry((unit, of)).or_default();
            holders.push((rank, *digest));
            if holders[0].1 != *digest {
                differs = differs.or(Some((unit, of)));
            }
        }
    }
    let Some(differs) = differs else { return Ok(()) };
    let holders = &holders[&differs];
    let alike = |digest: u64| holders.iter().filter(|(_, other)| *other == digest).count();
    let of_most = holders.iter().find(|(_, digest)| 2 * alike(*digest) > holders.len());
    let (first, digest) = of_most.unwrap_or(&holders[0]);
    let (odd, _) = holders.iter().find(|(_, other)| other != digest).expect("they differ");
    let majority = of_most.map(|_| alike(*digest));
    Err(FsdpError::Copies { unit: differs.0.clone(), ranks: [*first, *odd], majority })
}
