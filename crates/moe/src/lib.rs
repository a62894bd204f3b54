//! Mixture of experts: a router sends each token to its `top_k` experts, and their outputs come back weighted.
//!
//! ```text
//! x_btd ─ router ─> candidates_cn ─ [reroute] ─ dispatch ─> slot_kn, source_r, segments
//!                └> gates_kn ─────────────────────────────────────────────────────────────────┐
//! x_nd ─ permute ─> x_rd ─ grouped_gemm ─ silu_mul ─ grouped_gemm ─> y_rd ─────────── unpermute ─> y_btd
//! ```
//!
//! A *row* is one token for one of its experts; rows lie expert by expert, so that an expert's product is one matrix
//! product. Dispatch gives every assignment (token, choice) at most one row: dropless, or at most `capacity` rows for
//! each expert and sequence. The operations of that line stand in [`kernels`], each with formula, layout, plain Rust
//! and CubeCL kernel; [`MoeLayer`] puts them together, and [`ExpertParallel`] runs one whose experts are spread over
//! ranks.
//!
//! **Where a sequence's tokens go, and what they become, never depends on the sequences beside it**: capacity is counted inside a
//! sequence, noise is a hash of a token's place in the global batch, and a row's product is that row's alone.
//!
//! Shape suffixes: `b` sequences, `t` positions, `n` = b x t tokens, `d` hidden width, `h` expert width, `e` experts,
//! `k` choices of a token, `c` its candidates, `r` rows, `p` and `q` widths of a product.

mod balance;
mod config;
mod exchange;
mod experts;
mod in_rounds;
pub mod kernels;
mod layer;
mod noise;
mod ops;
mod parallel;
mod rounds;
mod router;
mod stats;
mod swiglu;

pub use balance::{router_z_loss, sequence_balance_loss};
pub use config::{GroupMask, MoeConfig, Overflow, ScoreFunc};
pub use experts::Experts;
pub use kernels::dispatch::Order;
pub use layer::{MoeLayer, MoeOutput};
pub use noise::NoiseKey;
pub use parallel::{ExpertParallel, gathered_rows};
pub use router::{Router, Routing};
pub use stats::MoeStats;
pub use swiglu::SwiGlu;
