//! The shapes of models and their validation.

use moe::MoeConfig;
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
    pub fn validate(&self) -> Result<(), String> {
        sizes(&[
            ("vocab_size", self.vocab_size, usize::MAX),
            ("n_positions", self.n_positions, usize::MAX),
            ("n_layer", self.n_layer, MAX_LAYERS),
            ("n_head", self.n_head, usize::MAX),
            ("n_embd", self.n_embd, usize::MAX),
            ("n_inner", self.n_inner.unwrap_or(1), usize::MAX),
        ])?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(format!("model.n_embd {} is not a multiple of model.n_head {}", self.n_embd, self.n_head));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("model.dropout is {:?}: give a probability from 0 to below 1", self.dropout));
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

/// YaRN context extension (arXiv 2309.00071); names follow `rope_scaling` in DeepSeek's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct YarnConfig {
    /// Factor by which the original context is extended.
    pub factor: f64,
    /// Context length of pretraining.
    pub original_max_position_embeddings: usize,
    /// Dimensions with more rotations than this over the original context keep their frequency.
    pub beta_fast: f64,
    /// Dimensions with fewer rotations than this over the original context have their frequency divided by `factor`.
    pub beta_slow: f64,
    /// Gives the numerator of the factor on cosine and sine, `0.1 * mscale * ln(factor) + 1`; 0 means unset.
    pub mscale: f64,
    /// Gives the denominator of that factor in the same way; the denominator's square also multiplies the softmax scale.
    /// 0 means unset.
    pub mscale_all_dim: f64,
}

impl Default for YarnConfig {
    fn default() -> Self {
        Self {
            factor: 40.0,
            original_max_position_embeddings: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 1.0,
        }
    }
}

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

impl YarnConfig {
    fn validate(&self) -> Result<(), String> {
        let Self { factor, original_max_position_embeddings, beta_fast, beta_slow, mscale, mscale_all_dim } = *self;
        sizes(&[("rope_scaling.original_max_position_embeddings", original_max_position_embeddings, usize::MAX)])?;
        number("rope_scaling.factor", factor, factor >= 1.0, "a number from 1")?;
        number("rope_scaling.beta_slow", beta_slow, beta_slow > 0.0, "a number above 0")?;
        number("rope_scaling.beta_fast", beta_fast, beta_fast > beta_slow, "a number above beta_slow")?;
        number("rope_scaling.mscale", mscale, mscale >= 0.0, "0 or more")?;
        number("rope_scaling.mscale_all_dim", mscale_all_dim, mscale_all_dim >= 0.0, "0 or more")
    }
}

impl DeepSeekConfig {
    /// Rejects shapes that no model can be built from. The message names key, value and remedy.
    pub fn validate(&self) -> Result<(), String> {
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
            ));
        }
        if self.mtp_depth > MAX_MTP_DEPTH {
            return Err(format!("model.mtp_depth is {}: give at most {MAX_MTP_DEPTH}, or 0 for none", self.mtp_depth));
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
        let (experts, width) = (of(moe.num_experts), of(moe.moe_intermediate_size));
        let router = experts * (d + f64::from(u8::from(moe.selection_bias)));
        let mixture = router + 3.0 * d * width * (experts + of(moe.n_shared_experts));
        let (layers, depth) = (of(self.num_layers()), of(self.mtp_depth));
        let dense_layers = of(self.first_k_dense_replace.min(self.num_layers()));
        let mlps = dense_layers * 3.0 * d * of(self.intermediate_size) + (layers - dense_layers) * mixture;
        let mtp = depth * (2.0 * d * d + 3.0 * d); // without their blocks, which `layers` counts
        2.0 * of(self.vocab_size) * d + layers * (2.0 * d + attention) + mlps + d + mtp
    }

    /// Blocks of the model and of its multi-token prediction modules, which are numbered after the model's own.
    pub fn num_layers(&self) -> usize {
        self.num_hidden_layers.saturating_add(self.mtp_depth)
    }
}

/// A block's modules are built before its parameters; this many take seconds.
const MAX_LAYERS: usize = 10_000;

/// Published models use 1 and 3. Each module makes the activations larger.
const MAX_MTP_DEPTH: usize = 16;

/// Each block has a table of its rotary frequencies.
const MAX_ROPE_DIM: usize = 4096;

/// Checks that each value is between 1 and the given limit.
fn sizes(values: &[(&str, usize, usize)]) -> Result<(), String> {
    match values.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
        Some((key, 0, _)) => Err(format!("model.{key} is 0: give at least 1")),
        Some((key, value, most)) => Err(format!("model.{key} is {value}: give at most {most}")),
        None => Ok(()),
    }
}

fn epsilon(key: &str, value: f64) -> Result<(), String> {
    number(key, value, value as f32 > 0.0, "a small number above 0, such as 1e-5")
}

/// Checks that a number meets its condition and is finite in fp32.
fn number(key: &str, value: f64, fits: bool, expected: &str) -> Result<(), String> {
    match fits && (value as f32).is_finite() {
        true => Ok(()),
        false => Err(format!("model.{key} is {value:?}: give {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeepSeek, Gpt2, parameter_count};
    use burn::tensor::Device;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn parameters_are_those_of_the_model(
            sizes: [u8; 8], bias: bool, selection_bias: bool, inner: Option<u8>, rank: Option<u8>, dense in 0..5usize, mtp_depth in 0..3usize,
        ) {
            let at_least_1 = |size: u8| usize::from(size) + 1;
            let [a, b, c, d, e, f, g, h] = sizes.map(at_least_1);
            let gpt2 = Gpt2Config {
                vocab_size: a, n_positions: b, n_layer: 3, n_head: 1, n_embd: c, n_inner: inner.map(at_least_1), bias,
                ..Gpt2Config::default()
            };
            prop_assert_eq!(parameter_count(&Gpt2::new(&gpt2, &Device::flex())) as f64, gpt2.parameters());
            let deepseek = DeepSeekConfig {
                vocab_size: a, hidden_size: b, num_hidden_layers: 3, first_k_dense_replace: dense, intermediate_size: c,
                num_attention_heads: 3, q_lora_rank: rank.map(at_least_1), kv_lora_rank: d, qk_nope_head_dim: e,
                qk_rope_head_dim: 2 * f, v_head_dim: g, mtp_depth,
                ..DeepSeekConfig::default()
            };
            let moe = MoeConfig {
                num_experts: h, moe_intermediate_size: e, n_shared_experts: f % 3, selection_bias, ..MoeConfig::default()
            };
            let count = parameter_count(&DeepSeek::new(&deepseek, &moe, &Device::flex()));
            prop_assert_eq!(count as f64, deepseek.parameters(&moe));
        }
    }
}
