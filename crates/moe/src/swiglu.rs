use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use fused::{linear, linear_add, silu_mul};

/// The gated MLP `down(silu(gate(x)) * up(x))` without biases (arXiv 2002.05202): DeepSeek's dense layers and shared experts.
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
    /// Width `d`, hidden width `h`.
    pub fn new(d: usize, h: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self { gate_proj: linear(d, h), up_proj: linear(d, h), down_proj: linear(h, d) }
    }

    /// `[.., d]` to `[.., d]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(self.hidden(x), self.down_proj.weight.val(), None)
    }

    /// The same, added to `residual`.
    pub fn forward_add<const D: usize>(&self, x: Tensor<D>, residual: Tensor<D>) -> Tensor<D> {
        linear_add(self.hidden(x), self.down_proj.weight.val(), None, residual)
    }

    fn hidden<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = linear(x.clone(), self.gate_proj.weight.val(), None);
        let up = linear(x, self.up_proj.weight.val(), None);
        silu_mul(gate, up)
    }
}
