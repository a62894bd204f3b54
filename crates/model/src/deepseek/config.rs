//! The shape of a DeepSeek and its validation.

use crate::ModelError;
use crate::YarnConfig;
use crate::layers::mixture::mixture_count;
use crate::limits::{MAX_LAYERS, MAX_ROPE_DIM, epsilon, number, sizes};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Published models use 1 and 3. Each module makes the activations larger.
const MAX_MTP_DEPTH: usize = 16;

/// The shape of a DeepSeek-V2/V3 (arXiv 2405.04434, 2412.19437) without its experts, which are a [`MoeConfig`]; names
/// follow Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeepSeekConfig {
    /// Tokens in the vocabulary. In a run's configuration, 0 takes the tokenizer's size.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Number of leading blocks whose MLP is one dense SwiGLU instead of experts.
    pub first_k_dense_replace: usize,
    /// Number of multi-token prediction modules; each predicts one token further ahead than the previous one (arXiv
    /// 2412.19437, section 2.2). 0 turns them off. `num_nextn_predict_layers` in `config.json`.
    pub mtp_depth: usize,
    /// Hidden width of the dense SwiGLU.
    pub intermediate_size: usize,
    /// Attention heads per block.
    pub num_attention_heads: usize,
    /// Rank of the compressed query; null means a direct projection.
    pub q_lora_rank: Option<usize>,
    /// Rank of the compressed keys and values.
    pub kv_lora_rank: usize,
    /// Width of the unrotated part of a head's query and key.
    pub qk_nope_head_dim: usize,
    /// Width of the rotated part of a head's query, and of the one rotated key that all heads share; even.
    pub qk_rope_head_dim: usize,
    /// Width of a head's value.
    pub v_head_dim: usize,
    /// The longest context.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms. The norms inside attention always use 1e-6, as in DeepSeek's and Hugging Face's code.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension; null means plain rotary positions.
    pub rope_scaling: Option<YarnConfig>,
}

impl Default for DeepSeekConfig {
    fn default() -> Self {
        Self {
            vocab_size: 0,
            hidden_size: 128,
            num_hidden_layers: 4,
            first_k_dense_replace: 0,
            mtp_depth: 0,
            intermediate_size: 512,
            num_attention_heads: 4,
            q_lora_rank: None,
            kv_lora_rank: 64,
            qk_nope_head_dim: 32,
            qk_rope_head_dim: 16,
            v_head_dim: 32,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-6,
            rope_theta: 10000.0,
            rope_scaling: None,
        }
    }
}

impl DeepSeekConfig {
    /// Rejects shapes that no model can be built from. The message names key, value and remedy.
    pub fn validate(&self) -> Result<(), ModelError> {
        sizes(&[
            ("vocab_size", self.vocab_size, usize::MAX),
            ("hidden_size", self.hidden_size, usize::MAX),
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("intermediate_size", self.intermediate_size, usize::MAX),
            ("num_attention_heads", self.num_attention_heads, usize::MAX),
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1), usize::MAX),
            ("kv_lora_rank", self.kv_lora_rank, usize::MAX),
            ("qk_nope_head_dim", self.qk_nope_head_dim, usize::MAX),
            ("qk_rope_head_dim", self.qk_rope_head_dim, MAX_ROPE_DIM),
            ("v_head_dim", self.v_head_dim, usize::MAX),
            ("max_position_embeddings", self.max_position_embeddings, usize::MAX),
        ])?;
        if !self.qk_rope_head_dim.is_multiple_of(2) {
            return Err(format!(
                "model.qk_rope_head_dim {} is odd: rotary positions turn pairs",
                self.qk_rope_head_dim
            )
            .into());
        }
        if self.mtp_depth > MAX_MTP_DEPTH {
            return Err(
                format!("model.mtp_depth is {}: give at most {MAX_MTP_DEPTH}, or 0 for none", self.mtp_depth).into()
            );
        }
        epsilon("rms_norm_eps", self.rms_norm_eps)?;
        number("rope_theta", self.rope_theta, self.rope_theta > 1.0, "a number above 1, such as 10000")?;
        self.rope_scaling.as_ref().map_or(Ok(()), YarnConfig::validate)
    }

    /// The number of parameters including those of the experts, in floating point so that it cannot overflow.
    pub fn parameters(&self, moe: &MoeConfig) -> f64 {
        let of = |size: usize| size as f64;
        let (d, heads, latent, rope) =
            (of(self.hidden_size), of(self.num_attention_heads), of(self.kv_lora_rank), of(self.qk_rope_head_dim));
        let (q, v) = (heads * (of(self.qk_nope_head_dim) + rope), heads * of(self.v_head_dim));
        let query = self.q_lora_rank.map_or(d * q, |rank| of(rank) * (d + 1.0 + q));
        let key_value = d * (latent + rope) + latent * (1.0 + heads * of(self.qk_nope_head_dim) + v);
        let attention = query + key_value + v * d;
        let (layers, depth) = (of(self.num_layers()), of(self.mtp_depth));
        let dense_layers = of(self.first_k_dense_replace.min(self.num_layers()));
        let mlps =
            dense_layers * 3.0 * d * of(self.intermediate_size) + (layers - dense_layers) * mixture_count(d, moe);
        let mtp = depth * (2.0 * d * d + 3.0 * d); // without their blocks, which `layers` counts
        2.0 * of(self.vocab_size) * d + layers * (2.0 * d + attention) + mlps + d + mtp
    }

    /// Blocks of the model and of its multi-token prediction modules, which are numbered after the model's own.
    pub fn num_layers(&self) -> usize {
        self.num_hidden_layers.saturating_add(self.mtp_depth)
    }
}
