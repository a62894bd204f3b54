//! The loss of the next tokens: a linear head and cross entropy in one, whose logits are never all in memory.
//!
//! ```text
//! rows      x           logits = x W       p = softmax        d_logits = p - one_hot
//!  0..256   [256, d] ──> [256, vocab] ───> loss ─────────────> dx = d_logits W^T,  dW += x^T d_logits         (for a cotangent of n)
//! 256..512  ...          the same memory
//! ```
//!
//! Where a gradient is wanted the forward makes it, chunk by chunk, for a cotangent of n (of 1 f16 would lose most of it), and the backward multiplies it by the
//! cotangent, divided by n, in f32 (as Liger Kernel, arXiv 2410.10989). So on the CPU at the most `256 vocab` logits are there, and `n d + d vocab` gradients, where logits and their gradients of all rows would take `2 n vocab`: of
//! GPT-2's vocabulary and 4,096 rows in f32 51 MB instead of 1.6 GB. A chunk is one block of the law of [`gemm`](crate::gemm), so that in f32 `dW` has the
//! bits of one product over all rows; on a GPU it is as many rows as have 256 MB of logits. Logits and their gradients are of the inputs' dtype, the loss and the sums over the vocabulary f32, the loss's sum over rows f64.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod host;

use crate::ops::FusedOps;
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
pub(crate) use host::cross_entropy_host;

/// Mean over all rows of `-log softmax(x W)[target]`, in nats: `[1]`, f32. `W` is `[d, vocab]`.
///
/// # Shapes
/// `x`: `[n, d]`; `targets`: `[n]`, each below `vocab`.
///
/// # Panics
/// If the widths differ, there are no rows, or, on the CPU, a target is not in the vocabulary.
pub fn linear_cross_entropy(x_nd: Tensor<2>, head_dv: Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    loss(x_nd, head_dv, targets_n, CrossEntropyRule { transposed: false })
}

/// The same with a `W` of `[vocab, d]`, such as a token embedding.
///
/// # Panics
/// As [`linear_cross_entropy`].
pub fn linear_cross_entropy_transposed(x_nd: Tensor<2>, head_vd: Tensor<2>, targets_n: Tensor<1, Int>) -> Tensor<1> {
    loss(x_nd, head_vd, targets_n, CrossEntropyRule { transposed: true })
}

fn loss(x_nd: Tensor<2>, head: Tensor<2>, targets_n: Tensor<1, Int>, rule: CrossEntropyRule) -> Tensor<1> {
    let ([n, d], shape, [targets]) = (x_nd.dims(), head.dims(), targets_n.dims());
    assert_eq!(shape[usize::from(rule.transposed)], d, "cross entropy: rows of {d} by a head of {shape:?}");
    assert!(n == targets && n > 0, "cross entropy: {n} rows and {targets} targets");
    let (x, head, targets) = (x_nd.into_dispatch(), head.into_dispatch(), targets_n.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_cross_entropy(x, head, targets, rule))
}

/// How the head lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyRule {
    /// The head is `[vocab, d]`.
    pub transposed: bool,
}

/// Rows whose logits are there at once: a block of the law of [`gemm`](crate::gemm).
pub(crate) const ROWS: usize = 256;
