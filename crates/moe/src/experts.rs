use crate::{Dispatch, Routing};
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use fused::{silu_mul, widened};

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
    /// `e` experts of width `d` and hidden width `h`.
    pub fn new(e: usize, d: usize, h: usize, device: &Device) -> Self {
        let stack = |from: usize, to: usize| {
            Initializer::Normal { mean: 0.0, std: (from as f64).powf(-0.5) }.init::<3, _>([e, from, to], device)
        };
        Self { gate_proj: stack(d, h), up_proj: stack(d, h), down_proj: stack(h, d) }
    }

    /// Permutes the tokens of `x_nd` into the slots, runs every expert on its slots, and adds up each token's choices by weight:
    /// `y[n] = sum over k of weight[n, k] * expert(x[n])`, dropped choices left out.
    /// Of bf16 or f16 tokens the sum is made in f32, the precision of the weights, and rounded.
    pub fn forward(&self, x_nd: Tensor<2>, routing: &Routing, dispatch: Dispatch) -> Tensor<2> {
        let ([n, d], dtype) = (x_nd.dims(), x_nd.dtype());
        let [e, _, _] = self.gate_proj.lazy_shape().dims();
        let (s, k) = (dispatch.slots_per_expert, dispatch.slot_nk.dims()[1]);

        let x_esd = x_nd.select(0, dispatch.token_of_slot).reshape([e, s, d]);
        let gate_esh = x_esd.clone().matmul(self.gate_proj.val());
        let up_esh = x_esd.matmul(self.up_proj.val());
        let y_esd = silu_mul(gate_esh, up_esh).matmul(self.down_proj.val());

        let y_nkd = y_esd.reshape([e * s, d]).select(0, dispatch.slot_nk.reshape([n * k])).reshape([n, k, d]);
        let weights_n1k = (routing.weights_nk.clone() * dispatch.kept_nk).unsqueeze_dim::<3>(1);
        weights_n1k.matmul(widened(y_nkd)).squeeze_dim(1).cast(dtype)
    }
}
