use crate::kernel::{Kernel, Saves, apply1, runs_on};
use crate::math::{exp, max, over_rows, sum2};
use crate::precision::rounded;
use burn::tensor::{Bool, Shape, Tensor, activation};
use multiversion::multiversion;

/// Attention's probabilities: softmax of `scale * scores` over the keys up to and with the query's position, 0 beyond.
///
/// # Shapes
/// `[.., t, t]`, query by key, to the same.
pub fn causal_softmax<const D: usize>(scores: Tensor<D>, scale: f64) -> Tensor<D> {
    rounded(scores, |scores| wide(scores, scale))
}

fn wide<const D: usize>(scores: Tensor<D>, scale: f64) -> Tensor<D> {
    let t = scores.dims()[D - 1];
    if runs_on(&scores) {
        return apply1(CausalSoftmax { t, scale: scale as f32 }, scores);
    }
    // Burn's `tril_mask` is *false* on and below the diagonal: it marks the future.
    let future = Tensor::<2, Bool>::tril_mask([t, t], 0, &scores.device());
    activation::softmax((scores * scale).mask_fill(future.unsqueeze(), f32::NEG_INFINITY), D - 1)
}

#[derive(Debug)]
struct CausalSoftmax {
    t: usize,
    scale: f32,
}

impl Kernel<1> for CausalSoftmax {
    const SAVES: Saves = Saves::Output;

    fn output_shape(&self, [scores]: [&Shape; 1]) -> Shape {
        scores.clone()
    }

    fn forward(&self, scores: [&[f32]; 1], output: &mut [f32]) {
        over_rows(self.t, scores, output, |row, [x], p| forward(row, self.t, self.scale, x, p));
    }

    fn backward(&self, _: [&[f32]; 1], output: &[f32], cotangent: &[f32], [gradient]: [&mut [f32]; 1]) {
        over_rows(self.t, [output, cotangent], gradient, |row, [p, dp], dx| {
            backward(row, self.t, self.scale, p, dp, dx);
        });
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(first_row: usize, t: usize, scale: f32, x: &[f32], p: &mut [f32]) {
    for (i, (x, p)) in x.chunks_exact(t).zip(p.chunks_exact_mut(t)).enumerate() {
        let keys = (first_row + i) % t + 1;
        let (x, p) = (&x[..keys], &mut p[..keys]); // the rest of the row stays 0
        let largest = max(x);
        for (p, x) in p.iter_mut().zip(x) {
            *p = exp(scale * (x - largest));
        }
        let total = sum2(p, p, |p, _| p);
        let inverse = 1.0 / total;
        p.iter_mut().for_each(|p| *p *= inverse);
    }
}

/// `scale p (dp - sum(p dp))`
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(first_row: usize, t: usize, scale: f32, p: &[f32], dp: &[f32], dx: &mut [f32]) {
    for (i, ((p, dp), dx)) in p.chunks_exact(t).zip(dp.chunks_exact(t)).zip(dx.chunks_exact_mut(t)).enumerate() {
        let keys = (first_row + i) % t + 1;
        let (p, dp, dx) = (&p[..keys], &dp[..keys], &mut dx[..keys]);
        let mean = sum2(p, dp, |p, dp| p * dp);
        for ((dx, p), dp) in dx.iter_mut().zip(p).zip(dp) {
            *dx = scale * p * (dp - mean);
        }
    }
}
