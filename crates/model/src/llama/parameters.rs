//! The parameters of a Llama.

use crate::layers::mixture::{moe_parameters, swiglu};
use crate::{LlamaConfig, ParameterSpec};
use comm::TensorShard;
use moe::MoeConfig;

/// All parameters of a Llama, in the order in which its modules are visited.
///
/// The vocabulary of embedding and output matrix is split among tensor-parallel ranks; see also `block`.
pub fn parameters(shape: &LlamaConfig, moe: Option<&MoeConfig>) -> Vec<ParameterSpec> {
    let LlamaConfig { vocab_size, hidden_size: d, num_hidden_layers, tie_word_embeddings: tied, .. } = *shape;
    // A tied embedding is also the output matrix, so a token passes through it once.
    let embed = if tied { ParameterSpec::matrix } else { ParameterSpec::table };
    let mut all = vec![embed("embed.weight", [vocab_size, d]).sharded(TensorShard::ROWS)];
    all.extend((0..num_hidden_layers).flat_map(|layer| block(shape, moe, layer)));
    all.push(ParameterSpec::gain("head.norm.gamma", d));
    let lm_head = || ParameterSpec::matrix("head.lm_head.weight", [d, vocab_size]).sharded(TensorShard::COLUMNS);
    all.extend((!tied).then(lm_head));
    all
}

/// The parameters of a block. Tensor-parallel ranks split heads and the columns of the dense and the shared SwiGLU.
/// Every rank has the norms and the router.
fn block(shape: &LlamaConfig, moe: Option<&MoeConfig>, layer: usize) -> Vec<ParameterSpec> {
    let d = shape.hidden_size;
    let field = |field: &str| format!("blocks.{layer}.{field}");
    let width = |heads: usize| heads.saturating_mul(shape.head_dim());
    let [q, k] = [shape.num_attention_heads, shape.num_key_value_heads].map(width);
    let projection = |name: &str, to: usize| {
        let weight =
            ParameterSpec::matrix(field(&format!("self_attn.{name}.weight")), [d, to]).sharded(TensorShard::COLUMNS);
        let bias = ParameterSpec::bias(field(&format!("self_attn.{name}.bias")), to)
            .sharded(TensorShard { dim: 0, blocks: 1 });
        [weight].into_iter().chain(shape.qkv_bias.then_some(bias))
    };
    let mut all = vec![ParameterSpec::gain(field("input_layernorm.gamma"), d)];
    all.extend([("q_proj", q), ("k_proj", k), ("v_proj", k)].into_iter().flat_map(|(name, to)| projection(name, to)));
    all.push(ParameterSpec::matrix(field("self_attn.o_proj.weight"), [q, d]).sharded(TensorShard::ROWS));
    if shape.qk_norm {
        let gain = |name: &str| ParameterSpec::gain(field(&format!("self_attn.{name}.gamma")), shape.head_dim());
        all.extend(["q_norm", "k_norm"].map(gain));
    }
    all.push(ParameterSpec::gain(field("post_attention_layernorm.gamma"), d));
    match shape.experts_of(layer, moe) {
        Some(moe) => all.extend(moe_parameters(&field("mlp.Moe"), d, moe)),
        None => all.extend(swiglu(&field("mlp.Dense"), d, shape.intermediate_size)),
    }
    all
}
