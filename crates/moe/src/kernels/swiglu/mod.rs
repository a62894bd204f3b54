//! `swiglu`: the gate of an expert's MLP (arXiv 2002.05202).
//!
//! ```text
//! y = silu(gate) * up,   silu(g) = g s,   s = 1 / (1 + exp(-g))
//! backward   d_up = dy g s,   d_gate = dy up s (1 + g (1 - s))
//! ```
//!
//! Element by element over `[r, h]`, in f32, rounded once; empty rows are 0 and stay 0.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::ops::MoeOps;
use burn::backend::Dispatch;
use burn::tensor::Tensor;

/// `silu(gate_rh) * up_rh`
pub fn swiglu(gate_rh: Tensor<2>, up_rh: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::moe_swiglu(gate_rh.into_dispatch(), up_rh.into_dispatch()))
}
