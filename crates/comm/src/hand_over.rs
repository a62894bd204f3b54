//! Tensors that go from one thread to another.

use crate::Payload;
use burn::tensor::{Tensor, kind::Basic};
use burn_std::stream::StreamId;
use std::sync::LazyLock;

/// A stream on which nobody computes.
static NOBODY: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// The same values, in the same memory, as a tensor that may go to another thread while clones of the given one stay
/// on this thread.
///
/// Burn's fusion frees a tensor with the last of its clones. It counts them when an operation takes one, and hands the
/// operation over afterwards: where another thread drops a clone in between, the tensor is freed before the operation
/// reads it ("Should have handle for tensor"; burn-fusion 0.22.1, `FusionTensor::into_ir`). On the stream of another
/// thread a clone is a tensor of its own, with a count of its own. So this one is made on a stream that no thread has.
pub fn hand_over<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    NOBODY.executes(|| tensor.clone())
}

impl Payload {
    /// [`hand_over`].
    pub(crate) fn handed_over(self) -> Self {
        match self {
            Self::Float(tensor) => Self::Float(hand_over(tensor)),
            Self::Int(tensor) => Self::Int(hand_over(tensor)),
        }
    }
}
