//! Fused operations of language models with their gradients: plain Rust on the CPU, CubeCL kernels on GPUs.
//!
//! Each operation makes one pass over memory. Burn's `flex` backend composes a GELU of nine tensors and calls the C
//! library's `tanhf` for each element, and a GPU would launch one kernel for each of the nine. Apart from matrix
//! products, such compositions take most of the time of a training step.
//!
//! Each operation is a module that holds its formula, the CPU loop over rows (vectorized for the processor and spread
//! over its cores with [`cpu`]) and the GPU kernel. It declares the operation as an extension of Burn's backends: in
//! one trait that the tape records and, if the gradient has its own kernels, in a second trait without `Autodiff`.
//! Operations take f32, bf16 and f16, compute in f32 and round once. Attention in bf16 and f16 may also round the factors
//! of its products; see [`causal_attention`]. Statistics, such as log-sum-exps, are always f32.
//!
//! This crate contains no models and no communication.
//!
//! On a backend that the traits do not list, such as NdArray (see [`has_kernels`]), [`linear`], [`linear_transposed`],
//! [`linear_add`] and [`silu_mul`] are composed of Burn's operations, and a call of any other operation panics.
//!
//! | function | formula | kept for the backward |
//! |---|---|---|
//! | [`linear`] | `x W + b`, all rows in one product | `x`, `W` |
//! | [`linear_gelu`] | GELU of `x W + b` | also `x W + b` |
//! | [`linear_add`] | `residual + x W + b` | `x`, `W` |
//! | [`gelu`] | `x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))`, the tanh form | `x` |
//! | [`silu_mul`] | `gate / (1 + exp(-gate)) * up` | `gate`, `up` |
//! | [`causal_attention`] | `softmax(mask(scale q k^T)) v`, one tile of scores at a time | inputs, result, a number per row |
//! | [`causal_self_attention`], [`latent_attention`] | the same, from other layouts of the inputs | the same |
//! | [`linear_cross_entropy`] | mean of `log(sum(exp(x W))) - (x W)[target]`, a few rows at a time | the gradients |
//! | [`embedding`] | rows of a table | the tokens |
//! | [`layer_norm`], [`rms_norm`] | over the last dimension, with gain | `x`, gain |
//! | [`linear_add_layer_norm`], [`linear_add_rms_norm`] | `h = residual + x W + b`, its norm | `x`, `W`, `h`, gain |
//! | [`rope`], [`rope_halves`] | rotation of interleaved pairs, of halves | |
//! | [`dropout`] | 0, or `x / (1 - p)`, by a hash of the element's position in the global batch | |
//! | [`adamw`] | one optimizer step | |
//! | [`sum_of_squares`], [`clip_factor`] | the squared norm of a gradient, and the factor that clips it | |
//! | [`flatten`] | copies tensors, such as gradients, to their offsets in one buffer | |
//!
//! # Example
//!
//! The operations take Burn's tensors on any device that Kiln supports, and Burn's autodiff differentiates them:
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::flex().autodiff();
//! let x = Tensor::<3>::ones([2, 4, 8], &device).require_grad();
//! let weight = Tensor::<2>::ones([8, 16], &device).require_grad();
//! let y = fused::linear_gelu(x.clone(), weight, None);
//! let gradients = y.clone().sum().backward();
//! assert_eq!(y.dims(), [2, 4, 16]);
//! assert_eq!(x.grad(&gradients).unwrap().dims(), [2, 4, 8]);
//! ```
//!
//! # Replacements for Burn's operations
//!
//! Three items are drop-in replacements for Burn's, and are tested against the originals.
//!
//! | Burn | here | what differs |
//! |---|---|---|
//! | `tensor::module::attention` | [`attention()`] | also takes grouped queries; calls with a mask, bias or softcap go to Burn |
//! | `nn::Linear`, then `nn::loss::CrossEntropyLoss` | [`LinearCrossEntropy`] | without logits in memory; 0 for a batch of padding |
//! | `optim::AdamW` | [`FusedAdamW`] | one pass over memory; other defaults |
//!
//! [`FusedAdamW`] also works under the `Learner` of `burn-train`, whose checkpoints hold its moments:
//! `tests/backends/learner.rs` of the repository trains with it and resumes.
//!
//! A model of Burn's layers with all three, `cargo run --example drop_in`:
//!
//! ```ignore
#![doc = include_str!("../examples/drop_in.rs")]
//! ```

mod adamw;
mod attention;
mod backend;
pub mod check;
mod clip;
mod cross_entropy;
#[cfg(feature = "cubecl")]
pub mod cube;
pub mod deferred;
mod dropout;
mod embedding;
mod flatten;
mod gelu;
mod linear;
mod linear_add_norm;
mod norm;
mod precision;
mod rope;
mod rows;
mod silu_mul;
pub mod slices;
pub mod step;
mod sum_of_squares;
pub mod weight_gradients;

pub use adamw::{AdamWState, AdamWStep, FusedAdamW, adamw};
pub use attention::{AttentionPart, attention, causal_attention, causal_self_attention, latent_attention};
pub use backend::has_kernels;
pub use clip::{ClipRule, clip_factor};
pub use cross_entropy::{
    LinearCrossEntropy, LinearCrossEntropyConfig, Losses, linear_cross_entropy, linear_cross_entropy_transposed,
};
pub use dropout::{DropoutKey, dropout};
pub use embedding::embedding;
pub use flatten::{flatten, flatten_into};
pub use gelu::gelu;
pub use linear::{Rows, linear, linear_add, linear_gelu, linear_transposed};
pub use linear_add_norm::{linear_add_layer_norm, linear_add_rms_norm};
pub use norm::{layer_norm, rms_norm};
pub use precision::widened;
pub use rope::{RopeTable, rope, rope_halves};
pub use silu_mul::silu_mul;
pub use sum_of_squares::{add_sum_of_squares, sum_of_squares};
