//! Checks of products of sizes, computed in floats, which do not overflow.

use super::validate::require;
use super::{CheckpointConfig, Config, ConfigError, ModelConfig};

/// Upper limit of a model's parameters, a tensor's numbers and a run's tokens. No machine has memory for more, and
/// products of validated sizes do not overflow.
const MOST: f64 = (1u64 << 53) as f64;

/// A key and its value.
type Size = (&'static str, usize);

impl Config {
    /// Whether checkpoints are written before the last step: by number of steps, by time, or for the best validations,
    /// the first of which always counts.
    pub(crate) fn saves_on_the_way(&self) -> bool {
        let before_the_end = |every: usize| every > 0 && every < self.train.steps;
        let CheckpointConfig { every, every_minutes, keep, keep_every, keep_best, .. } = self.checkpoint;
        let val_every = if keep_best { self.train.val_every } else { 0 };
        keep > 0 && (every_minutes.is_some() || [every, keep_every, val_every].into_iter().any(before_the_end))
    }

    /// Rejects sizes whose product is too large, naming the largest.
    pub(super) fn validate_sizes(&self) -> Result<(), ConfigError> {
        let (shape, parameters) = self.shape();
        require(parameters <= MOST, || {
            let (key, value) = largest(&shape);
            format!("{key} is {value}, which makes a model of {parameters:.1e} parameters: lower it")
        })?;

        let train = &self.train;
        let (batch, seq_len) = (("train.global_batch_size", train.global_batch_size), ("train.seq_len", train.seq_len));
        // Steps are 0 until the data determines how many an epoch has.
        let run = [("train.steps", train.steps.max(1)), batch, seq_len];
        let tokens = product(&run);
        require(tokens <= MOST, || {
            let (key, value) = largest(&run);
            format!("{key} is {value}, which makes a run of {tokens:.1e} tokens: lower it")
        })?;

        let key = if train.micro_batch_size.is_some() { "train.micro_batch_size" } else { "train.global_batch_size" };
        let micro = (key, self.micro_batch_size());
        let tensors = self.activations().into_iter().map(|width| [&[micro, seq_len][..], &width].concat());
        let worst = tensors.max_by(|a, b| product(a).total_cmp(&product(b))).expect("a model has a vocabulary");
        require(product(&worst) <= MOST, || {
            let sizes: Vec<String> = worst.iter().map(|(key, value)| format!("{key} {value}")).collect();
            format!("{} make a tensor of {:.1e} numbers: lower one of them", sizes.join(" x "), product(&worst))
        })
    }

    /// The sizes of the model's matrices, and its number of parameters.
    pub(super) fn shape(&self) -> (Vec<Size>, f64) {
        match &self.model {
            ModelConfig::Gpt2(shape) => (
                vec![
                    ("model.vocab_size", shape.vocab_size),
                    ("model.n_positions", shape.n_positions),
                    ("model.n_embd", shape.n_embd),
                    ("model.n_inner", shape.n_inner.unwrap_or(0)),
                ],
                shape.parameters(),
            ),
            ModelConfig::DeepSeek(shape) => {
                let moe = self.moe.clone().unwrap_or_default();
                (
                    vec![
                        ("model.vocab_size", shape.vocab_size),
                        ("model.hidden_size", shape.hidden_size),
                        ("model.intermediate_size", shape.intermediate_size),
                        ("model.num_attention_heads", shape.num_attention_heads),
                        ("model.q_lora_rank", shape.q_lora_rank.unwrap_or(0)),
                        ("model.kv_lora_rank", shape.kv_lora_rank),
                        ("model.qk_nope_head_dim", shape.qk_nope_head_dim),
                        ("model.v_head_dim", shape.v_head_dim),
                        ("moe.num_experts", moe.num_experts),
                        ("moe.moe_intermediate_size", moe.moe_intermediate_size),
                        ("moe.n_shared_experts", moe.n_shared_experts),
                    ],
                    shape.parameters(&moe),
                )
            }
        }
    }

    /// Sizes per token of the largest tensors in a forward; those of each tensor are multiplied.
    fn activations(&self) -> Vec<Vec<Size>> {
        let context = ("train.seq_len", self.train.seq_len);
        // A vocabulary that is not known yet is unlikely to be larger.
        let vocab = ("model.vocab_size", if self.model.vocab_size() == 0 { 1 << 20 } else { self.model.vocab_size() });
        match &self.model {
            ModelConfig::Gpt2(shape) => vec![
                vec![vocab],
                vec![("model.n_head", shape.n_head), context],
                vec![("3 x model.n_embd", shape.n_embd.saturating_mul(3))],
                vec![("model.n_inner", shape.n_inner.unwrap_or(shape.n_embd.saturating_mul(4)))],
            ],
            ModelConfig::DeepSeek(shape) => {
                let moe = self.moe.clone().unwrap_or_default();
                let (heads, top_k) =
                    (("model.num_attention_heads", shape.num_attention_heads), ("moe.top_k", moe.top_k));
                let width = ("moe.moe_intermediate_size", moe.moe_intermediate_size);
                vec![
                    vec![vocab],
                    vec![heads, context],
                    vec![heads, ("model.qk_nope_head_dim", shape.qk_nope_head_dim)],
                    vec![heads, ("model.qk_rope_head_dim", shape.qk_rope_head_dim)],
                    vec![heads, ("model.v_head_dim", shape.v_head_dim)],
                    vec![("model.intermediate_size", shape.intermediate_size)],
                    vec![("1 + model.mtp_depth", 1 + shape.mtp_depth), ("model.hidden_size", shape.hidden_size)],
                    vec![top_k, ("model.hidden_size", shape.hidden_size)],
                    vec![top_k, width],
                    vec![("moe.n_shared_experts", moe.n_shared_experts), width],
                    vec![("moe.num_experts", moe.num_experts)],
                ]
            }
        }
    }
}

fn product(sizes: &[Size]) -> f64 {
    sizes.iter().map(|(_, value)| *value as f64).product()
}

fn largest(sizes: &[Size]) -> Size {
    *sizes.iter().max_by_key(|(_, value)| *value).expect("there are sizes")
}
