//! The shape of a Llama and its validation.

use crate::ModelError;
use crate::RopeScaling;
use crate::limits::{MAX_LAYERS, MAX_ROPE_DIM, epsilon, number, sizes};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of a Llama (arXiv 2302.13971, 2407.21783) or a model like it: Mistral, Qwen2, Qwen3, and with a
/// [`MoeConfig`] Mixtral and Qwen3-MoE; names follow Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlamaConfig {
    /// Tokens in the vocabulary. In a run's configuration, 0 takes the tokenizer's size.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Hidden width of the dense SwiGLU.
    pub intermediate_size: usize,
    /// Query heads per block.
    pub num_attention_heads: usize,
    /// Heads of keys and values per block; divides `num_attention_heads` (grouped-query attention, arXiv 2305.13245).
    pub num_key_value_heads: usize,
    /// Width of a head, even; null means `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// The longest context.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension; null means plain rotary positions.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether queries, keys and values have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Whether each head's query and key pass an RMS norm before their rotation (Qwen3).
    pub qk_norm: bool,
    /// Whether the output matrix is the token embedding.
    pub tie_word_embeddings: bool,
    /// Number of tokens that a position attends to, itself included (Mistral); null means all before it.
    pub sliding_window: Option<usize>,
    /// Number of leading blocks that attend to all tokens despite `sliding_window` (Qwen2).
    pub max_window_layers: usize,
    /// Numbers of the blocks that have a dense SwiGLU although there is a `moe` section (Qwen3-MoE), in order; all
    /// others then have experts.
    pub mlp_only_layers: Vec<usize>,
}

impl Default for LlamaConfig {
    fn default() -> Self {
        Self {
            vocab_size: 0,
            hidden_size: 128,
            num_hidden_layers: 4,
            intermediate_size: 384,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: None,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            rope_theta: 10000.0,
            rope_scaling: None,
            qkv_bias: false,
            qk_norm: false,
            tie_word_embeddings: false,
            sliding_window: None,
            max_window_layers: 0,
            mlp_only_layers: vec![],
        }
    }
}

impl LlamaConfig {
    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or_else(|| self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    /// The window of a block; `None` if it attends to all tokens.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| layer >= self.max_window_layers)
    }

    /// The experts of a block; `None` if it is dense.
    pub fn experts_of<'a>(&self, layer: usize, moe: Option<&'a MoeConfig>) -> Option<&'a MoeConfig> {
        moe.filter(|_| self.mlp_only_layers.binary_search(&layer).is_err())
    }

    /// Rejects shapes that no model can be built from. The message names key, value and remedy.
    pub fn validate(&self) -> Result<(), ModelError> {
        sizes(&[
            ("vocab_size", self.vocab_size, usize::MAX),
            ("hidden_size", self.hidden_size, usize::MAX),
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("intermediate_size", self.intermediate_size, usize::MAX),
            ("num_attention_heads", self.num_attention_heads, usize::MAX),
            ("num_key_value_heads", self.num_key_value_heads, usize::MAX),
            ("head_dim", self.head_dim.unwrap_or(1), MAX_ROPE_DIM),
            ("max_position_embeddings", self.max_position_embeddings, usize::MAX),
            ("sliding_window", self.sliding_window.unwrap_or(1), usize::MAX),
        ])?;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "model.num_attention_heads {heads} is not a multiple of model.num_key_value_heads {kv_heads}: change one \
                 of them"
            ).into());
        }
        if self.head_dim.is_none() && !self.hidden_size.is_multiple_of(heads) {
            return Err(format!(
                "model.hidden_size {} is not a multiple of model.num_attention_heads {heads}: change one of them, or set \
                 model.head_dim",
                self.hidden_size
            ).into());
        }
        let head_dim = self.head_dim();
        if !head_dim.is_multiple_of(2) {
            let whence = if self.head_dim.is_some() { "" } else { " (model.hidden_size / model.num_attention_heads)" };
            return Err(format!(
                "model.head_dim {head_dim}{whence} is odd: rotary positions turn pairs, so give an even number"
            )
            .into());
        }
        sizes(&[("head_dim", head_dim, MAX_ROPE_DIM)])?;
        let layers = self.num_hidden_layers;
        if let Some(layer) = self.mlp_only_layers.iter().find(|layer| **layer >= layers) {
            return Err(format!("model.mlp_only_layers has {layer}: give numbers from 0 to {}", layers - 1).into());
        }
        if let Some([one, next]) = self.mlp_only_layers.array_windows().find(|[one, next]| one >= next) {
            return Err(format!("model.mlp_only_layers has {next} after {one}: give each number once, in order").into());
        }
        epsilon("rms_norm_eps", self.rms_norm_eps)?;
        number("rope_theta", self.rope_theta, self.rope_theta > 1.0, "a number above 1, such as 10000")?;
        self.rope_scaling.as_ref().map_or(Ok(()), RopeScaling::validate)
    }
}
