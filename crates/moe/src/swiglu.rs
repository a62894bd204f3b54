//! The SwiGLU of dense layers and shared experts.

use crate::gathered_rows;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use comm::TensorParallel;
use fused::{linear, linear_add, silu_mul};

/// The gated MLP `down(silu(gate(x)) * up(x))` without biases (arXiv 2002.05202): DeepSeek's dense layers and shared
/// experts.
#[derive(Module, Debug)]
pub struct SwiGlu {
    /// `[d, h]`
    pub gate_proj: Linear,
    /// `[d, h]`
    pub up_proj: Linear,
    /// `[h, d]`
    pub down_proj: Linear,
}

impl SwiGlu {
    /// Makes a layer of width `d` and hidden width `h`.
    pub fn new(d: usize, h: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self { gate_proj: linear(d, h), up_proj: linear(d, h), down_proj: linear(h, d) }
    }

    /// Applies the layer: `[.., d]` to `[.., d]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(self.hidden(x), self.down_proj.weight.val(), None)
    }

    /// Applies the layer and adds the result to `residual`.
    pub fn forward_add<const D: usize>(&self, x: Tensor<D>, residual: Tensor<D>) -> Tensor<D> {
        linear_add(self.hidden(x), self.down_proj.weight.val(), None, residual)
    }

    /// [`forward_add`](Self::forward_add) for this rank's rows, `[b, s, d]`, with its part of the hidden columns.
    pub fn forward_add_over(&self, x_bsd: Tensor<3>, residual_bsd: Tensor<3>, tp: &TensorParallel) -> Tensor<3> {
        match tp.is_alone() {
            true => self.forward_add(x_bsd, residual_bsd),
            false => {
                let x = tp.gather_again(x_bsd);
                let [gate, up] =
                    [&self.gate_proj, &self.up_proj].map(|half| linear(gathered_rows(&x), half.weight.val(), None));
                residual_bsd + tp.scatter(linear(silu_mul(gate, up), self.down_proj.weight.val(), None))
            }
        }
    }

    fn hidden<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = linear(x.clone(), self.gate_proj.weight.val(), None);
        let up = linear(x, self.up_proj.weight.val(), None);
        silu_mul(gate, up)
    }
}
