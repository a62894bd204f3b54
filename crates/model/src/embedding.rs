use burn::nn::Embedding;
use burn::tensor::{Int, Tensor, module};
use fused::widened;

/// The tokens' rows of an embedding: `[b, t]` to `[b, t, d]`.
///
/// Gradients of bf16 and f16 rows are summed in f32: that of a frequent token has thousands of terms, and a bf16 sum no longer
/// grows at 256 times one of them.
pub fn embed(embedding: &Embedding, tokens_bt: Tensor<2, Int>) -> Tensor<3> {
    let weight_vd = embedding.weight.val();
    let dtype = weight_vd.dtype();
    module::embedding(widened(weight_vd), tokens_bt).cast(dtype)
}
