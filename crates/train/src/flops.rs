//! FLOPs per token, from which the utilization of a device's peak is reported.

use crate::config::{Config, ModelConfig};
use crate::units::parameters;
use checkpoint::Parameter;

/// Floating-point operations of training on one token, forward and backward (PaLM, arXiv 2204.02311, appendix B;
/// nanoGPT's `estimate_mfu`):
///
/// ```text
/// 6 N + 6 L H (Q + V) T    N  parameters in matrix products that a token passes: without embeddings (the tied head
///                             counts), and with only top_k of the E routed experts
///                          L, H, Q, V, T  layers, heads, widths of a head's query and value, tokens of a sequence
/// ```
///
/// The forward takes `2 N` multiplications and additions, the backward twice that. By convention, attention's two
/// products are counted without a causal mask. If documents in a row are masked from each other, T is the length of the
/// documents. Recomputed activations are not counted: these are model FLOPs, not hardware FLOPs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flops {
    products: f64,
    /// Per token that a token attends to.
    attention: f64,
}

impl Flops {
    pub fn new(config: &Config) -> Self {
        let (attention, calls) = attention(config);
        let (attention, all) = (attention * calls.len() as f64, per_call(config).iter().sum::<f64>());
        Self { products: all - attention * config.train.seq_len as f64, attention }
    }

    /// FLOPs per token for sequences or documents of mean length `t` (a mean over tokens).
    pub fn per_token(&self, t: f64) -> f64 {
        self.products + self.attention * t
    }
}

/// The cost of a call's attention per token that a token attends to, and the calls that have attention.
fn attention(config: &Config) -> (f64, Vec<usize>) {
    let (blocks, widths) = match &config.model {
        ModelConfig::Gpt2(shape) => (shape.n_layer, 2 * shape.n_embd),
        ModelConfig::DeepSeek(shape) => {
            let widths = shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim;
            (shape.num_hidden_layers, shape.num_attention_heads * widths)
        }
    };
    let last = blocks + config.model.calls_behind_blocks();
    (6.0 * widths as f64, (1..=blocks).chain(last - config.model.mtp_depth()..last).collect())
}

/// FLOPs per token of each call of the model: the embedding, every block, and the calls after them. The output matrix
/// counts once per token that a position predicts.
pub(crate) fn per_call(config: &Config) -> Vec<f64> {
    let t = config.train.seq_len as f64;
    let share = config.moe.as_ref().map_or(1.0, |moe| moe.top_k as f64 / moe.num_experts as f64);
    let (depth, last) = (config.model.mtp_depth(), config.model.blocks() + config.model.calls_behind_blocks());
    let mut flops = vec![0.0; 1 + last];
    let (attention, calls) = attention(config);
    calls.into_iter().for_each(|call| flops[call] = attention * t);
    for parameter in parameters(config) {
        let len = parameter.len().unwrap_or_default() as f64;
        let active = match parameter.name.as_str() {
            "embed.weight" | "ends.wpe.weight" => 0.0,
            name if is_routed(name) => len * share,
            _ if parameter.shape.len() < 2 => 0.0,
            "head.lm_head.weight" => len * (1 + depth) as f64,
            _ => len,
        };
        let number = |of: &str| parameter.name.strip_prefix(of)?.split('.').next()?.parse::<usize>().ok();
        let (block, module) = (number("blocks."), number("mtp."));
        let call = block.map(|block| 1 + block).or(module.map(|k| last - depth + k)).unwrap_or(last);
        flops[call] += 6.0 * active;
    }
    flops
}

/// Parameters that a token passes: all except those of the routed experts not selected for it.
pub(crate) fn active_parameters(config: &Config) -> usize {
    let share = config.moe.as_ref().map_or(1.0, |moe| moe.top_k as f64 / moe.num_experts as f64);
    let active = |parameter: &Parameter| match parameter.len().unwrap_or_default() as f64 {
        len if is_routed(&parameter.name) => len * share,
        len => len,
    };
    parameters(config).iter().map(active).sum::<f64>().round() as usize
}

/// Whether a parameter belongs to a routed expert.
fn is_routed(parameter: &str) -> bool {
    parameter.contains(".experts.") && !parameter.contains("shared_experts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn of(preset: &str, overrides: &[&str]) -> f64 {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let mut config = Config::load(Source::Preset(preset), &overrides).unwrap();
        if let ModelConfig::DeepSeek(shape) = &mut config.model {
            shape.vocab_size = shape.vocab_size.max(256);
        }
        Flops::new(&config).per_token(config.train.seq_len as f64)
    }

    #[test]
    fn gpt2_small_costs_what_nanogpt_says_but_for_norms_and_biases() {
        // nanoGPT: 6 * (124,439,808 - 1024 * 768) + 12 * 12 * 12 * 64 * 1024; its N includes the 121,344 parameters of
        // norms and biases.
        let (given, nanogpt) = (of("gpt2-124m", &[]), 6.0 * 123_653_376.0 + 12.0 * 12.0 * 768.0 * 1024.0);
        assert!((given / nanogpt - 1.0).abs() < 2e-3, "{given} and {nanogpt}");
    }

    #[test]
    fn deepseek_v3_has_the_active_parameters_of_its_paper() {
        // 37 of 671 billion (arXiv 2412.19437); in GPT-2 all are active.
        let active = |preset| active_parameters(&Config::load(Source::Preset(preset), &[]).unwrap());
        let billions = active("deepseek-v3") as f64 / 1e9;
        assert!((36.5..38.0).contains(&billions), "{billions}");
        assert_eq!(active("gpt2-124m"), 124_439_808);
    }

    #[test]
    fn of_the_experts_those_that_a_token_goes_to_count() {
        let [two, eight] = ["moe.top_k=2", "moe.top_k=8"].map(|top_k| of("deepseek", &[top_k]));
        // 4 layers with 6 more experts of three 128 x 128 matrices.
        assert_eq!(eight - two, 6.0 * (4 * 6 * 3 * 128 * 128) as f64);
    }

    #[test]
    fn a_module_of_multi_token_prediction_costs_a_block_and_its_projection_and_the_head_once_more() {
        let [four, five] = ["model.num_hidden_layers=4", "model.num_hidden_layers=5"].map(|set| of("deepseek", &[set]));
        let [one, two] = ["model.mtp_depth=1", "model.mtp_depth=2"].map(|set| of("deepseek", &[set]));
        let module = five - four + 6.0 * (2 * 128 * 128 + 128 * 256) as f64;
        assert_eq!((one - four, two - four), (module, 2.0 * module));
    }
}
