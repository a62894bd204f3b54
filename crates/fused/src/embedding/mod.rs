//! Embedding: a lookup of rows of a table, and the gradient of the table.
//!
//! ```text
//! y[i] = W[token[i]],   dW[v] = sum over i with token[i] = v of dy[i], in the order of i
//! ```
//!
//! The gradient visits the tokens sorted by row. One task sums each row of the table, in f32, and rounds once. So the
//! result does not depend on the number of threads. A bf16 sum of a frequent token's thousands of terms would stop
//! growing at 256 times one of them.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::spec;
use crate::rows::from_rows;
use crate::slices::{contiguous, float, indices, slice};
use crate::with_float;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{Int, Tensor};
use cpu::math::accumulate;
use cpu::{Element, Pieces, team, written};
use std::mem::MaybeUninit;

/// Looks up the tokens' rows of a table `[vocab, d]`: `[b, t]` to `[b, t, d]`.
///
/// # Panics
/// If the table is not f32, bf16 or f16, or has width 0; if tokens are not i32 or i64; on the CPU, if a token is not in
/// the vocabulary.
pub fn embedding(weight_vd: Tensor<2>, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
    let (call, [b, t], [v, d]) = (Call("embedding"), tokens_bt.dims(), weight_vd.dims());
    call.float("weight", weight_vd.dtype());
    call.index("tokens", tokens_bt.dtype());
    call.that(d > 0, format_args!("weight has shape [{v}, 0], expected a width"));
    let tokens = match b * t {
        0 => Tensor::<1, Int>::empty([0], (&tokens_bt.device(), tokens_bt.dtype())),
        n => tokens_bt.reshape([n]),
    };
    let rows = Dispatch::fused_embedding(weight_vd.into_dispatch(), tokens.into_dispatch());
    from_rows(Tensor::from_dispatch(rows), [b, t, d])
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait EmbeddingOps: Backend {
    /// Maps `weight_vd` and `tokens_n` to the tokens' rows, `y_nd`.
    #[fusion(meta = |weight, tokens| spec([tokens.shape[0], weight.shape[1]], weight.dtype))]
    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self>;
}

/// Its gradient.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait EmbeddingBackwardOps: Backend {
    /// Returns the gradient of `weight_vd` with this many rows.
    #[fusion(meta = |_, d_y, rows| spec([*rows, d_y.shape[1]], d_y.dtype))]
    fn fused_embedding_backward(tokens: IntTensor<Self>, d_y: FloatTensor<Self>, rows: usize) -> FloatTensor<Self>;
}

impl EmbeddingOps for Flex {
    fn fused_embedding(weight: FloatTensor<Self>, tokens: IntTensor<Self>) -> FloatTensor<Self> {
        let (weight, tokens, d) = (contiguous(&weight), indices(&tokens), weight.shape()[1]);
        with_float!(weight.dtype(), T => {
            float(forward_cpu::<T>(slice(&weight), &tokens, d), [tokens.len(), d])
        })
    }
}

impl EmbeddingBackwardOps for Flex {
    fn fused_embedding_backward(tokens: IntTensor<Self>, d_y: FloatTensor<Self>, rows: usize) -> FloatTensor<Self> {
        let (tokens, d_y, d) = (indices(&tokens), contiguous(&d_y), d_y.shape()[1]);
        with_float!(d_y.dtype(), T => {
            float(backward_cpu::<T>(&tokens, slice(&d_y), rows, d), [rows, d])
        })
    }
}

fn forward_cpu<T: Element>(weight: &[T], tokens: &[usize], d: usize) -> Vec<T> {
    let rows = weight.len() / d.max(1);
    assert!(tokens.iter().all(|token| *token < rows), "embedding: a token is not in the vocabulary of {rows}");
    tokens.iter().flat_map(|token| &weight[token * d..(token + 1) * d]).copied().collect()
}

fn backward_cpu<T: Element>(tokens: &[usize], dy: &[T], rows: usize, d: usize) -> Vec<T> {
    // The places of each row's tokens, in order: a counting sort.
    let mut ends = vec![0; rows + 1];
    tokens.iter().for_each(|token| ends[token + 1] += 1);
    (0..rows).for_each(|row| ends[row + 1] += ends[row]);
    let (mut places, mut next) = (vec![0; tokens.len()], ends.clone());
    for (place, token) in tokens.iter().enumerate() {
        places[next[*token]] = place;
        next[*token] += 1;
    }
    let task = (16 * 1024 / d.max(1)).max(1);
    let write = |gradient: &mut [MaybeUninit<T>]| {
        let gradient = Pieces::new(gradient);
        team::for_each(rows.div_ceil(task), |i| {
            // SAFETY: each task takes different rows.
            let gradient = unsafe { gradient.part(i, task * d) };
            let mut sum = vec![0.0f32; d];
            for (row, gradient) in gradient.chunks_exact_mut(d).enumerate() {
                let row = i * task + row;
                sum.fill(0.0);
                for place in &places[ends[row]..ends[row + 1]] {
                    accumulate(&mut sum, &dy[place * d..(place + 1) * d]);
                }
                gradient.iter_mut().zip(&sum).for_each(|(gradient, sum)| _ = gradient.write(T::from_f32(*sum)));
            }
        });
    };
    // SAFETY: the tasks set all rows.
    unsafe { written(rows * d, write) }
}
