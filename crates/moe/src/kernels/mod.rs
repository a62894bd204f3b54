//! The operations, one per module, with formula, memory layout, plain Rust and the CubeCL kernel.
//!
//! | module | purpose | carries gradients to |
//! |---|---|---|
//! | [`route`] | scores, choice of experts, gates | logits |
//! | [`reroute`] | other experts for assignments that do not fit | |
//! | [`dispatch`] | rows of experts for assignments | |
//! | [`permute`] | tokens to rows and back | tokens; rows and gates |
//! | [`grouped_gemm`] | rows by their experts' matrices | rows, matrices |
//!
//! On a backend without kernels (see [`fused::has_kernels`]), scores, gates, [`permute`] and [`grouped_gemm`] are
//! composed of Burn's operations, and the others run on the CPU.
//!
//! The activation between an expert's products is [`fused::silu_mul`].

pub mod dispatch;
mod elsewhere;
pub mod grouped_gemm;
#[cfg(feature = "offline")]
pub mod offline;
pub mod permute;
pub mod reroute;
pub mod route;
mod slices;
