//! Mixture of experts: a router sends each token to its `top_k` experts, and combines their outputs by weight.
//!
//! ```text
//! x_btd ─ router ─> candidates_cn ─ [reroute] ─ dispatch ─> row_of_kn, assignment_of_r, expert_offsets
//!                └> gates_kn ─────────────────────────────────────────────────────────────────┐
//! x_nd ─ permute ─> x_rd ─ grouped_gemm ─ silu_mul ─ grouped_gemm ─> y_rd ─────────── unpermute ─> y_btd
//! ```
//!
//! A *row* is one token for one of its experts. Rows are sorted by expert, so each expert computes one matrix product.
//! Dispatch gives every assignment (token, choice) at most one row. It is dropless, or it takes at most `capacity` rows
//! per expert and sequence.
//!
//! The operations of this diagram are in [`kernels`], each with its formula, layout, plain Rust and CubeCL kernel.
//! This crate contains no attention, models or optimizers. [`MoeLayer`] combines the operations, and [`ExpertParallel`]
//! runs a layer whose experts are spread over ranks.
//!
//! # In your own model
//!
//! [`MoeLayer`] is an ordinary Burn module. Burn's optimizers train it, except for the selection bias, which
//! [`MoeLayer::update_bias`] updates. `examples/expert_layer.rs` is a complete program with an ordinary training loop.
//!
//! Under the `Learner` of `burn-train`, override `TrainStep::optimize` to update the bias after the optimizer's step,
//! as `tests/backends/learner.rs` in the repository does.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use moe::MoeConfig;
//!
//! let device = Device::flex().autodiff();
//! let moe = MoeConfig::new(128).with_num_experts(16).with_top_k(2).with_aux_loss_coef(0.01).init(64, &device);
//! let x_btd = Tensor::random([2, 10, 64], Distribution::Default, &device);
//! let output = moe.forward(x_btd, None);
//! let loss = output.y_btd.powi_scalar(2).mean() + output.aux_loss.unwrap();
//! let gradients = loss.backward();
//! assert!(moe.experts.gate_proj.val().grad(&gradients).is_some());
//! ```
//!
//! [`MoeLayer::forward`] is for training and [`MoeLayer::evaluate`] for everything else. Burn's `Dropout` decides
//! between the two by whether the device records gradients. The layer does not, because with recomputed activations the
//! first forward of a training step records none. The two functions differ only with a `capacity_factor` or with noise.
//!
//! # Backends
//!
//! | Backend | Feature | What runs | Tested |
//! |---|---|---|---|
//! | Flex | | plain Rust | against f64, in `tests/layer.rs` and `tests/operations.rs` |
//! | CUDA | `cuda`, `cuda-cpp` | CubeCL kernels | on an emulated card |
//! | Vulkan | `vulkan` | CubeCL kernels | on lavapipe |
//! | Metal | `metal` | CubeCL kernels | not run |
//! | CubeCL's CPU runtime | `cpu-jit` | CubeCL kernels | against Flex, in `tests/cube.rs` |
//! | NdArray | `ndarray` of Burn | Burn's operations | against Flex, by `scripts/check-backends.sh` |
//! | LibTorch, Remote, and CubeCL's without a feature above | Burn's features | Burn's operations | not run |
//!
//! On the backends of the last two rows, the choice of experts and the dispatch run on the CPU, so each layer waits for
//! the device a few times. The choice equals that of Flex, except where scores differ by rounding. [`ExpertParallel`]
//! needs one of the other backends.
//!
//! # Guarantees
//!
//! **The routing and the output of a sequence never depend on other sequences in the batch**: capacity is counted
//! within a sequence, noise is a hash of a token's position in the global batch, and a row's product depends only on
//! that row.
//!
//! Shape suffixes: `b` sequences, `t` positions, `n` = b x t tokens, `d` hidden width, `h` expert width, `e` experts,
//! `k` choices per token, `c` candidates per token, `r` rows, `p` and `q` widths of a product.
//!
//! A complete program, `cargo run --example expert_layer`:
//!
//! ```ignore
#![doc = include_str!("../examples/expert_layer.rs")]
//! ```

mod balance;
mod config;
mod error;
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
pub use error::ConfigError;
pub use experts::Experts;
pub use kernels::dispatch::Order;
pub use layer::{MoeLayer, MoeOutput};
pub use noise::NoiseKey;
pub use parallel::{ExpertParallel, gathered_rows};
pub use router::{Router, Routing};
pub use stats::MoeStats;
pub use swiglu::SwiGlu;
