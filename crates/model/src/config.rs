use serde::{Deserialize, Serialize};

/// The shape of a GPT-2 (Radford et al., 2019); names as in Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpt2Config {
    /// Tokens in the vocabulary. In a run's configuration 0 means: as many as the tokenizer has.
    pub vocab_size: usize,
    /// The longest context, and the number of learned positions.
    pub n_positions: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Attention heads of a block; divides `n_embd`.
    pub n_head: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Hidden width of the MLP; null for 4 x `n_embd`.
    pub n_inner: Option<usize>,
    /// Whether linear layers and layer norms have a bias (GPT-2 has; nanoGPT trains without).
    pub bias: bool,
    /// Probability that training drops an element of the embeddings, of the attention's probabilities, and of what attention and MLP
    /// add to the residual stream; 0 for none.
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
    /// Refuses what no model can be built from, naming key, value and remedy.
    pub fn validate(&self) -> Result<(), String> {
        nonzero(&[
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_embd", self.n_embd),
        ])?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(format!("model.n_embd {} is not a multiple of model.n_head {}", self.n_embd, self.n_head));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(format!("model.dropout is {}: give a probability from 0 to below 1", self.dropout));
        }
        Ok(())
    }
}

/// YaRN context extension (arXiv 2309.00071); names as in the `rope_scaling` of DeepSeek's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct YarnConfig {
    /// How many times the original context is extended.
    pub factor: f64,
    /// The context of pretraining.
    pub original_max_position_embeddings: usize,
    /// Dimensions that turn more often than this over the original context keep their frequency.
    pub beta_fast: f64,
    /// Dimensions that turn less often than this have their frequency divided by `factor`.
    pub beta_slow: f64,
    /// Numerator of the factor on cosine and sine; 0 for unset.
    pub mscale: f64,
    /// Its denominator, and squared a factor of the softmax scale; 0 for unset.
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

/// The shape of a DeepSeek-V2/V3 (arXiv 2405.04434, 2412.19437) apart from its experts, which are a [`moe::MoeConfig`]; names
/// as in Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeepSeekConfig {
    /// Tokens in the vocabulary. In a run's configuration 0 means: as many as the tokenizer has.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// The first blocks, whose MLP is one dense SwiGLU instead of experts.
    pub first_k_dense_replace: usize,
    /// Hidden width of the dense SwiGLU.
    pub intermediate_size: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Rank of the compressed query; null for a direct projection.
    pub q_lora_rank: Option<usize>,
    /// Rank of the compressed keys and values.
    pub kv_lora_rank: usize,
    /// Width of a head's query and key without positions.
    pub qk_nope_head_dim: usize,
    /// Width of a head's rotated query, and of the one rotated key that all heads share; even.
    pub qk_rope_head_dim: usize,
    /// Width of a head's value.
    pub v_head_dim: usize,
    /// The longest context.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms, except those inside the attention, which have 1e-6 (as in DeepSeek's and Hugging Face's code).
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Context extension; null for plain rotary positions.
    pub rope_scaling: Option<YarnConfig>,
}

impl Default for DeepSeekConfig {
    fn default() -> Self {
        Self {
            vocab_size: 0,
            hidden_size: 128,
            num_hidden_layers: 4,
            first_k_dense_replace: 0,
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
    /// Refuses what no model can be built from, naming key, value and remedy.
    pub fn validate(&self) -> Result<(), String> {
        nonzero(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1)),
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", self.v_head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ])?;
        if !self.qk_rope_head_dim.is_multiple_of(2) {
            return Err(format!(
                "model.qk_rope_head_dim {} is odd: rotary positions turn pairs",
                self.qk_rope_head_dim
            ));
        }
        Ok(())
    }
}

fn nonzero(values: &[(&str, usize)]) -> Result<(), String> {
    match values.iter().find(|(_, value)| *value == 0) {
        Some((key, _)) => Err(format!("model.{key} is 0: give at least 1")),
        None => Ok(()),
    }
}
