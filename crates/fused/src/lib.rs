//! Operations of language models in one pass over memory on the CPU, each with its gradient.
//!
//! Burn's `flex` backend composes a GELU of nine tensors and calls the C library's `tanhf` for each element. Outside of matrix
//! products such compositions are most of a training step on a CPU. Here each is one loop over rows, vectorised for
//! the machine it runs on and spread over the cores. On any other device, and for f64, the same functions compose Burn's own
//! operations; that composition is also the reference of the tests.
//!
//! Of bf16 and f16 tensors all but [`linear`] is computed in f32 and rounded once; [`cross_entropy`] of them is f32.
//!
//! | function | formula | kept for the backward |
//! |---|---|---|
//! | [`linear`] | `x W + b`, all rows in one product | `x`, `W` |
//! | [`gelu`] | `x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))`, the tanh form | `x` |
//! | [`silu_mul`] | `gate / (1 + exp(-gate)) * up` | `gate`, `up` |
//! | [`causal_attention`], [`causal_self_attention`] | `softmax(mask(scale q k^T)) v`, a tile of scores at a time | `q`, `k`, `v`, the result, a number a row |
//! | [`causal_softmax`] | softmax of `scale * scores` over keys up to the query | the result |
//! | [`cross_entropy`] | mean of `log(sum(exp(logits))) - logits[target]` | `logits` |
//! | [`layer_norm`], [`rms_norm`] | over the last dimension, with gain | `x`, gain |
//! | [`rope`] | rotation of interleaved pairs | |
//! | [`dropout`] | 0, or `x / (1 - p)`, by a hash of the element's place in the global batch | |
//! | [`adamw`], [`sum_of_squares`] | one step of the optimizer, the square of a gradient's norm | |

mod adamw;
mod attention;
mod causal_softmax;
mod cross_entropy;
pub mod deferred;
mod dropout;
mod element;
mod gelu;
pub mod gemm;
mod kernel;
mod linear;
mod math;
mod norm;
mod precision;
mod rope;
mod silu_mul;
mod sum_of_squares;
mod team;
mod uninit;

pub use adamw::{AdamW, AdamWState, adamw};
pub use attention::{causal_attention, causal_self_attention, query_key_value};
pub use causal_softmax::causal_softmax;
pub use cross_entropy::cross_entropy;
pub use dropout::{DropoutKey, dropout};
pub use element::Element;
pub use gelu::gelu;
pub use linear::{linear, linear_transposed};
pub use math::exp;
pub use norm::{layer_norm, rms_norm};
pub use precision::widened;
pub use rope::{RopeTable, rope};
pub use silu_mul::{silu_mul, silu_mul_gradients, silu_mul_slices};
pub use sum_of_squares::sum_of_squares;
pub use uninit::{overwritten, written};
