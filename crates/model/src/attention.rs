use burn::tensor::Tensor;
use fused::causal_softmax;

/// Causal attention `softmax(mask(q k^T * scale)) v`, each head on its own. Its backward keeps one `[b, heads, t, t]`.
///
/// # Shapes
/// `q`, `k`: `[b, heads, t, d]`; `v` and the result: `[b, heads, t, dv]`.
pub fn causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64) -> Tensor<4> {
    causal_probabilities(q, k, scale).matmul(v)
}

/// `softmax(mask(q k^T * scale))`: how much each position takes of each, `[b, heads, t, t]`.
pub(crate) fn causal_probabilities(q: Tensor<4>, k: Tensor<4>, scale: f64) -> Tensor<4> {
    causal_softmax(q.matmul(k.swap_dims(2, 3)), scale)
}
