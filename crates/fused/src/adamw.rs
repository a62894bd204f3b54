use crate::kernel::runs_on;
use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use multiversion::multiversion;
use rayon::prelude::*;

/// Constants of AdamW (arXiv 1711.05101).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// The field's defaults for language models.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// What AdamW remembers of a parameter.
#[derive(Debug, Clone)]
pub struct AdamWState {
    /// Running mean of gradients.
    pub mean: Tensor<1>,
    /// Running mean of squares of gradients.
    pub square: Tensor<1>,
    /// Steps made.
    pub steps: i32,
}

impl AdamWState {
    /// Before the first step of a parameter like this one.
    pub fn new(like: &Tensor<1>) -> Self {
        Self { mean: like.zeros_like(), square: like.zeros_like(), steps: 0 }
    }
}

/// One step from `parameter` along `gradient * gradient_scale`, which may be of another float, as PyTorch's `AdamW`:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// p = p (1 - lr decay) - lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
pub fn adamw(
    config: &AdamW,
    lr: f64,
    parameter: Tensor<1>,
    gradient: Tensor<1>,
    gradient_scale: f64,
    state: &mut AdamWState,
) -> Tensor<1> {
    state.steps += 1;
    let gradient = gradient.cast(parameter.dtype());
    let rates = Rates::new(config, lr, gradient_scale, state.steps);
    if runs_on(&parameter) {
        let device = parameter.device();
        let take = |tensor: &mut Tensor<1>| values(std::mem::replace(tensor, Tensor::empty([0], &device)));
        let (mut m, mut v, mut p) = (take(&mut state.mean), take(&mut state.square), values(parameter));
        let gradient = gradient.try_into_primitive::<Flex>().expect("on the parameter's device").to_contiguous();
        let g: &[f32] = gradient.as_slice().expect("contiguous f32");
        const TASK: usize = 32 * 1024;
        p.par_chunks_mut(TASK)
            .zip(m.par_chunks_mut(TASK).zip(v.par_chunks_mut(TASK)).zip(g.par_chunks(TASK)))
            .for_each(|(p, ((m, v), g))| step(&rates, p, m, v, g));
        let tensor = |values: Vec<f32>| {
            let len = values.len();
            Tensor::from_data(TensorData::new(values, [len]), &device)
        };
        (state.mean, state.square) = (tensor(m), tensor(v));
        return tensor(p);
    }
    let g = gradient * rates.gradient_scale;
    state.mean = state.mean.clone() * rates.beta1 + g.clone() * (1.0 - rates.beta1);
    state.square = state.square.clone() * rates.beta2 + g.clone() * g * (1.0 - rates.beta2);
    let denominator = state.square.clone().sqrt() * rates.inverse_sqrt_correction2 + rates.epsilon;
    parameter * rates.keep - state.mean.clone() * rates.lr / denominator
}

struct Rates {
    gradient_scale: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    /// `1 - lr * weight_decay`
    keep: f32,
    /// `lr / (1 - beta1^t)`
    lr: f32,
    /// `1 / sqrt(1 - beta2^t)`
    inverse_sqrt_correction2: f32,
}

impl Rates {
    fn new(config: &AdamW, lr: f64, gradient_scale: f64, steps: i32) -> Self {
        Self {
            gradient_scale: gradient_scale as f32,
            beta1: config.beta1 as f32,
            beta2: config.beta2 as f32,
            epsilon: config.epsilon as f32,
            keep: (1.0 - lr * config.weight_decay) as f32,
            lr: (lr / (1.0 - config.beta1.powi(steps))) as f32,
            inverse_sqrt_correction2: (1.0 - config.beta2.powi(steps)).powf(-0.5) as f32,
        }
    }
}

/// The tensor's values, without a copy where nobody else holds them.
fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_into_vec::<f32>().expect("an f32 tensor")
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn step(rates: &Rates, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
    for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
        let g = g * rates.gradient_scale;
        *m = rates.beta1 * *m + (1.0 - rates.beta1) * g;
        *v = rates.beta2 * *v + (1.0 - rates.beta2) * g * g;
        let denominator = v.sqrt() * rates.inverse_sqrt_correction2 + rates.epsilon;
        *p = *p * rates.keep - rates.lr * *m / denominator;
    }
}
