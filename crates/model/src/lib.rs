//! GPT-2 and DeepSeek (MLA + MoE) as Burn modules, and their weights in Hugging Face's format.
//!
//! A model is a module with public parts and a forward on one device; how its parts are spread over ranks is nobody's
//! business here. `model.logits(tokens)` needs no communicator.
//!
//! Parameters may be f32, bf16 or f16, all of one dtype, which is then that of the residual stream and of the gradients. Norms,
//! softmax, rotations, routing and the loss are computed in f32, and the loss is f32.
//!
//! Shape suffixes: `b` sequences, `t` positions, `d` width of the residual stream, `h` heads, `v` vocabulary (in
//! attention: width of a value).

mod attention;
mod config;
mod cross_entropy;
pub mod deepseek;
mod dropout;
mod embedding;
mod generate;
pub mod gpt2;
pub mod hf;
mod init;
mod norm;
mod rope;

pub use attention::causal_attention;
pub use config::{DeepSeekConfig, Gpt2Config, YarnConfig};
pub use cross_entropy::cross_entropy;
pub use deepseek::DeepSeek;
pub use dropout::MicroBatch;
pub use embedding::embed;
pub use generate::{Sampling, generate};
pub use gpt2::Gpt2;
pub use init::{initialise, parameter_count};
pub use norm::{LayerNorm, RmsNorm};
pub use rope::{Rope, softmax_scale};

use burn::tensor::{Int, Tensor};

/// A model that predicts the next token.
pub trait LanguageModel {
    /// Unnormalised log-probabilities of the next token at every position: `[b, t]` to `[b, t, vocab]`.
    ///
    /// # Panics
    /// If `t` is above [`context`](Self::context) or a token is not in the vocabulary.
    fn logits(&self, tokens_bt: Tensor<2, Int>) -> Tensor<3>;

    /// The longest sequence the model takes.
    fn context(&self) -> usize;
}
