use crate::kernel::{Kernel, Saves, apply2, apply3, runs_on};
use crate::math::{over_rows, sum, sum2, task_len};
use crate::precision::{rounded, widened};
use burn::tensor::{Shape, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// `x / sqrt(mean(x^2) + epsilon) * gain` over the last dimension (RMSNorm, arXiv 1910.07467).
pub fn rms_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, epsilon: f64) -> Tensor<D> {
    rounded(x, |x| wide_rms_norm(x, widened(gain), epsilon))
}

fn wide_rms_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, epsilon: f64) -> Tensor<D> {
    if runs_on(&x) {
        let norm = Norm { width: gain.dims()[0], epsilon: epsilon as f32, centred: false };
        return apply2(norm, x, gain);
    }
    let mean_square = x.clone().powi_scalar(2).mean_dim(D - 1);
    x / (mean_square + epsilon).sqrt() * gain.unsqueeze()
}

/// `(x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias` over the last dimension (LayerNorm, arXiv 1607.06450).
pub fn layer_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, bias: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    rounded(x, |x| wide_layer_norm(x, widened(gain), bias.map(widened), epsilon))
}

fn wide_layer_norm<const D: usize>(x: Tensor<D>, gain: Tensor<1>, bias: Option<Tensor<1>>, epsilon: f64) -> Tensor<D> {
    if runs_on(&x) {
        let norm = Norm { width: gain.dims()[0], epsilon: epsilon as f32, centred: true };
        return match bias {
            None => apply2(norm, x, gain),
            Some(bias) => apply3(norm, x, gain, bias),
        };
    }
    let centred = x.clone() - x.mean_dim(D - 1);
    let variance = centred.clone().powi_scalar(2).mean_dim(D - 1);
    let normed = centred / (variance + epsilon).sqrt() * gain.unsqueeze();
    bias.into_iter().fold(normed, |normed, bias| normed + bias.unsqueeze())
}

/// Both norms; the uncentred one takes the mean as 0.
#[derive(Debug)]
struct Norm {
    width: usize,
    epsilon: f32,
    centred: bool,
}

impl Norm {
    fn output(&self, x: &[f32], gain: &[f32], bias: Option<&[f32]>, output: &mut [f32]) {
        over_rows(self.width, [x], output, |_, [x], y| forward(x, gain, self.epsilon, self.centred, y));
        if let Some(bias) = bias {
            over_rows(self.width, [], output, |_, [], y| add_to_rows(y, bias));
        }
    }

    fn gradients(&self, x: &[f32], gain: &[f32], dy: &[f32], dx: &mut [f32], d_gain: &mut [f32]) {
        let len = task_len(self.width);
        // Each task sums its rows' share of the gain's gradient, then the shares are added in order.
        let shares: Vec<Vec<f32>> = dx
            .par_chunks_mut(len)
            .zip(x.par_chunks(len).zip(dy.par_chunks(len)))
            .map(|(dx, (x, dy))| {
                let mut share = vec![0.0; self.width];
                backward(x, gain, dy, self.epsilon, self.centred, dx, &mut share);
                share
            })
            .collect();
        shares.iter().for_each(|share| add_to_rows(d_gain, share));
    }
}

impl Kernel<2> for Norm {
    const SAVES: Saves = Saves::Inputs;

    fn output_shape(&self, [x, _]: [&Shape; 2]) -> Shape {
        x.clone()
    }

    fn forward(&self, [x, gain]: [&[f32]; 2], output: &mut [f32]) {
        self.output(x, gain, None, output);
    }

    fn backward(&self, [x, gain]: [&[f32]; 2], _: &[f32], cotangent: &[f32], [dx, d_gain]: [&mut [f32]; 2]) {
        self.gradients(x, gain, cotangent, dx, d_gain);
    }
}

impl Kernel<3> for Norm {
    const SAVES: Saves = Saves::Inputs;

    fn output_shape(&self, [x, ..]: [&Shape; 3]) -> Shape {
        x.clone()
    }

    fn forward(&self, [x, gain, bias]: [&[f32]; 3], output: &mut [f32]) {
        self.output(x, gain, Some(bias), output);
    }

    fn backward(&self, [x, gain, _]: [&[f32]; 3], _: &[f32], dy: &[f32], [dx, d_gain, d_bias]: [&mut [f32]; 3]) {
        self.gradients(x, gain, dy, dx, d_gain);
        dy.chunks_exact(self.width).for_each(|row| add_to_rows(d_bias, row));
    }
}

/// Mean and `1 / sqrt(var + epsilon)` of a row.
#[inline(always)]
fn statistics(row: &[f32], epsilon: f32, centred: bool) -> (f32, f32) {
    let width = row.len() as f32;
    let mean = if centred { sum(row, |x| x) / width } else { 0.0 };
    let variance = sum(row, |x| (x - mean) * (x - mean)) / width;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(x: &[f32], gain: &[f32], epsilon: f32, centred: bool, y: &mut [f32]) {
    for (x, y) in x.chunks_exact(gain.len()).zip(y.chunks_exact_mut(gain.len())) {
        let (mean, inverse) = statistics(x, epsilon, centred);
        for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
            *y = (x - mean) * inverse * gain;
        }
    }
}

/// With `n = (x - mean) r` and `c = dy gain`: `dx = r (c - mean(c) - n mean(c n))`, the middle term for the centred norm only;
/// the gain's gradient is the sum over rows of `dy n`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(x: &[f32], gain: &[f32], dy: &[f32], epsilon: f32, centred: bool, dx: &mut [f32], d_gain: &mut [f32]) {
    let width = gain.len();
    for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
        let (mean, r) = statistics(x, epsilon, centred);
        for ((dx, dy), gain) in dx.iter_mut().zip(dy).zip(gain) {
            *dx = dy * gain;
        }
        let mean_c = if centred { sum(dx, |c| c) / width as f32 } else { 0.0 };
        let mean_cn = sum2(dx, x, |c, x| c * (x - mean) * r) / width as f32;
        for (((dx, x), dy), d_gain) in dx.iter_mut().zip(x).zip(dy).zip(d_gain.iter_mut()) {
            let n = (x - mean) * r;
            *d_gain += dy * n;
            *dx = r * (*dx - mean_c - n * mean_cn);
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_to_rows(rows: &mut [f32], row: &[f32]) {
    for target in rows.chunks_exact_mut(row.len()) {
        for (target, value) in target.iter_mut().zip(row) {
            *target += value;
        }
    }
}
