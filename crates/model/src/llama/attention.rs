//! Grouped-query attention with rotary positions.

use crate::cache::{Chunk, LayerCache};
use crate::layers::ring::{Keys, Ring};
use crate::{LlamaConfig, MicroBatch, Parallel, RmsNorm, Rope};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use comm::Gathered;
use fused::{RopeTable, Rows, causal_attention, linear, rope_halves};
use moe::gathered_rows;

/// Causal attention in which several query heads share a head of keys and values (arXiv 2305.13245).
///
/// ```text
/// x ─ q_proj ─ [q_norm] ─ rotation ─┐
/// x ─ k_proj ─ [k_norm] ─ rotation ─┼─ attention within the window ─ o_proj
/// x ─ v_proj ───────────────────────┘
/// ```
#[derive(Module, Debug)]
pub struct LlamaAttention {
    /// `[d, heads * head_dim]`, with a bias if the configuration says so, like `k_proj` and `v_proj`.
    pub q_proj: Linear,
    /// `[d, kv_heads * head_dim]`
    pub k_proj: Linear,
    /// `[d, kv_heads * head_dim]`
    pub v_proj: Linear,
    /// `[heads * head_dim, d]`
    pub o_proj: Linear,
    /// Norm of each head's query, `[head_dim]`.
    pub q_norm: Option<RmsNorm>,
    /// Norm of each head's key, `[head_dim]`.
    pub k_norm: Option<RmsNorm>,
    /// Query heads of all ranks.
    heads: usize,
    /// Heads of keys and values of all ranks.
    kv_heads: usize,
    head_dim: usize,
    #[module(skip)]
    window: Option<usize>,
    #[module(skip)]
    rope: Rope,
    context: usize,
}

impl LlamaAttention {
    /// The attention of block `layer`; all blocks share `positions`.
    pub(super) fn new(config: &LlamaConfig, positions: &Rope, layer: usize, device: &Device) -> Self {
        let LlamaConfig { hidden_size: d, num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = *config;
        let (head_dim, bias) = (config.head_dim(), config.qkv_bias);
        let projection = |heads| LinearConfig::new(d, heads * head_dim).with_bias(bias).init(device);
        let norm = || config.qk_norm.then(|| RmsNorm::new(head_dim, config.rms_norm_eps, device));
        Self {
            q_proj: projection(heads),
            k_proj: projection(kv_heads),
            v_proj: projection(kv_heads),
            o_proj: LinearConfig::new(heads * head_dim, d).with_bias(false).init(device),
            q_norm: norm(),
            k_norm: norm(),
            heads,
            kv_heads,
            head_dim,
            window: config.window(layer),
            rope: positions.clone(),
            context: config.max_position_embeddings,
        }
    }

    /// Attention of the rank's heads, up to the output projection: maps `[b, t, d]` to `[b, t, heads * head_dim]`.
    pub(super) fn forward(&self, x: Gathered, batch: &MicroBatch, parallel: &Parallel) -> Tensor<3> {
        let (cp, device) = (&parallel.sequences.cp, x.x_btd.device());
        let [b, t, _] = x.x_btd.dims();
        let heads = [self.heads, self.kv_heads].map(|all| parallel.sequences.tp.part(all).len());
        let positions: Vec<usize> = cp.chunks(t * cp.size()).into_iter().flatten().collect();
        let table = if cp.is_alone() { self.rope.first(t, &device) } else { self.rope.at(&positions, &device) };
        let [q, k, v] = self.projected([0; 3].map(|_| gathered_rows(&x)), heads, &table);
        let (first_keys, width) =
            (batch.first_keys_within(self.window, &positions, b, &device), heads[0] * self.head_dim);
        if cp.is_alone() {
            let [q, k, v] = [q, k, v].map(|x_bthw| x_bthw.swap_dims(1, 2));
            return causal_attention(q, k, v, self.scale(), 0, first_keys.as_ref()).reshape([b, t, width]);
        }
        let message = Tensor::cat(vec![k, v], 2).reshape([b, t, 2 * heads[1] * self.head_dim]);
        let keys = Keys::Whole { heads: heads[1] };
        Ring { cp: cp.clone(), keys, scale: self.scale(), first_keys, dropout: None }.forward(q, message, None)
    }

    /// [`forward`](Self::forward) of tokens that follow those in the cache, which holds rotated keys.
    pub(super) fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let ([b, t, _], heads) = (x_btd.dims(), [self.heads, self.kv_heads]);
        // Each sequence has its own positions: all sequences are rotated as one.
        let table = self.rope.at(&chunk.positions(self.context), &x_btd.device());
        let rows = x_btd.reshape([1, b * t, 0]);
        let [q, k, v] = self.projected([0; 3].map(|_| rows.clone().into()), heads, &table);
        let by_head = |x: Tensor<4>| {
            let [_, _, heads, width] = x.dims();
            x.reshape([b, t, heads, width]).swap_dims(1, 2)
        };
        let keys_and_values = layer.append([by_head(k), by_head(v)], chunk);
        let y_bthw = chunk.attention(by_head(q), keys_and_values, self.scale(), self.window);
        y_bthw.reshape([b, t, self.heads * self.head_dim])
    }

    /// Queries and keys, normed and rotated, and values: `[b, t, heads, head_dim]` each.
    fn projected(&self, rows: [Rows<3>; 3], [heads, kv_heads]: [usize; 2], table: &RopeTable) -> [Tensor<4>; 3] {
        let project = |rows: Rows<3>, projection: &Linear, heads: usize| {
            let y_btw = linear(rows, projection.weight.val(), projection.bias.as_ref().map(Param::val));
            let [b, t, _] = y_btw.dims();
            y_btw.reshape([b, t, heads, self.head_dim])
        };
        let normed = |x: Tensor<4>, norm: &Option<RmsNorm>| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let [q, k, v] = rows;
        [
            rope_halves(normed(project(q, &self.q_proj, heads), &self.q_norm), table),
            rope_halves(normed(project(k, &self.k_proj, kv_heads), &self.k_norm), table),
            project(v, &self.v_proj, kv_heads),
        ]
    }

    fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }
}
