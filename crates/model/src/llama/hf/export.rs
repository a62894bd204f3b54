//! Export of `config.json`.

use super::rope;
use crate::LlamaConfig;
use crate::ModelError;
use moe::{MoeConfig, ScoreFunc};
use serde_json::{Value, json};

/// The `model_type` that computes what this model does, if one does; see [`to_json`].
pub(super) fn model_type(config: &LlamaConfig, moe: Option<&MoeConfig>) -> &'static str {
    match (with_experts(config, moe).is_some(), config.qk_norm) {
        (true, true) => "qwen3_moe",
        (true, false) => "mixtral",
        (false, true) => "qwen3",
        (false, false) if config.qkv_bias => "qwen2",
        // A `llama` in transformers needs a width that its heads divide, even if it has a `head_dim`.
        (false, false) if has_window(config) || !config.hidden_size.is_multiple_of(config.num_attention_heads) => {
            "mistral"
        }
        (false, false) => "llama",
    }
}

/// Returns `config.json` without the keys every model has. Norms of queries and keys make it a Qwen3, biases a Qwen2, a
/// window a Mistral; with experts it is a Qwen3-MoE or a Mixtral.
///
/// Positions are written in the hub's style (`rope_theta`, `rope_scaling`), which every version of transformers reads.
/// (transformers 4 takes the ratio of both contexts for YaRN's factor.)
///
/// # Errors
/// If no model type computes what this model does.
pub(super) fn to_json(config: &LlamaConfig, moe: Option<&MoeConfig>) -> Result<Value, ModelError> {
    let (kind, moe) = (model_type(config, moe), with_experts(config, moe));
    check(config, moe, kind)?;
    let window = config.sliding_window.filter(|_| has_window(config));
    let mut json = json!({
        "architectures": [architecture(kind)],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling.as_ref().map(rope::to_json),
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": 0.02,
        "use_cache": true,
    });
    let mut add = |more: Value| {
        let more = more.as_object().expect("an object").clone();
        json.as_object_mut().expect("an object").extend(more);
    };
    // Without the key, transformers takes 128 for a qwen3.
    if config.head_dim.is_some() || kind == "qwen3" {
        add(json!({"head_dim": config.head_dim()}));
    }
    match kind {
        "llama" => add(json!({"attention_bias": false, "mlp_bias": false})),
        "mistral" | "mixtral" => add(json!({"sliding_window": window})),
        _ => add(json!({"sliding_window": window, "use_sliding_window": window.is_some()})),
    }
    if matches!(kind, "qwen3" | "qwen3_moe") {
        add(json!({"attention_bias": false}));
    }
    if matches!(kind, "qwen2" | "qwen3") {
        add(json!({"max_window_layers": config.max_window_layers.min(config.num_hidden_layers)}));
    }
    match (kind, moe) {
        ("mixtral", Some(moe)) => add(json!({
            "intermediate_size": moe.moe_intermediate_size,
            "num_local_experts": moe.num_experts,
            "num_experts_per_tok": moe.top_k,
        })),
        (_, Some(moe)) => add(json!({
            "num_experts": moe.num_experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.moe_intermediate_size,
            "norm_topk_prob": moe.norm_topk_prob,
            "decoder_sparse_step": 1,
            "mlp_only_layers": config.mlp_only_layers,
        })),
        (_, None) => {}
    }
    Ok(json)
}

fn architecture(kind: &str) -> &'static str {
    match kind {
        "llama" => "LlamaForCausalLM",
        "mistral" => "MistralForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "mixtral" => "MixtralForCausalLM",
        _ => "Qwen3MoeForCausalLM",
    }
}

/// The experts, if a layer has some.
fn with_experts<'a>(config: &LlamaConfig, moe: Option<&'a MoeConfig>) -> Option<&'a MoeConfig> {
    (0..config.num_hidden_layers).find_map(|layer| config.experts_of(layer, moe))
}

/// Whether a layer has a window.
fn has_window(config: &LlamaConfig) -> bool {
    (0..config.num_hidden_layers).any(|layer| config.window(layer).is_some())
}

fn check(config: &LlamaConfig, moe: Option<&MoeConfig>, kind: &str) -> Result<(), ModelError> {
    let refuse = |key, reason: String| Err(ModelError::NotExpressible { key, reason });
    if config.qkv_bias && kind != "qwen2" {
        return refuse(
            "model.qkv_bias",
            format!("is true, but {kind} of transformers has no such bias: only qwen2 has"),
        );
    }
    let of_some = has_window(config) && config.max_window_layers > 0;
    if of_some && !matches!(kind, "qwen2" | "qwen3") {
        return refuse(
            "model.max_window_layers",
            format!("is {}, but in {kind} of transformers all layers have the window", config.max_window_layers),
        );
    }
    let Some(moe) = moe else { return Ok(()) };
    if moe.score_func != ScoreFunc::Softmax {
        return refuse("moe.score_func", format!("is sigmoid, but {kind} of transformers scores by softmax"));
    }
    if moe.selection_bias {
        return refuse("moe.selection_bias", format!("is true, but {kind} of transformers has no such bias"));
    }
    if moe.topk_group != moe.n_group {
        return refuse(
            "moe.topk_group",
            format!("excludes groups of experts, but {kind} of transformers has no groups"),
        );
    }
    if moe.routed_scaling_factor != 1.0 {
        return refuse("moe.routed_scaling_factor", format!("is not 1, but {kind} of transformers has no such factor"));
    }
    if moe.n_shared_experts > 0 {
        return refuse("moe.n_shared_experts", format!("is not 0, but {kind} of transformers has no shared experts"));
    }
    if kind == "mixtral" && !moe.norm_topk_prob {
        return refuse(
            "moe.norm_topk_prob",
            "is false, but mixtral of transformers divides the weights by their sum".into(),
        );
    }
    if kind == "mixtral" && !config.mlp_only_layers.is_empty() {
        return refuse(
            "model.mlp_only_layers",
            "has dense layers, but in mixtral of transformers all layers have experts".into(),
        );
    }
    Ok(())
}
