//! The loss of the next tokens: a linear head and cross entropy in one, whose logits are never all in memory.
//!
//! ```text
//! rows      x           logits = x W       p = softmax        d_logits = p - one_hot
//!  0..256   [256, d] ──> [256, vocab] ───> loss ─────────────> dx = d_logits W^T,  dW += x^T d_logits         (for a cotangent of n)
//! 256..512  ...          the same memory
//! ```
//!
//! Where a gradient is wanted the forward makes it, chunk by chunk, for a cotangent of n (of 1 f16 would lose most of
//! it), and the backward multiplies it by the cotangent, divided by n, in f32 (as Liger Kernel, arXiv 2410.10989). So
//! on the CPU at the most `256 vocab` logits are there, and `n d + d vocab` gradients, where logits and their gradients
//! of all rows would take `2 n vocab`: of GPT-2's vocabulary and 4,096 rows in f32 51 MB instead of 1.6 GB. A chunk is
//! one block of the law of [`gemm`](crate::gemm), so that in f32 `dW` has the bits of one product over all rows; on a
//! GPU it is as many rows as have 256 MB of logits, and a head whose vocabulary is no multiple of 128 is copied, with
//! zeros up to the next one, so that rows of logits begin where loads of 16 bytes and tensor cores want them (GPT-2's
//! 50,257: 50,304, 77 MB in bf16). Logits and their gradients are of the inputs' dtype, the loss and the sums over the
//! vocabulary f32, the loss's sum over rows f64.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;
mod host;

use crate::check::Call;
use crate::ops::FusedOps;
use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
pub(crate) use host::cross_entropy_host;

/// What predicting the next tokens costs, `[1]` each, f32.
#[derive(Debug, Clone)]
pub struct Losses {
    /// Mean over all rows of `-log softmax(x W)[target]`, in nats. Its gradient is that of the sum of both losses: of
    /// logits, `softmax (1 + 2 coef log(sum(exp))) - one_hot`.
    pub cross_entropy: Tensor<1>,
    /// `coef` times the mean over all rows of `log(sum(exp(x W)))^2`, which keeps logits from drifting (PaLM, arXiv
    /// 2204.02311, section 5, with a `coef` of 1e-4). To be reported: a gradient of its own it has none.
    pub z_loss: Tensor<1>,
}

/// The losses of `x W`, where `W` is `[d, vocab]`, with the z-loss weighted by `z_loss_coef` (0: none).
///
/// # Shapes
/// `x`: `[n, d]`; `targets`: `[n]`, each below `vocab`.
///
/// # Panics
/// If `x` and `W` are not of one type, f32, bf16 or f16, the targets not i32 or i64, the shapes not these or empty, or,
/// on the CPU, a target is not in the vocabulary.
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
        CrossEntropyRule { transposed: false, z_loss_coef: z_loss_coef as f32 },
    )
}

/// The same with a `W` of `[vocab, d]`, such as a token embedding.
///
/// # Panics
/// As [`linear_cross_entropy`].
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
        CrossEntropyRule { transposed: true, z_loss_coef: z_loss_coef as f32 },
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

/// How the head lies, and what is added to the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyRule {
    /// The head is `[vocab, d]`.
    pub transposed: bool,
    /// Of the z-loss.
    pub z_loss_coef: f32,
}

/// Rows whose logits are there at once: a block of the law of [`gemm`](crate::gemm).
pub(crate) const ROWS: usize = 256;
