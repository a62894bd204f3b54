//! Mixture of experts: a router sends each token to its `top_k` experts, and their outputs come back weighted.
//!
//! ```text
//! x_btd ─ router ─> weights_nk, experts_nk ─ dispatch ─> slots_es ─ gather rows ─> x_esd ─ experts ─> y_esd ─ combine ─> y_btd
//! ```
//!
//! A *slot* is a row of an expert's input. Dispatch gives every (token, choice) at most one slot: dropless, or at most
//! `capacity` slots for each expert and sequence. Permutation and combination only gather rows through indices, and nothing loops
//! over tokens or experts on the host. **Where a sequence's tokens go never depends on the sequences beside it**: it is routed alike alone, in
//! any micro-batch and on any rank, and its output is the same up to the rounding of products of another size.
//!
//! Shape suffixes: `b` sequences, `t` positions, `n` = b x t tokens, `d` hidden width, `h` expert width, `e` experts,
//! `k` choices of a token, `g` expert groups, `s` slots of one expert.

mod balance;
mod config;
mod dispatch;
mod experts;
pub mod kernels;
mod layer;
mod ops;
mod router;
mod swiglu;

pub use balance::sequence_balance_loss;
pub use config::{MoeConfig, ScoreFunc};
pub use dispatch::Dispatch;
pub use experts::Experts;
pub use layer::{MoeLayer, MoeOutput};
pub use router::{Router, Routing};
pub use swiglu::SwiGlu;
