//! The operations, each in a module of its own: formula, layout in memory, plain Rust, and beside it the CubeCL kernel.
//!
//! | module | what | carries gradients to |
//! |---|---|---|
//! | [`route`] | scores, choice of experts, gates | logits |
//! | [`reroute`] | other experts for what does not fit | |
//! | [`dispatch`] | rows of experts for assignments | |
//! | [`permute`] | tokens to rows and back | tokens; rows and gates |
//! | [`grouped_gemm`] | rows by their experts' matrices | rows, matrices |
//!
//! An expert's gate between its products is [`fused::silu_mul`].

pub mod dispatch;
pub mod grouped_gemm;
#[cfg(feature = "offline")]
pub mod offline;
pub mod permute;
pub mod reroute;
pub mod route;
