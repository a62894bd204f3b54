use crate::kernels::grouped_gemm::grouped_gemm;
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};
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
    /// Whether a path of fields leads to a parameter of routed experts, which is a stack of one matrix an expert.
    pub fn hold(path: &str) -> bool {
        path.split('.').any(|field| field == "experts")
    }

    /// `e` experts of width `d` and hidden width `h`.
    pub fn new(e: usize, d: usize, h: usize, device: &Device) -> Self {
        let stack = |from: usize, to: usize| {
            Initializer::Normal { mean: 0.0, std: (from as f64).powf(-0.5) }.init::<3, _>([e, from, to], device)
        };
        Self { gate_proj: stack(d, h), up_proj: stack(d, h), down_proj: stack(h, d) }
    }

    /// Each row of `x_rd` through its expert, `down(silu(gate(x)) * up(x))`; of `segments`, see
    /// [`dispatch`](crate::kernels::dispatch).
    pub fn forward(&self, x_rd: Tensor<2>, segments: &Tensor<1, Int>) -> Tensor<2> {
        let gate_rh = grouped_gemm(x_rd.clone(), self.gate_proj.val(), segments);
        let up_rh = grouped_gemm(x_rd, self.up_proj.val(), segments);
        grouped_gemm(silu_mul(gate_rh, up_rh), self.down_proj.val(), segments)
    }
}
