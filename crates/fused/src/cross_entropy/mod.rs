//! Next-token loss: a linear head and cross entropy in one operation that never holds all logits in memory.
//!
//! ```text
//! rows      x           logits = x W       p = softmax        d_logits = p - one_hot   (for a cotangent of n)
//!  0..256   [256, d] ──> [256, vocab] ───> loss ─────────────> dx = d_logits W^T,  dW += x^T d_logits
//! 256..512  ...          the same memory
//! ```
//!
//! If a gradient is wanted, the forward computes it chunk by chunk for a cotangent of n; with a cotangent of 1, f16
//! would lose most of it. The backward multiplies it in f32 by the cotangent divided by n (as in Liger Kernel, arXiv
//! 2410.10989).
//!
//! On the CPU, at most `256 vocab` logits and `n d + d vocab` gradients are in memory; the logits of all rows and their
//! gradients would take `2 n vocab`. For GPT-2's vocabulary and 4,096 rows in f32, the logits take 51 MB instead of 1.6
//! GB. A chunk is one block of the order in which [`gemm`](cpu::gemm) adds, so in f32 `dW` is bitwise equal to a single
//! product over all rows.
//!
//! On a GPU, a chunk is as many rows as have 256 MB of logits. A head whose vocabulary is not a multiple of 128 is
//! copied and padded with zeros, so that rows of logits are aligned for 16-byte loads and tensor cores. GPT-2's 50,257
//! columns become 50,304, 77 MB in bf16.
//!
//! [`LinearCrossEntropy`] ignores targets: their rows have losses and gradients of 0, and the mean over all rows is
//! multiplied by the ratio of all rows to the rows that count, which a GPU computes without waiting for the host.
//!
//! Logits and their gradients have the dtype of the inputs. The loss and sums over the vocabulary are f32, the sum of
//! the loss over rows is f64.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod drop_in;
mod flex;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::statistic;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};
pub use drop_in::{LinearCrossEntropy, LinearCrossEntropyConfig};

/// The losses of next-token prediction, `[1]` each, f32.
#[derive(Debug, Clone)]
pub struct Losses {
    /// Mean over all rows of `-log softmax(x W)[target]`, in nats. Its gradient is the gradient of the sum of both
    /// losses: for logits, `softmax (1 + 2 coef log(sum(exp))) - one_hot`.
    pub cross_entropy: Tensor<1>,
    /// `coef` times the mean over all rows of `log(sum(exp(x W)))^2`, which keeps logits from drifting (PaLM, arXiv
    /// 2204.02311, section 5, with a `coef` of 1e-4). For reports only: it has no gradient.
    pub z_loss: Tensor<1>,
}

/// Computes the losses of `x W`, where `W` is `[d, vocab]`. `z_loss_coef` weights the z-loss (0: none).
///
/// # Shapes
/// `x`: `[n, d]`; `targets`: `[n]`, each below `vocab`.
///
/// # Panics
/// If `x` and `W` do not have one type (f32, bf16 or f16), if targets are not i32 or i64, if shapes differ from these
/// or are empty, or, on the CPU, if a target is not in the vocabulary.
pub fn linear_cross_entropy(
    x_nd: Tensor<2>,
    head_dv: Tensor<2>,
    targets_n: Tensor<1, Int>,
    z_loss_coef: f64,
) -> Losses {
    losses(
        Call("linear_cross_entropy"),
        x_nd,
        head_dv,
        targets_n,
        CrossEntropyRule { transposed: false, z_loss_coef: z_loss_coef as f32, ignores: false },
    )
}

/// Computes the same for a `W` of `[vocab, d]`, such as a token embedding.
///
/// # Panics
/// Like [`linear_cross_entropy`].
pub fn linear_cross_entropy_transposed(
    x_nd: Tensor<2>,
    head_vd: Tensor<2>,
    targets_n: Tensor<1, Int>,
    z_loss_coef: f64,
) -> Losses {
    losses(
        Call("linear_cross_entropy_transposed"),
        x_nd,
        head_vd,
        targets_n,
        CrossEntropyRule { transposed: true, z_loss_coef: z_loss_coef as f32, ignores: false },
    )
}

fn losses(call: Call, x_nd: Tensor<2>, head: Tensor<2>, targets_n: Tensor<1, Int>, rule: CrossEntropyRule) -> Losses {
    let ([n, d], [first, second]) = (x_nd.dims(), head.dims());
    call.float("x", x_nd.dtype());
    call.dtype("head", head.dtype(), x_nd.dtype());
    call.index("targets", targets_n.dtype());
    call.not_empty("x", &[n, d]);
    call.not_empty("head", &[first, second]);
    call.shape("head", [first, second], if rule.transposed { [first, d] } else { [d, second] });
    call.shape("targets", targets_n.dims(), [n]);
    let (x, head, targets) = (x_nd.into_dispatch(), head.into_dispatch(), targets_n.into_dispatch());
    let (cross_entropy, z_loss) = Dispatch::fused_cross_entropy(x, head, targets, rule);
    Losses { cross_entropy: Tensor::from_dispatch(cross_entropy), z_loss: Tensor::from_dispatch(z_loss) }
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait CrossEntropyOps: Backend {
    /// Maps `x_nd`, the head (`[vocab, d]` or `[d, vocab]`) and `targets_n` to the mean loss and z-loss, statistics of
    /// one element.
    #[fusion(meta = |_, _, _, _| (statistic([1]), statistic([1])))]
    fn fused_cross_entropy(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The operation with its gradient, which the tape does not record.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub(crate) trait CrossEntropyBackwardOps: Backend {
    /// Computes the same, with the gradients of `x_nd` and, as a statistic, of the head for a cotangent of n.
    #[fusion(meta = |x, head, _, _| (statistic([1]), statistic([1]), x.clone(), statistic(head.shape.clone())))]
    fn fused_cross_entropy_with_gradients(
        x: FloatTensor<Self>,
        head: FloatTensor<Self>,
        targets: IntTensor<Self>,
        rule: CrossEntropyRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Layout of the head, weight of the z-loss, and what a negative target means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyRule {
    /// The head is `[vocab, d]`.
    pub transposed: bool,
    /// Coefficient of the z-loss.
    pub z_loss_coef: f32,
    /// A row with a negative target has losses and gradients of 0. The means are still over all rows.
    pub ignores: bool,
}

/// Rows whose logits are in memory at once: one block of the order in which [`gemm`](cpu::gemm) adds.
pub(crate) const ROWS: usize = 256;
