//! The parameters of a mixture of experts and of a SwiGLU, for families that have them in their blocks.

use crate::ModelError;
use crate::parameters::ParameterSpec;
use comm::TensorShard;
use moe::MoeConfig;

/// The parameters of a [`SwiGlu`](moe::SwiGlu) of width `d` and hidden width `h`, split by columns and rows among
/// tensor-parallel ranks.
pub(crate) fn swiglu(name: &str, d: usize, h: usize) -> [ParameterSpec; 3] {
    [
        ParameterSpec::matrix(format!("{name}.gate_proj.weight"), [d, h]).sharded(TensorShard::COLUMNS),
        ParameterSpec::matrix(format!("{name}.up_proj.weight"), [d, h]).sharded(TensorShard::COLUMNS),
        ParameterSpec::matrix(format!("{name}.down_proj.weight"), [h, d]).sharded(TensorShard::ROWS),
    ]
}

/// [`MoeConfig::validate`] with the fields as keys of the section `moe`.
pub(crate) fn validate_moe(moe: &MoeConfig) -> Result<(), ModelError> {
    moe.validate().map_err(|error| error.in_section("moe").into())
}

/// The number of parameters of a [`MoeLayer`](moe::MoeLayer) of width `d`, in floating point so that it cannot
/// overflow.
pub(crate) fn mixture_count(d: f64, moe: &MoeConfig) -> f64 {
    let (experts, width) = (moe.num_experts as f64, moe.moe_intermediate_size as f64);
    let router = experts * (d + f64::from(u8::from(moe.selection_bias)));
    router + 3.0 * d * width * (experts + moe.n_shared_experts as f64)
}

/// The parameters of a [`MoeLayer`](moe::MoeLayer) of width `d` at the path `name`.
///
/// The router's bias stays fp32: near 0.3 a step of bf16 is 0.002, twice the change in a training step.
pub fn moe_parameters(name: &str, d: usize, moe: &MoeConfig) -> Vec<ParameterSpec> {
    let (e, h, shared) = (moe.num_experts, moe.moe_intermediate_size, moe.n_shared_experts);
    let experts = |matrix: &str, shape| ParameterSpec::experts(format!("{name}.experts.{matrix}"), e, moe.top_k, shape);
    let bias =
        ParameterSpec { trained: false, keep_fp32: true, ..ParameterSpec::bias(format!("{name}.router.bias"), e) };
    let router = ParameterSpec::matrix(format!("{name}.router.proj.weight"), [d, e]);
    let mut all = vec![router];
    all.extend(moe.selection_bias.then_some(bias));
    all.extend([experts("gate_proj", [d, h]), experts("up_proj", [d, h]), experts("down_proj", [h, d])]);
    if shared > 0 {
        all.extend(swiglu(&format!("{name}.shared_experts"), d, shared.saturating_mul(h)));
    }
    all
}
