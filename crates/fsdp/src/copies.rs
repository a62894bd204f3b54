//! Whether copies of a shard are the same on all ranks that have one.

use crate::FsdpError;
use crate::plan::Class;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a rank holds that others hold too, parameters and moments, as it is between two steps: all under `ddp` (of
/// experts over ranks those that several ranks have) and `hybrid_shard`, and what several stages hold.
///
/// It costs no copy: the tensors share memory with the model until its next step, which then makes new ones.
#[derive(Debug, Clone, Default)]
pub struct Copies(pub(crate) Vec<ShardCopy>);

/// A shard of a class of a unit's parameters.
#[derive(Debug, Clone)]
pub(crate) struct ShardCopy {
    pub unit: String,
    pub of: ShardOf,
    pub tensors: Vec<Tensor<1>>,
}

/// Which shard of a unit: copies of it have the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ShardOf {
    pub class: Class,
    /// Of the parameters, where they are cut up.
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
    /// Reads them all once. That takes a while, and may be done on another thread than the one that trains.
    pub fn digests(self) -> Vec<CopyDigest> {
        let digest = |ShardCopy { unit, of, tensors }: ShardCopy| {
            let mut hasher = DefaultHasher::new();
            tensors.into_iter().for_each(|tensor| tensor.into_data().as_bytes().hash(&mut hasher));
            CopyDigest { unit, of, digest: hasher.finish() }
        };
        self.0.into_iter().map(digest).collect()
    }
}

/// Refuses ranks whose copies are not the same to the last bit, given by the digests of each rank, from rank 0 on: a
/// device or its memory has failed then, or the ranks do not run the same program.
///
/// # Errors
/// [`FsdpError::Copies`] with a unit, and two ranks that differ in it.
pub fn compare_copies<'a>(of_ranks: impl IntoIterator<Item = &'a [CopyDigest]>) -> Result<(), FsdpError> {
    let mut first = HashMap::new();
    for (rank, digests) in of_ranks.into_iter().enumerate() {
        for CopyDigest { unit, of, digest } in digests {
            let (before, expected) = *first.entry((unit, of)).or_insert((rank, digest));
            if expected != digest {
                return Err(FsdpError::Copies { unit: unit.clone(), ranks: [before, rank] });
            }
        }
    }
    Ok(())
}
