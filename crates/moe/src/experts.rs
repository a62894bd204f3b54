//! The routed experts of a layer: their weights, forward and backward.

use crate::kernels::grouped_gemm::{grouped_gemm, rows_gradient, weight_gradient};
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};
use comm::ops::{flat, with_gradient};
use fused::silu_mul;

/// The weights of all routed experts, each a SwiGLU, stacked by expert.
#[derive(Module, Debug)]
pub struct Experts {
    /// `[e, d, h]`
    pub gate_proj: Param<Tensor<3>>,
    /// `[e, d, h]`
    pub up_proj: Param<Tensor<3>>,
    /// `[e, h, d]`
    pub down_proj: Param<Tensor<3>>,
}

impl Experts {
    /// Whether a path of fields refers to a parameter of routed experts, which is a stack of one matrix per expert.
    pub fn hold(path: &str) -> bool {
        path.split('.').any(|field| field == "experts")
    }

    /// Makes `e` experts of width `d` and hidden width `h`.
    pub fn new(e: usize, d: usize, h: usize, device: &Device) -> Self {
        let stack = |from: usize, to: usize| {
            Initializer::Normal { mean: 0.0, std: (from as f64).powf(-0.5) }.init::<3, _>([e, from, to], device)
        };
        Self { gate_proj: stack(d, h), up_proj: stack(d, h), down_proj: stack(h, d) }
    }

    /// Computes `down(silu(gate(x)) * up(x))` for each row of `x_rd` with its expert. For `expert_offsets` see
    /// [`dispatch`](crate::kernels::dispatch).
    pub fn forward(&self, x_rd: Tensor<2>, expert_offsets: &Tensor<1, Int>) -> Tensor<2> {
        experts(x_rd, &self.weights(), expert_offsets)
    }

    /// The weights of gate, up and down.
    pub(crate) fn weights(&self) -> [Tensor<3>; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj].map(|weight| weight.val())
    }
}

/// [`Experts::forward`] with these weights: gate, up and down.
pub(crate) fn experts(
    x_rd: Tensor<2>,
    [gate, up, down]: &[Tensor<3>; 3],
    expert_offsets: &Tensor<1, Int>,
) -> Tensor<2> {
    let gate_rh = grouped_gemm(x_rd.clone(), gate.clone(), expert_offsets);
    let up_rh = grouped_gemm(x_rd, up.clone(), expert_offsets);
    grouped_gemm(silu_mul(gate_rh, up_rh), down.clone(), expert_offsets)
}

/// The backward of [`experts`] as a function: maps the input and the gradient of the output to the gradients of the
/// input and of the weights. All tensors are outside any graph.
pub(crate) fn experts_backward(
    x_rd: Tensor<2>,
    d_y_rd: Tensor<2>,
    [gate, up, down]: &[Tensor<3>; 3],
    expert_offsets: &Tensor<1, Int>,
) -> (Tensor<2>, [Tensor<3>; 3]) {
    let half = |weight: &Tensor<3>| {
        Tensor::from_inner(grouped_gemm(x_rd.clone(), weight.clone(), expert_offsets)).require_grad()
    };
    let (gate_rh, up_rh) = (half(gate), half(up));
    let hidden_rh = silu_mul(gate_rh.clone(), up_rh.clone());
    let d_down = weight_gradient(hidden_rh.clone().inner(), d_y_rd.clone(), expert_offsets);
    let d_hidden_rh = rows_gradient(d_y_rd, down.clone(), expert_offsets);
    // A scalar that has this gradient.
    let number = Tensor::<1>::zeros([1], (&x_rd.device(), x_rd.dtype()));
    let mut gradients = with_gradient(hidden_rh, number, move |_| flat(d_hidden_rh.clone())).backward();
    let [d_gate_rh, d_up_rh] =
        [gate_rh, up_rh].map(|half| half.grad_remove(&mut gradients).expect("it is a leaf of this graph"));
    let d_x_rd = rows_gradient(d_gate_rh.clone(), gate.clone(), expert_offsets)
        + rows_gradient(d_up_rh.clone(), up.clone(), expert_offsets);
    let [d_gate, d_up] = [d_gate_rh, d_up_rh].map(|d_half| weight_gradient(x_rd.clone(), d_half, expert_offsets));
    (d_x_rd, [d_gate, d_up, d_down])
}
