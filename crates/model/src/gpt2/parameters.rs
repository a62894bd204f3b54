//! The parameters of a GPT-2.

use crate::{Gpt2Config, ParameterSpec};
use comm::TensorShard;

/// The hidden width of the MLP.
pub fn inner(shape: &Gpt2Config) -> usize {
    shape.n_inner.unwrap_or(shape.n_embd.saturating_mul(4))
}

/// All parameters of a GPT-2, in the order in which its modules are visited.
///
/// Heads of `c_attn` (queries, keys and values each) and columns of `c_fc` are split among tensor-parallel ranks,
/// as are the rows of `c_proj` and the vocabulary; norms, positions and the biases added after a sum are not.
pub fn parameters(shape: &Gpt2Config) -> Vec<ParameterSpec> {
    let Gpt2Config { vocab_size, n_positions, n_layer, n_embd: d, bias, .. } = *shape;
    let norm = |name: String| {
        let beta = bias.then(|| ParameterSpec::bias(format!("{name}.beta"), d));
        [ParameterSpec::gain(format!("{name}.gamma"), d)].into_iter().chain(beta)
    };
    let columns = |name: String, [from, to]: [usize; 2], blocks| {
        let weight =
            ParameterSpec::matrix(format!("{name}.weight"), [from, to]).sharded(TensorShard::columns_of(blocks));
        let bias =
            bias.then(|| ParameterSpec::bias(format!("{name}.bias"), to).sharded(TensorShard { dim: 0, blocks }));
        [weight].into_iter().chain(bias)
    };
    let residual = (2.0 * n_layer as f32).powf(-0.5);
    let projection = |name: String, from| {
        let weight =
            ParameterSpec::matrix(format!("{name}.weight"), [from, d]).sharded(TensorShard::ROWS).scaled(residual);
        [weight].into_iter().chain(bias.then(|| ParameterSpec::bias(format!("{name}.bias"), d)))
    };
    let block = |i: usize| {
        let name = |field: &str| format!("blocks.{i}.{field}");
        norm(name("ln_1"))
            .chain(columns(name("attn.c_attn"), [d, d.saturating_mul(3)], 3))
            .chain(projection(name("attn.c_proj"), d))
            .chain(norm(name("ln_2")))
            .chain(columns(name("mlp.c_fc"), [d, inner(shape)], 1))
            .chain(projection(name("mlp.c_proj"), inner(shape)))
    };
    // The token embedding is also the output matrix, so a token passes through it once.
    let mut all = vec![
        ParameterSpec::matrix("ends.wte.weight", [vocab_size, d]).sharded(TensorShard::ROWS),
        ParameterSpec::table("ends.wpe.weight", [n_positions, d]),
    ];
    all.extend(norm("ends.ln_f".into()));
    all.extend((0..n_layer).flat_map(block));
    all
}
