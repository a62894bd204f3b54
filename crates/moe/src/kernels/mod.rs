//! The operations, each in a module of its own: formula, layout in memory, plain Rust, and beside it the CubeCL kernel.
//!
//! | module | what | carries gradients to |
//! |---|---|---|
//! | [`route`] | scores, choice of experts, gates | logits |
//! | [`reroute`] | other experts for what does not fit | |
//! | [`dispatch`] | rows of experts for assignments | |
//! | [`permute`] | tokens to rows and back | tokens; rows and gates |
//! | [`grouped_gemm`] | rows by their experts' matrices | rows, matrices |
//! | [`swiglu`] | the gate of an expert | both inputs |

pub mod dispatch;
pub mod grouped_gemm;
#[cfg(feature = "cubecl")]
pub mod launch;
#[cfg(feature = "offline")]
pub mod offline;
pub mod permute;
pub mod reroute;
#[cfg(feature = "cubecl")]
mod round;
pub mod route;
pub mod swiglu;
