//! Import of `config.json`.

use super::rope;
use crate::LlamaConfig;
use crate::ModelError;
use crate::hf::{Folder, is_silu};
use crate::layers::mixture::validate_moe;
use moe::{MoeConfig, ScoreFunc};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The keys of the hub's files, except those of rotary positions.
#[derive(Deserialize)]
struct LlamaJson {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: Option<bool>,
    #[serde(default)]
    tie_word_embeddings: bool,
    sliding_window: Option<usize>,
    #[serde(default)]
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    num_experts: Option<usize>,
    /// Mixtral's name for the experts, and that of transformers 5 for all families.
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    mlp_only_layers: Option<Vec<usize>>,
    decoder_sparse_step: Option<usize>,
}

/// Reads and validates `config.json`. Sizes are required; other keys that it lacks have transformers' defaults.
pub(crate) fn config(folder: &Folder) -> Result<(LlamaConfig, Option<MoeConfig>), ModelError> {
    let json: LlamaJson = folder.keys(folder.config(), "")?;
    refuse_unsupported(folder, &json)?;
    let kind = &json.model_type[..];
    let (theta, eps) = if kind == "mixtral" { (1e6, 1e-5) } else { (10000.0, 1e-6) };
    let (rope_theta, rope_scaling) = rope::read(folder, theta, json.max_position_embeddings)?;
    let (sliding_window, max_window_layers) = windows(folder, &json)?;
    // If the key is null, there are as many heads as query heads.
    let absent = folder.config().get("num_key_value_heads").is_none();
    let kv_heads = match kind {
        "mistral" | "mixtral" if absent => Some(8),
        "qwen2" | "qwen3" if absent => Some(32),
        "qwen3_moe" if absent => Some(4),
        _ => json.num_key_value_heads,
    };
    let moe = moe_config(folder, &json)?;
    let mut model = LlamaConfig {
        vocab_size: json.vocab_size,
        hidden_size: json.hidden_size,
        num_hidden_layers: json.num_hidden_layers,
        // Mixtral calls the experts' width by this name, and has no dense layers.
        intermediate_size: json.intermediate_size,
        num_attention_heads: json.num_attention_heads,
        num_key_value_heads: kv_heads.unwrap_or(json.num_attention_heads),
        head_dim: json.head_dim.or((kind == "qwen3").then_some(128)),
        max_position_embeddings: json.max_position_embeddings,
        rms_norm_eps: json.rms_norm_eps.unwrap_or(eps),
        rope_theta,
        rope_scaling,
        qkv_bias: kind == "qwen2",
        qk_norm: matches!(kind, "qwen3" | "qwen3_moe"),
        tie_word_embeddings: json.tie_word_embeddings,
        sliding_window,
        max_window_layers,
        mlp_only_layers: vec![],
    };
    folder.check_sizes(&model)?;
    moe.as_ref().map_or(Ok(()), |moe| folder.check_sizes(moe))?;
    let valid = model.validate().and_then(|()| moe.as_ref().map_or(Ok(()), validate_moe));
    valid.map_err(|reason| folder.config_error(reason.to_string()))?;
    if moe.is_some() {
        model.mlp_only_layers = dense_layers(folder, &json)?; // listed when the number of layers is known to be small
    }
    Ok((model, moe))
}

fn refuse_unsupported(folder: &Folder, json: &LlamaJson) -> Result<(), ModelError> {
    let refuse = |what: String| Err(folder.config_error(format!("{what} is not supported")));
    if let Some(act) = json.hidden_act.as_deref().filter(|act| !is_silu(act)) {
        return refuse(format!("hidden_act \"{act}\""));
    }
    // It also adds a bias to the output projection. Mistral and Mixtral have no such key.
    let has_key = !matches!(&json.model_type[..], "mistral" | "mixtral" | "qwen2");
    if has_key && json.attention_bias == Some(true) {
        return refuse("attention_bias true".into());
    }
    if json.model_type == "llama" && json.mlp_bias == Some(true) {
        return refuse("mlp_bias true".into());
    }
    Ok(())
}

/// The window, and the number of leading layers without it.
fn windows(folder: &Folder, json: &LlamaJson) -> Result<(Option<usize>, usize), ModelError> {
    let window = match folder.config().get("sliding_window") {
        None if json.model_type != "mixtral" => Some(4096),
        _ => json.sliding_window,
    };
    let is_used = json.use_sliding_window == Some(true);
    match &json.model_type[..] {
        "mistral" => Ok((window, layers_without_window(folder, json)?.unwrap_or(0))),
        "mixtral" => Ok((window, 0)),
        "qwen3_moe" => Ok((window.filter(|_| is_used), 0)),
        "qwen2" | "qwen3" => match (is_used, layers_without_window(folder, json)?) {
            (true, full) => Ok((window, full.or(json.max_window_layers).unwrap_or(28))),
            (false, Some(full)) if full < json.num_hidden_layers => {
                Err(folder.config_error("layer_types has sliding_attention, but use_sliding_window is not true"))
            }
            (false, _) => Ok((None, 0)),
        },
        _ => Ok((None, 0)),
    }
}

/// The number of leading layers without a window in `layer_types`; all others must have one.
fn layers_without_window(folder: &Folder, json: &LlamaJson) -> Result<Option<usize>, ModelError> {
    let Some(types) = &json.layer_types else { return Ok(None) };
    if types.len() != json.num_hidden_layers {
        let (found, layers) = (types.len(), json.num_hidden_layers);
        return Err(folder.config_error(format!("layer_types has {found} entries for num_hidden_layers {layers}")));
    }
    let full = types.iter().take_while(|kind| *kind == "full_attention").count();
    match types[full..].iter().find(|kind| *kind != "sliding_attention") {
        None => Ok(Some(full)),
        Some(kind) => Err(folder.config_error(format!(
            "layer_types has {kind} in or after layers with sliding_attention, which is not supported: full_attention in \
             the first layers and sliding_attention in all others is"
        ))),
    }
}

/// The experts: softmax over all of them, the best ones chosen, and their weights divided by the sum.
fn moe_config(folder: &Folder, json: &LlamaJson) -> Result<Option<MoeConfig>, ModelError> {
    let mixtral = json.model_type == "mixtral";
    if !mixtral && json.model_type != "qwen3_moe" {
        return Ok(None);
    }
    let needs =
        |key: &str, value: Option<usize>| value.ok_or_else(|| folder.config_error(format!("missing field `{key}`")));
    let width = if mixtral { Some(json.intermediate_size) } else { json.moe_intermediate_size };
    Ok(Some(MoeConfig {
        num_experts: match (json.num_experts, json.num_local_experts) {
            (Some(one), Some(other)) if one != other => {
                let reason = format!("num_experts {one} and num_local_experts {other} differ");
                return Err(folder.config_error(reason));
            }
            (one, other) => needs(if mixtral { "num_local_experts" } else { "num_experts" }, one.or(other))?,
        },
        top_k: needs("num_experts_per_tok", json.num_experts_per_tok)?,
        moe_intermediate_size: needs("moe_intermediate_size", width)?,
        score_func: ScoreFunc::Softmax,
        norm_topk_prob: mixtral || json.norm_topk_prob.unwrap_or(false),
        ..MoeConfig::default()
    }))
}

/// The layers of a Qwen3-MoE without experts, in order.
fn dense_layers(folder: &Folder, json: &LlamaJson) -> Result<Vec<usize>, ModelError> {
    let listed: BTreeSet<usize> = json.mlp_only_layers.iter().flatten().copied().collect();
    let step = json.decoder_sparse_step.unwrap_or(1);
    if step == 0 {
        return Err(folder.config_error("decoder_sparse_step is 0: 1 gives every layer experts"));
    }
    let is_dense = |layer: &usize| listed.contains(layer) || !(layer + 1).is_multiple_of(step);
    Ok((0..json.num_hidden_layers).filter(is_dense).collect())
}
