//! Mixture of experts: a router sends each token to its `top_k` experts, and combines their outputs by weight.
//!
//! ```text
//! x_btd ─ router ─> candidates_cn ─ [reroute] ─ dispatch ─> row_of_kn, assignment_of_r, expert_offsets
//!                └> gates_kn ─────────────────────────────────────────────────────────────────┐
//! x_nd ─ permute ─> x_rd ─ grouped_gemm ─ silu_mul ─ grouped_gemm ─> y_rd ─────────── unpermute ─> y_btd
//! ```
//!
//! A *row* is one token for one of its experts. Rows are sorted by expert, so that each expert computes one matrix
//! product. Dispatch gives every assignment (token, choice) at most one row: dropless, or at most `capacity` rows per
//! expert and sequence.
//!
//! The operations of this diagram are in [`kernels`], each with its formula, layout, plain Rust and CubeCL kernel.
//! [`MoeLayer`] combines them, and [`ExpertParallel`] runs a layer whose experts are spread over ranks.
//!
//! **The routing and the output of a sequence never depend on other sequences in the batch**: capacity is counted
//! within a sequence, noise is a hash of a token's position in the global batch, and a row's product depends only on
//! that row.
//!
//! Shape suffixes: `b` sequences, `t` positions, `n` = b x t tokens, `d` hidden width, `h` expert width, `e` experts,
//! `k` choices per token, `c` candidates per token, `r` rows, `p` and `q` widths of a product.

mod balance;
mod config;
mod exchange;
mod experts;
mod in_rounds;
pub mod kernels;
mod layer;
mod noise;
mod parallel;
mod rounds;
mod router;
mod stats;
mod swiglu;

pub use balance::{bias_update, router_z_loss, sequence_balance_loss};
pub use config::{GroupMask, MoeConfig, Overflow, ScoreFunc};
pub use experts::Experts;
pub use kernels::dispatch::Order;
pub use layer::{MoeLayer, MoeOutput};
pub use noise::NoiseKey;
pub use parallel::{ExpertParallel, gathered_rows};
pub use router::{Router, Routing};
pub use stats::MoeStats;
pub use swiglu::SwiGlu;
