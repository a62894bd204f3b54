//! Layer norm and RMS norm, and their fusion with the preceding projection.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear};
use burn::tensor::{Device, Tensor};
use comm::TensorParallel;
use fused::linear;

/// `(x - mean) / sqrt(var + epsilon) * gamma + beta` over the last dimension (arXiv 1607.06450).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Gain, `[d]`.
    pub gamma: Param<Tensor<1>>,
    /// Bias, `[d]`.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

/// `x / sqrt(mean(x^2) + epsilon) * gamma` over the last dimension (arXiv 1910.07467).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// Gain, `[d]`.
    pub gamma: Param<Tensor<1>>,
    epsilon: f64,
}

impl LayerNorm {
    pub(crate) fn new(d: usize, bias: bool, epsilon: f64, device: &Device) -> Self {
        let beta = bias.then(|| Initializer::Zeros.init([d], device));
        Self { gamma: Initializer::Ones.init([d], device), beta, epsilon }
    }

    /// Maps `[.., d]` to `[.., d]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        fused::layer_norm(x, self.gamma.val(), self.beta.as_ref().map(Param::val), self.epsilon)
    }

    /// `residual + projection(y)` and the norm of that sum, for this rank's rows.
    pub(crate) fn forward_sum(
        &self,
        projection: &Linear,
        y: Tensor<3>,
        residual: Tensor<3>,
        tp: &TensorParallel,
    ) -> [Tensor<3>; 2] {
        if !tp.is_alone() {
            let sum = residual + project(tp, projection, y);
            return [sum.clone(), self.forward(sum)];
        }
        let (weight, bias) = (projection.weight.val(), projection.bias.as_ref().map(Param::val));
        let (gain, beta) = (self.gamma.val(), self.beta.as_ref().map(Param::val));
        fused::linear_add_layer_norm(y, weight, bias, residual, gain, beta, self.epsilon)
    }
}

impl RmsNorm {
    pub(crate) fn new(d: usize, epsilon: f64, device: &Device) -> Self {
        Self { gamma: Initializer::Ones.init([d], device), epsilon }
    }

    /// Maps `[.., d]` to `[.., d]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        fused::rms_norm(x, self.gamma.val(), self.epsilon)
    }

    /// `residual + projection(y)`, without a bias, and the norm of that sum, for this rank's rows.
    pub(crate) fn forward_sum(
        &self,
        projection: &Linear,
        y: Tensor<3>,
        residual: Tensor<3>,
        tp: &TensorParallel,
    ) -> [Tensor<3>; 2] {
        if !tp.is_alone() {
            let sum = residual + project(tp, projection, y);
            return [sum.clone(), self.forward(sum)];
        }
        fused::linear_add_rms_norm(y, projection.weight.val(), residual, self.gamma.val(), self.epsilon)
    }
}

/// `projection(y)`: maps a rank's part of the input, `[b, t, part]`, to the rank's rows, `[b, s, d]`. The bias is added
/// once, after the sum over ranks.
pub(crate) fn project(tp: &TensorParallel, projection: &Linear, y: Tensor<3>) -> Tensor<3> {
    if tp.is_alone() {
        return linear(y, projection.weight.val(), projection.bias.as_ref().map(Param::val));
    }
    let sum = tp.scatter(linear(y, projection.weight.val(), None));
    match &projection.bias {
        Some(bias) => sum + bias.val().unsqueeze(),
        None => sum,
    }
}
