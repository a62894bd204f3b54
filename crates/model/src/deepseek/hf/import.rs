//! Import of DeepSeek's `config.json`.

use crate::ModelError;
use crate::hf::{Folder, is_silu};
use crate::layers::mixture::validate_moe;
use crate::{DeepSeekConfig, YarnConfig};
use moe::{MoeConfig, ScoreFunc};
use serde::Deserialize;

/// The keys of the hub's files, and `rope_parameters`, which newer versions of transformers write instead of
/// `rope_theta` and `rope_scaling`. Defaults are those of transformers, except for the keys in [`REQUIRED`].
#[derive(Deserialize)]
struct DeepSeekJson {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    first_k_dense_replace: Option<usize>,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: usize,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeJson>,
    rope_parameters: Option<RopeJson>,
    rope_interleave: Option<bool>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    #[serde(default)]
    n_shared_experts: Option<usize>,
    #[serde(default)]
    n_group: Option<usize>,
    #[serde(default)]
    topk_group: Option<usize>,
    topk_method: Option<String>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f64>,
    #[serde(default)]
    num_nextn_predict_layers: Option<usize>,
}

/// Keys that a file must state, because transformers' defaults for them come from one published model; null is
/// accepted.
const REQUIRED: [&str; 4] = ["first_k_dense_replace", "q_lora_rank", "n_shared_experts", "routed_scaling_factor"];
/// Further required keys for V3.
const REQUIRED_V3: [&str; 2] = ["n_group", "topk_group"];

#[derive(Deserialize)]
struct RopeJson {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
}

/// Reads and validates `config.json`.
pub fn config(folder: &Folder) -> Result<(DeepSeekConfig, MoeConfig), ModelError> {
    // Some files name the kind of rope under both keys.
    let mut json = folder.config().clone();
    for rope in ["rope_scaling", "rope_parameters"] {
        if let Some(map) = json[rope].as_object_mut()
            && map.contains_key("rope_type")
        {
            map.remove("type");
        }
    }
    let v3 = json["model_type"] == "deepseek_v3";
    if let Some(key) = REQUIRED.iter().chain(REQUIRED_V3.iter().filter(|_| v3)).find(|key| json.get(key).is_none()) {
        return Err(folder.config_error(format!("missing field `{key}`")));
    }
    let json: DeepSeekJson = folder.keys(&json, "")?;
    refuse_unsupported(folder, &json)?;
    let model = model_config(folder, &json)?;
    let moe = moe_config(folder, &json)?;
    folder.check_sizes(&model)?;
    folder.check_sizes(&moe)?;
    model.validate().and_then(|()| validate_moe(&moe)).map_err(|reason| folder.config_error(reason.to_string()))?;
    Ok((model, moe))
}

fn refuse_unsupported(folder: &Folder, json: &DeepSeekJson) -> Result<(), ModelError> {
    let refuse = |what: String| Err(folder.config_error(format!("{what} is not supported")));
    if let Some(act) = json.hidden_act.as_deref().filter(|act| !is_silu(act)) {
        return refuse(format!("hidden_act \"{act}\""));
    }
    if json.attention_bias || json.mlp_bias || json.tie_word_embeddings {
        return refuse("attention_bias, mlp_bias or tie_word_embeddings".into());
    }
    if json.rope_interleave == Some(false) {
        return refuse("rope_interleave false".into());
    }
    match json.num_key_value_heads {
        Some(heads) if heads != json.num_attention_heads => {
            refuse(format!("num_key_value_heads {heads} other than num_attention_heads"))
        }
        _ => Ok(()),
    }
}

fn model_config(folder: &Folder, json: &DeepSeekJson) -> Result<DeepSeekConfig, ModelError> {
    let rope = json.rope_parameters.as_ref().or(json.rope_scaling.as_ref());
    let rope_scaling = match rope.map(|rope| (rope, rope.rope_type.as_deref().unwrap_or("default"))) {
        None | Some((_, "default")) => None,
        Some((rope, "yarn")) => Some(YarnConfig {
            original_max_position_embeddings: rope
                .original_max_position_embeddings
                .ok_or_else(|| folder.config_error("yarn without original_max_position_embeddings"))?,
            factor: rope.factor.ok_or_else(|| folder.config_error("yarn without factor"))?,
            beta_fast: rope.beta_fast.unwrap_or(32.0),
            beta_slow: rope.beta_slow.unwrap_or(1.0),
            mscale: rope.mscale.unwrap_or(0.0),
            mscale_all_dim: rope.mscale_all_dim.unwrap_or(0.0),
        }),
        Some((_, other)) => return Err(folder.config_error(format!("rope type \"{other}\" is not supported; yarn is"))),
    };
    Ok(DeepSeekConfig {
        vocab_size: json.vocab_size,
        hidden_size: json.hidden_size,
        num_hidden_layers: json.num_hidden_layers,
        first_k_dense_replace: json.first_k_dense_replace.unwrap_or(0),
        intermediate_size: json.intermediate_size,
        num_attention_heads: json.num_attention_heads,
        q_lora_rank: json.q_lora_rank,
        kv_lora_rank: json.kv_lora_rank,
        qk_nope_head_dim: json.qk_nope_head_dim,
        qk_rope_head_dim: json.qk_rope_head_dim,
        v_head_dim: json.v_head_dim,
        max_position_embeddings: json.max_position_embeddings,
        rms_norm_eps: json.rms_norm_eps.unwrap_or(1e-6),
        rope_theta: json.rope_theta.or(rope.and_then(|rope| rope.rope_theta)).unwrap_or(10000.0),
        rope_scaling,
        mtp_depth: mtp_depth(folder, json),
    })
}

/// transformers does not support multi-token prediction: the folders it saves state the number of modules but do not
/// contain them.
fn mtp_depth(folder: &Folder, json: &DeepSeekJson) -> usize {
    let first = format!("{}.eh_proj.weight", super::mtp_layer(json.num_hidden_layers, 0));
    if folder.has(&first) { json.num_nextn_predict_layers.unwrap_or(0) } else { 0 }
}

/// Rejects multi-token prediction modules whose copies of the embedding and the output matrix differ from the model's,
/// because Kiln shares those between all modules.
pub fn check_copies(folder: &Folder, config: &DeepSeekConfig) -> Result<(), ModelError> {
    let shape = [config.vocab_size, config.hidden_size];
    (0..config.mtp_depth).map(|k| super::mtp_layer(config.num_hidden_layers, k)).try_for_each(|layer| {
        super::COPIES
            .into_iter()
            .try_for_each(|(copy, original)| folder.check_copy(&format!("{layer}.{copy}"), original, &shape))
    })
}

/// V3 routes by sigmoid with a selection bias. V2 routes by softmax, uses groups only if `topk_method` says so, and
/// never divides the weights by their sum (transformers ignores `norm_topk_prob` there).
fn moe_config(folder: &Folder, json: &DeepSeekJson) -> Result<MoeConfig, ModelError> {
    let v3 = json.model_type == "deepseek_v3";
    let grouped = match json.topk_method.as_deref().unwrap_or(if v3 { "noaux_tc" } else { "greedy" }) {
        "noaux_tc" if v3 => true,
        "group_limited_greedy" if !v3 => true,
        "greedy" if !v3 => false,
        other => {
            return Err(
                folder.config_error(format!("topk_method \"{other}\" is not supported for {}", json.model_type))
            );
        }
    };
    Ok(MoeConfig {
        num_experts: json.n_routed_experts,
        top_k: json.num_experts_per_tok,
        moe_intermediate_size: json.moe_intermediate_size,
        n_shared_experts: json.n_shared_experts.unwrap_or(0),
        score_func: if v3 { ScoreFunc::Sigmoid } else { ScoreFunc::Softmax },
        selection_bias: v3,
        n_group: json.n_group.filter(|_| grouped).unwrap_or(1),
        topk_group: json.topk_group.filter(|_| grouped).unwrap_or(1),
        norm_topk_prob: v3 && json.norm_topk_prob.unwrap_or(true),
        routed_scaling_factor: json.routed_scaling_factor.unwrap_or(1.0),
        ..MoeConfig::default()
    })
}
