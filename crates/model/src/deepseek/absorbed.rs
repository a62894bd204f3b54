//! Multi-head latent attention with a cache of latents.

use super::Mla;
use super::mla::softmax_scale;
use crate::cache::{Chunk, LayerCache};
use burn::tensor::Tensor;
use fused::linear;

impl Mla {
    /// [`forward`](Mla::forward) for new tokens, without materializing keys and values.
    ///
    /// The cache holds latents. The matrices that expand a latent to keys and values are absorbed into the query and
    /// the output (arXiv 2405.04434, section 2.1.2):
    ///
    /// ```text
    /// q_nope . k_nope = q_nope . (latent W_UK) = (q_nope W_UK^T) . latent
    /// sum_c p[c] v[c] = sum_c p[c] (latent[c] W_UV) = (sum_c p[c] latent[c]) W_UV
    /// ```
    ///
    /// A token therefore takes `kv_lora_rank + qk_rope_head_dim` cached numbers, however many heads there are.
    pub(super) fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let [b, t, _] = x_btd.dims();
        let (heads, rank) = (self.config.num_attention_heads, self.config.kv_lora_rank);
        let (nope, rope, v) = (self.config.qk_nope_head_dim, self.config.qk_rope_head_dim, self.config.v_head_dim);
        let n = b * t; // each head multiplies all sequences at once
        let positions = chunk.positions(self.config.max_position_embeddings);
        let positions = self.rope.at(&positions, &x_btd.device());

        let [w_uk_hnr, w_uv_hrv] = self.absorbed(heads, rank, nope, v);
        let (query_input, query) = self.query(x_btd.clone());
        let q_hnw = linear(query_input, query.weight.val(), None).reshape([1, n, heads, nope + rope]).swap_dims(1, 2);
        let q_nope = q_hnw.clone().slice([0..1, 0..heads, 0..n, 0..nope]);
        let q_rope = fused::rope(q_hnw.slice([0..1, 0..heads, 0..n, nope..nope + rope]), &positions);
        let q_hnw = Tensor::cat(vec![q_nope.matmul(w_uk_hnr), q_rope], 3);
        let q_bhtw = q_hnw.reshape([heads, b, t, rank + rope]).swap_dims(0, 1);

        let kv_bt = linear(x_btd, self.kv_a_proj_with_mqa.weight.val(), None);
        let latent = self.kv_a_layernorm.forward(kv_bt.clone().slice([0..b, 0..t, 0..rank])).reshape([b, 1, t, rank]);
        let k_rope = kv_bt.slice([0..b, 0..t, rank..rank + rope]).reshape([1, 1, n, rope]);
        let k_rope = fused::rope(k_rope, &positions).reshape([b, 1, t, rope]);
        let [keys] = layer.append([Tensor::cat(vec![latent, k_rope], 3)], chunk);

        // All heads share the same keys, whose first part also serves as the values. For a single token, the heads
        // become that many queries.
        let latents = keys.clone().slice_dim(3, 0..rank);
        let q = if t == 1 { q_bhtw.swap_dims(1, 2) } else { q_bhtw };
        let y_bthr = chunk.attention(q, [keys, latents], softmax_scale(&self.config), None);
        let y_hnv = y_bthr.reshape([1, n, heads, rank]).swap_dims(1, 2).matmul(w_uv_hrv);
        y_hnv.swap_dims(1, 2).reshape([b, t, heads * v])
    }

    /// `W_UK^T` `[1, heads, nope, rank]` and `W_UV` `[1, heads, rank, v]`, views of `kv_b_proj`.
    fn absorbed(&self, heads: usize, rank: usize, nope: usize, v: usize) -> [Tensor<4>; 2] {
        let weight = self.kv_b_proj.weight.val().reshape([1, rank, heads, nope + v]);
        let key = weight.clone().slice([0..1, 0..rank, 0..heads, 0..nope]).permute([0, 2, 3, 1]);
        let value = weight.slice([0..1, 0..rank, 0..heads, nope..nope + v]).permute([0, 2, 1, 3]);
        [key, value]
    }
}
