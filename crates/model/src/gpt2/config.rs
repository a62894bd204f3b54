//! The shape of a GPT-2 and its validation.

use crate::ModelError;
use crate::limits::{MAX_LAYERS, epsilon, sizes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of a GPT-2 (Radford et al., 2019); names follow Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gpt2Config {
    /// Tokens in the vocabulary. In a run's configuration, 0 takes the tokenizer's size.
    pub vocab_size: usize,
    /// The longest context, which is also the number of learned positions.
    pub n_positions: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads per block; divides `n_embd`.
    pub n_head: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Hidden width of the MLP; null means 4 x `n_embd`.
    pub n_inner: Option<usize>,
    /// Whether linear layers and layer norms have a bias (GPT-2 has them; nanoGPT trains without).
    pub bias: bool,
    /// Dropout probability in training, applied to the embeddings, the attention probabilities, and the outputs of
    /// attention and MLP; 0 turns it off.
    pub dropout: f64,
    /// Epsilon of the layer norms.
    pub layer_norm_epsilon: f64,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            vocab_size: 0,
            n_positions: 1024,
            n_layer: 12,
            n_head: 12,
            n_embd: 768,
            n_inner: None,
            bias: true,
            dropout: 0.0,
            layer_norm_epsilon: 1e-5,
        }
    }
}

impl Gpt2Config {
    /// Rejects shapes that no model can be built from. The message names key, value and remedy.
    pub fn validate(&self) -> Result<(), ModelError> {
        sizes(&[
            ("vocab_size", self.vocab_size, usize::MAX),
            ("n_positions", self.n_positions, usize::MAX),
            ("n_layer", self.n_layer, MAX_LAYERS),
            ("n_head", self.n_head, usize::MAX),
            ("n_embd", self.n_embd, usize::MAX),
            ("n_inner", self.n_inner.unwrap_or(1), usize::MAX),
        ])?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(format!(
                "model.n_embd {} is not a multiple of model.n_head {}: change one of them",
                self.n_embd, self.n_head
            )
            .into());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("model.dropout is {:?}: give a probability from 0 to below 1", self.dropout).into());
        }
        epsilon("layer_norm_epsilon", self.layer_norm_epsilon)
    }

    /// The number of parameters, in floating point so that it cannot overflow.
    pub fn parameters(&self) -> f64 {
        let [vocab, positions, layers, d] =
            [self.vocab_size, self.n_positions, self.n_layer, self.n_embd].map(|size| size as f64);
        let (inner, bias) = (self.n_inner.map_or(4.0 * d, |inner| inner as f64), f64::from(u8::from(self.bias)));
        let norm = d + bias * d;
        let attention = 4.0 * d * d + bias * 4.0 * d;
        let mlp = 2.0 * d * inner + bias * (inner + d);
        (vocab + positions) * d + layers * (2.0 * norm + attention + mlp) + norm
    }
}
