//! A group of ranks that compute together, or this rank alone.

use crate::ops::{self, run};
use crate::{Communicator, FirstError, Reduce};
use burn::tensor::Tensor;

/// The ranks of a process group that models compute with, such as [`TensorParallel`](crate::TensorParallel) and
/// [`ContextParallel`](crate::ContextParallel); by default this rank alone.
#[derive(Clone, Default)]
pub struct RankGroup {
    ranks: Option<(Communicator, FirstError)>,
}

impl RankGroup {
    /// Creates the ranks of `comm`. Failures in forwards and backwards are kept in `first_error`.
    pub(crate) fn new(comm: Communicator, first_error: FirstError) -> Self {
        Self { ranks: (comm.world_size() > 1).then_some((comm, first_error)) }
    }

    /// Returns the communicator and where failures go; `None` if this rank is alone.
    pub(crate) fn ranks(&self) -> Option<&(Communicator, FirstError)> {
        self.ranks.as_ref()
    }

    /// Returns whether this rank is the only one.
    pub fn is_alone(&self) -> bool {
        self.ranks.is_none()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.as_ref().map_or(1, |(comm, _)| comm.world_size())
    }

    /// Returns this rank's number among them.
    pub fn rank(&self) -> usize {
        self.ranks.as_ref().map_or(0, |(comm, _)| comm.rank())
    }

    /// Returns the sum over the ranks, on each of them. The backward treats gradients of the result as partial sums.
    pub fn sum<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self.ranks.clone() {
            Some((comm, first_error)) => ops::sum(comm, first_error, x),
            None => x,
        }
    }

    /// Combines the ranks' numbers outside any graph. After a failure, the results are zeros.
    pub fn all_reduce(&self, x_n: Tensor<1>, how: Reduce) -> Tensor<1> {
        let Some((comm, first_error)) = &self.ranks else { return x_n };
        let len = x_n.dims()[0];
        run(first_error, x_n, len, |x_n| comm.all_reduce(x_n, how))
    }
}
