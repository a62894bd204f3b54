use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

/// Causal attention `softmax(mask(q k^T * scale)) v`, each head on its own.
///
/// # Shapes
/// `q`, `k`: `[b, heads, t, d]`; `v` and the result: `[b, heads, t, dv]`.
pub fn causal_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, scale: f64) -> Tensor<4> {
    let t = q.dims()[2];
    // Burn's `tril_mask` is *false* on and below the diagonal: it marks the future, key > query.
    let future_tt = Tensor::<2, Bool>::tril_mask([t, t], 0, &q.device());
    let scores_bhtt = q.matmul(k.swap_dims(2, 3)) * scale;
    let masked = scores_bhtt.mask_fill(future_tt.unsqueeze(), f32::NEG_INFINITY);
    softmax(masked, 3).matmul(v)
}
