//! RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) over the last dimension.
//!
//! ```text
//! y = n gain + bias,   n = (x - m) r,   r = 1 / sqrt(mean((x - m)^2) + epsilon),   m = mean(x), or 0 in RMSNorm
//! dx = r (c - mean(c) - n mean(c n)),   c = dy gain,   the middle term only in LayerNorm
//! d_gain = sum over rows of dy n,   d_bias = sum over rows of dy
//! ```
//!
//! It works row by row in f32 and rounds once. The backward keeps `x` and the gain, and recomputes `m` and `r`. Sums
//! over rows are added in pieces of rows whose size depends only on `d`.

pub(crate) mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::statistic;
use crate::precision::widened;
use crate::rows::{from_rows, to_rows};
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor};
use cpu::math::{accumulate, over_rows, sum, sum2, sum3, task_len};
use cpu::{Element, Pieces, team, vectorised, written};
use std::mem::MaybeUninit;

/// Computes `x / sqrt(mean(x^2) + epsilon) * gain` over the last dimension: `[.., d]` and `[d]` to `[.., d]`.
///
/// # Panics
/// If `x` or the gain is not f32, bf16 or f16, if the gain does not have the width of `x`, or if that width is 0.
pub fn rms_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, epsilon: f64) -> Tensor<D> {
    norm(Call("rms_norm"), x, gain, None, NormRule { epsilon: epsilon as f32, centred: false })
}

/// Computes `(x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias` over the last dimension: `[.., d]`, `[d]` and `[d]`
/// to `[.., d]`.
///
/// # Panics
/// If one of them is not f32, bf16 or f16, if gain or bias does not have the width of `x`, or if that width is 0.
pub fn layer_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, bias: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    norm(Call("layer_norm"), x, gain, bias, NormRule { epsilon: epsilon as f32, centred: true })
}

fn norm<const D: usize>(
    call: Call,
    x: Tensor<D>,
    gain: Tensor<1>,
    bias: Option<Tensor<1>>,
    rule: NormRule,
) -> Tensor<D> {
    let shape = x.dims();
    call.float("x", x.dtype());
    check(call, shape[D - 1], &gain, ("bias", bias.as_ref()));
    let gain = widened(gain);
    let bias = bias.map_or_else(|| Tensor::empty([0], (&gain.device(), DType::F32)), widened);
    let (x, gain, bias) = (to_rows(x).into_dispatch(), gain.into_dispatch(), bias.into_dispatch());
    from_rows(Tensor::from_dispatch(Dispatch::fused_norm(x, gain, bias, rule)), shape)
}

/// Checks the gain, and a bias of this name, for rows of width `d`.
pub(crate) fn check(call: Call, d: usize, gain: &Tensor<1>, (name, bias): (&str, Option<&Tensor<1>>)) {
    call.that(d > 0, "rows of width 0 have no mean");
    for (name, factors) in std::iter::once(("gain", gain)).chain(bias.map(|bias| (name, bias))) {
        call.float(name, factors.dtype());
        call.shape(name, factors.dims(), [d]);
    }
}

/// The parameters of a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormRule {
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether to subtract the mean (LayerNorm).
    pub centred: bool,
}

/// The operation, which the tape records.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait NormOps: Backend {
    /// Maps `x_nd`, `gain_d` and `bias_d` (empty for none) to `y_nd`.
    #[fusion(meta = |x, _, _, _| x.clone())]
    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self>;
}

/// Its gradient.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub(crate) trait NormBackwardOps: Backend {
    /// Returns the gradients of `x_nd` and `gain_d`, and the sum of `d_y` over rows, which is the gradient of `bias_d`.
    /// The last two are statistics.
    #[fusion(meta = |x, gain, _, _| (x.clone(), statistic(gain.shape.clone()), statistic(gain.shape.clone())))]
    fn fused_norm_backward(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl NormOps for Flex {
    fn fused_norm(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        rule: NormRule,
    ) -> FloatTensor<Self> {
        let (x, gain, bias) = (contiguous(&x), contiguous(&gain), contiguous(&bias));
        with_float!(x.dtype(), T => {
            float(forward_cpu::<T>(slice(&x), slice(&gain), slice(&bias), rule), x.shape())
        })
    }
}

impl NormBackwardOps for Flex {
    fn fused_norm_backward(
        x: FloatTensor<Self>,
        gain: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        rule: NormRule,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (x, gain, d_y) = (contiguous(&x), contiguous(&gain), contiguous(&d_y));
        with_float!(x.dtype(), T => {
            let (d_x, [d_gain, d_bias]) = backward_cpu::<T>(slice(&x), slice(&gain), slice(&d_y), rule);
            (float(d_x, x.shape()), float(d_gain, gain.shape()), float(d_bias, gain.shape()))
        })
    }
}

fn forward_cpu<T: Element>(x: &[T], gain: &[f32], bias: &[f32], rule: NormRule) -> Vec<T> {
    // SAFETY: `forward` sets all of `y`.
    unsafe { over_rows(gain.len(), x.len(), [x], |_, [x], y| forward(x, gain, bias, rule, y)) }
}

/// Returns the gradients of `x`, gain and bias.
fn backward_cpu<T: Element>(x: &[T], gain: &[f32], dy: &[T], rule: NormRule) -> (Vec<T>, [Vec<f32>; 2]) {
    let (len, d) = (task_len(gain.len()), gain.len());
    // Each task sums its rows' contribution to both, then the contributions are added in order.
    let tasks = x.len().div_ceil(len);
    let mut shares = vec![0.0; tasks * 2 * d];
    let write = |dx: &mut [MaybeUninit<T>]| {
        let (dx, shares) = (Pieces::new(dx), Pieces::new(&mut shares));
        team::for_each(tasks, |i| {
            let rows = i * len..x.len().min((i + 1) * len);
            // SAFETY: the parts of tasks are disjoint.
            let (dx, share) = unsafe { (dx.part(i, len), shares.part(i, 2 * d)) };
            let (d_gain, d_bias) = share.split_at_mut(d);
            backward(&x[rows.clone()], gain, &dy[rows], rule, dx, [d_gain, d_bias]);
        });
    };
    // SAFETY: `backward` sets all of `dx`.
    let dx = unsafe { written(x.len(), write) };
    let (mut d_gain, mut d_bias) = (vec![0.0; d], vec![0.0; d]);
    for share in shares.chunks_exact(2 * d) {
        accumulate(&mut d_gain, &share[..d]);
        accumulate(&mut d_bias, &share[d..]);
    }
    (dx, [d_gain, d_bias])
}

/// Mean and `1 / sqrt(var + epsilon)` of a row.
#[inline(always)]
fn statistics<T: Element>(row: &[T], rule: NormRule) -> (f32, f32) {
    let width = row.len() as f32;
    let mean = if rule.centred { sum(row, |x| x) / width } else { 0.0 };
    let variance = sum(row, |x| (x - mean) * (x - mean)) / width;
    (mean, 1.0 / (variance + rule.epsilon).sqrt())
}

vectorised! {
    fn forward<T: Element>(x: &[T], gain: &[f32], bias: &[f32], rule: NormRule, y: &mut [MaybeUninit<T>]) {
        for (x, y) in x.chunks_exact(gain.len()).zip(y.chunks_exact_mut(gain.len())) {
            let (mean, inverse) = statistics(x, rule);
            let normed = x.iter().zip(gain).map(|(x, gain)| (x.to_f32() - mean) * inverse * gain);
            if bias.is_empty() {
                y.iter_mut().zip(normed).for_each(|(y, n)| _ = y.write(T::from_f32(n)));
            } else {
                // The bias slice has the length of a row, so the loop drops no element.
                y.iter_mut()
                    .zip(normed)
                    .zip(&bias[..gain.len()])
                    .for_each(|((y, n), bias)| _ = y.write(T::from_f32(n + bias)));
            }
        }
    }
}

vectorised! {
    /// Sets `dx`, and adds the rows' contribution to the gradients of gain and bias.
    fn backward<T: Element>(
        x: &[T],
        gain: &[f32],
        dy: &[T],
        rule: NormRule,
        dx: &mut [MaybeUninit<T>],
        sums: [&mut [f32]; 2],
    ) {
        let [d_gain, d_bias] = sums;
        let width = gain.len();
        for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let (mean, r) = statistics(x, rule);
            let mean_c = if rule.centred { sum2(dy, gain, |dy, gain| dy * gain) / width as f32 } else { 0.0 };
            let mean_cn = sum3((dy, gain, x), |dy, gain, x| dy * gain * (x - mean) * r) / width as f32;
            let sums = d_gain.iter_mut().zip(d_bias.iter_mut());
            for (((dx, x), (dy, gain)), (d_gain, d_bias)) in dx.iter_mut().zip(x).zip(dy.iter().zip(gain)).zip(sums) {
                let (n, dy) = ((x.to_f32() - mean) * r, dy.to_f32());
                *d_gain += dy * n;
                *d_bias += dy;
                dx.write(T::from_f32(r * (dy * gain - mean_c - n * mean_cn)));
            }
        }
    }
}
