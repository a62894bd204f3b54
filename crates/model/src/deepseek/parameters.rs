//! The parameters of a DeepSeek.

use crate::layers::mixture::{moe_parameters, swiglu};
use crate::{DeepSeekConfig, ParameterSpec};
use comm::TensorShard;
use moe::MoeConfig;

/// All parameters of a DeepSeek, in the order in which its modules are visited.
///
/// The vocabulary of embedding and output matrix is split among tensor-parallel ranks; see also `block`.
pub fn parameters(shape: &DeepSeekConfig, moe: &MoeConfig) -> Vec<ParameterSpec> {
    let DeepSeekConfig { vocab_size, hidden_size: d, num_hidden_layers, mtp_depth, .. } = *shape;
    let mut all = vec![ParameterSpec::table("embed.weight", [vocab_size, d]).sharded(TensorShard::ROWS)];
    all.extend((0..num_hidden_layers).flat_map(|layer| block(shape, moe, &format!("blocks.{layer}"), layer)));
    let lm_head = ParameterSpec::matrix("head.lm_head.weight", [d, vocab_size]).sharded(TensorShard::COLUMNS);
    // Each module of multi-token prediction multiplies by the output matrix once more.
    let lm_head = ParameterSpec { products: (1 + mtp_depth) as f64, ..lm_head };
    all.extend([ParameterSpec::gain("head.norm.gamma", d), lm_head]);
    all.extend((0..mtp_depth).flat_map(|k| module(shape, moe, k)));
    all
}

/// The parameters of a block, either of the model itself or of a multi-token prediction module.
///
/// Tensor-parallel ranks split heads (`q_proj` or `q_b_proj`, `kv_b_proj`, `o_proj`) and the columns of the dense
/// and the shared SwiGLU. Every rank has the norms, the compressions and the router.
fn block(shape: &DeepSeekConfig, moe: &MoeConfig, name: &str, layer: usize) -> Vec<ParameterSpec> {
    let DeepSeekConfig { hidden_size: d, num_attention_heads: heads, kv_lora_rank, .. } = *shape;
    let (nope, rope) = (shape.qk_nope_head_dim, shape.qk_rope_head_dim);
    let field = |field: &str| format!("{name}.{field}");
    let of_heads = |width: usize| heads.saturating_mul(width);
    let query = of_heads(nope.saturating_add(rope));
    let mut all = vec![ParameterSpec::gain(field("input_layernorm.gamma"), d)];
    match shape.q_lora_rank {
        None => {
            all.push(ParameterSpec::matrix(field("self_attn.q_proj.weight"), [d, query]).sharded(TensorShard::COLUMNS))
        }
        Some(rank) => all.extend([
            ParameterSpec::matrix(field("self_attn.q_a_proj.weight"), [d, rank]),
            ParameterSpec::gain(field("self_attn.q_a_layernorm.gamma"), rank),
            ParameterSpec::matrix(field("self_attn.q_b_proj.weight"), [rank, query]).sharded(TensorShard::COLUMNS),
        ]),
    }
    let (latent, keys) = (kv_lora_rank.saturating_add(rope), of_heads(nope.saturating_add(shape.v_head_dim)));
    let values = of_heads(shape.v_head_dim);
    all.extend([
        ParameterSpec::matrix(field("self_attn.kv_a_proj_with_mqa.weight"), [d, latent]),
        ParameterSpec::gain(field("self_attn.kv_a_layernorm.gamma"), kv_lora_rank),
        ParameterSpec::matrix(field("self_attn.kv_b_proj.weight"), [kv_lora_rank, keys]).sharded(TensorShard::COLUMNS),
        ParameterSpec::matrix(field("self_attn.o_proj.weight"), [values, d]).sharded(TensorShard::ROWS),
        ParameterSpec::gain(field("post_attention_layernorm.gamma"), d),
    ]);
    match layer < shape.first_k_dense_replace {
        true => all.extend(swiglu(&field("mlp.Dense"), d, shape.intermediate_size)),
        false => all.extend(moe_parameters(&field("mlp.Moe"), d, moe)),
    }
    all
}

/// The parameters of multi-token prediction module `k`.
fn module(shape: &DeepSeekConfig, moe: &MoeConfig, k: usize) -> Vec<ParameterSpec> {
    let (d, name) = (shape.hidden_size, |field: &str| format!("mtp.{k}.{field}"));
    let mut all = vec![
        ParameterSpec::gain(name("enorm.gamma"), d),
        ParameterSpec::gain(name("hnorm.gamma"), d),
        ParameterSpec::matrix(name("eh_proj.weight"), [d.saturating_mul(2), d]),
    ];
    all.extend(block(shape, moe, &name("block"), shape.num_hidden_layers.saturating_add(k)));
    all.push(ParameterSpec::gain(name("norm.gamma"), d));
    all
}
