//! Tensors that move from one thread to another.

use crate::Payload;
use burn::tensor::{Tensor, kind::Basic};
use burn_std::stream::StreamId;
use std::sync::LazyLock;

/// A stream on which no thread computes.
static NOBODY: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// Returns a tensor with the same values in the same memory that may move to another thread while clones of the given
/// tensor stay on this thread.
///
/// Burn's fusion frees a tensor with its last clone. It counts the clones when an operation takes one and registers the
/// operation afterwards. If another thread drops a clone in between, the tensor is freed before the operation reads it
/// ("Should have handle for tensor"; burn-fusion 0.22.1, `FusionTensor::into_ir`). On the stream of another thread, a
/// clone becomes a separate tensor with its own count. This function therefore clones on a stream that belongs to no
/// thread.
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
