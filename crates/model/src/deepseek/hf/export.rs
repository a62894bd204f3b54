//! Export of DeepSeek's `config.json`.

use crate::ModelError;
use crate::{DeepSeekConfig, YarnConfig};
use moe::{GroupMask, MoeConfig, ScoreFunc};
use serde_json::{Value, json};

/// Returns `config.json` without the keys every model has. Sigmoid scores make it a `deepseek_v3`, softmax scores a
/// `deepseek_v2`.
///
/// Positions are written in the hub's older style (`rope_theta`, `rope_scaling`), which every version of
/// transformers reads.
///
/// # Errors
/// If neither model type computes what this model does.
pub fn to_json(config: &DeepSeekConfig, moe: &MoeConfig) -> Result<Value, ModelError> {
    let v3 = moe.score_func == ScoreFunc::Sigmoid;
    let has_experts = config.first_k_dense_replace < config.num_layers();
    if has_experts {
        if v3 { check_v3(moe)? } else { check_v2(moe)? }
    }
    if !v3 && !config.hidden_size.is_multiple_of(config.num_attention_heads) {
        return Err(ModelError::NotExpressible {
            key: "model.hidden_size",
            reason: format!(
                "{} is not a multiple of model.num_attention_heads {}, which transformers asks of deepseek_v2",
                config.hidden_size, config.num_attention_heads
            ),
        });
    }
    let topk_method = match (v3, moe.n_group) {
        (true, _) => "noaux_tc",
        (false, 1) => "greedy",
        (false, _) => "group_limited_greedy",
    };
    Ok(json!({
        "architectures": [if v3 { "DeepseekV3ForCausalLM" } else { "DeepseekV2ForCausalLM" }],
        "model_type": if v3 { "deepseek_v3" } else { "deepseek_v2" },
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "first_k_dense_replace": config.first_k_dense_replace,
        "moe_layer_freq": 1,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling.as_ref().map(yarn_json),
        "rope_interleave": true,
        "hidden_act": "silu",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "tie_word_embeddings": false,
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.moe_intermediate_size,
        "n_shared_experts": moe.n_shared_experts,
        "n_group": moe.n_group,
        "topk_group": moe.topk_group,
        "topk_method": topk_method,
        "scoring_func": if v3 { "sigmoid" } else { "softmax" },
        "norm_topk_prob": v3 && moe.norm_topk_prob,
        "routed_scaling_factor": moe.routed_scaling_factor,
        "num_nextn_predict_layers": config.mtp_depth,
        "initializer_range": 0.02,
        "use_cache": true,
    }))
}

fn yarn_json(yarn: &YarnConfig) -> Value {
    let mut json = json!({
        "type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position_embeddings,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
    });
    for (key, value) in [("mscale", yarn.mscale), ("mscale_all_dim", yarn.mscale_all_dim)] {
        if value != 0.0 {
            json[key] = value.into();
        }
    }
    json
}

/// Names and shapes of the matrices that transformers creates, with width 0, for a model without shared experts; it
/// reports them as missing if a file lacks them.
pub fn absent_shared_experts(config: &DeepSeekConfig, moe: &MoeConfig) -> Vec<(String, [usize; 2])> {
    if moe.n_shared_experts > 0 {
        return vec![];
    }
    let d = config.hidden_size;
    let of = |layer, matrix| format!("model.layers.{layer}.mlp.shared_experts.{matrix}.weight");
    (config.first_k_dense_replace..config.num_layers())
        .flat_map(|layer| {
            [("gate_proj", [0, d]), ("up_proj", [0, d]), ("down_proj", [d, 0])].map(|(m, s)| (of(layer, m), s))
        })
        .collect()
}

/// V3 in transformers always applies the selection bias, scores a group by its two best experts, and never selects
/// experts of other groups.
fn check_v3(moe: &MoeConfig) -> Result<(), ModelError> {
    let refuse = |key, reason: &str| Err(ModelError::NotExpressible { key, reason: reason.into() });
    if moe.num_experts / moe.n_group < 2 {
        return refuse("moe.n_group", "leaves groups of one expert, but deepseek_v3 scores a group by its best two");
    }
    if moe.topk_group == moe.n_group {
        return Ok(()); // groups exclude nothing
    }
    if !moe.selection_bias {
        return refuse(
            "moe.selection_bias",
            "is false, so a group is scored by its best expert; deepseek_v3 takes the best two",
        );
    }
    match moe.group_mask {
        GroupMask::NegInf => Ok(()),
        GroupMask::Zero => {
            refuse("moe.group_mask", "is zero, but deepseek_v3 of today's transformers has -inf (neg_inf)")
        }
    }
}

/// V2 in transformers has no selection bias, and its gates are the scores.
fn check_v2(moe: &MoeConfig) -> Result<(), ModelError> {
    let refuse = |key, reason: &str| Err(ModelError::NotExpressible { key, reason: reason.into() });
    if moe.norm_topk_prob {
        return refuse(
            "moe.norm_topk_prob",
            "is true with moe.score_func softmax: deepseek_v2 of transformers does not divide the weights by their sum, and \
             deepseek_v3 scores by sigmoid; only a model trained with moe.norm_topk_prob=false or moe.score_func=sigmoid can be exported",
        );
    }
    if moe.selection_bias {
        return refuse(
            "moe.selection_bias",
            "is true with moe.score_func softmax: only deepseek_v3 (sigmoid) has a bias",
        );
    }
    Ok(())
}
