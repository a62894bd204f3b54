//! Multi-head latent attention.

use crate::layers::ring::{Keys, Ring};
use crate::{DeepSeekConfig, MicroBatch, Parallel, RmsNorm, Rope};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use fused::{latent_attention, linear};
use moe::gathered_rows;

/// Epsilon of the norms of the compressed query and keys. DeepSeek's and Hugging Face's code fix it, independent of
/// `rms_norm_eps`.
const LATENT_NORM_EPS: f64 = 1e-6;

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// The keys and values of all heads are expanded from one compressed latent. Positions enter through a separate rotated
/// part.
///
/// ```text
/// x ─ q_a ─ norm ─ q_b ──> per head [q_nope | q_rope]                    (only q_proj without q_lora_rank)
/// x ─ kv_a ─> [latent | k_rope]    latent ─ norm ─ kv_b ──> per head [k_nope | v]     (k_rope is shared by all heads)
/// ```
#[derive(Module, Debug)]
pub struct Mla {
    /// Direct query projection, without compression, `[d, heads * (nope + rope)]`.
    pub q_proj: Option<Linear>,
    /// Compression of the query, `[d, q_lora_rank]`.
    pub q_a_proj: Option<Linear>,
    /// Norm of the compressed query.
    pub q_a_layernorm: Option<RmsNorm>,
    /// Expands the compressed query, `[q_lora_rank, heads * (nope + rope)]`.
    pub q_b_proj: Option<Linear>,
    /// Compresses keys and values and projects to the shared rotated key, `[d, kv_lora_rank + rope]`.
    pub kv_a_proj_with_mqa: Linear,
    /// Norm of the latent.
    pub kv_a_layernorm: RmsNorm,
    /// Expands the latent to keys and values, `[kv_lora_rank, heads * (nope + v)]`.
    pub kv_b_proj: Linear,
    /// Output projection, `[heads * v, d]`.
    pub o_proj: Linear,
    #[module(skip)]
    pub(super) config: DeepSeekConfig,
    #[module(skip)]
    pub(super) rope: Rope,
}

impl Mla {
    /// All layers share `positions`.
    pub(super) fn new(config: &DeepSeekConfig, positions: &Rope, device: &Device) -> Self {
        let DeepSeekConfig { hidden_size: d, num_attention_heads: heads, kv_lora_rank, .. } = *config;
        let (nope, rope, v) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let projection = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let norm = |width| RmsNorm::new(width, LATENT_NORM_EPS, device);
        let rank = config.q_lora_rank;
        Self {
            q_proj: rank.is_none().then(|| projection(d, heads * (nope + rope))),
            q_a_proj: rank.map(|rank| projection(d, rank)),
            q_a_layernorm: rank.map(norm),
            q_b_proj: rank.map(|rank| projection(rank, heads * (nope + rope))),
            kv_a_proj_with_mqa: projection(d, kv_lora_rank + rope),
            kv_a_layernorm: norm(kv_lora_rank),
            kv_b_proj: projection(kv_lora_rank, heads * (nope + v)),
            o_proj: projection(heads * v, d),
            config: config.clone(),
            rope: positions.clone(),
        }
    }

    /// Causal attention of the rank's rows with its heads, up to the output projection: maps `[b, s, d]` to
    /// `[b, t, heads * v]`.
    ///
    /// Each tensor-parallel rank compresses its own rows; the ranks then gather the compressed tensors: the latent, the
    /// rotated key that all heads share, and the compressed query.
    pub fn forward(&self, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> Tensor<3> {
        let (rank, rope) = (self.config.kv_lora_rank, self.config.qk_rope_head_dim);
        let (query_input, query) = self.query(x_bsd.clone());
        let [latent_bsr, k_rope] = parts(x_bsd, &self.kv_a_proj_with_mqa, [rank, rope]);
        let latent_bsr = self.kv_a_layernorm.forward(latent_bsr);
        let [query_input, latent] = [query_input, latent_bsr].map(|own| parallel.sequences.tp.gather_again(own));
        let k_rope = parallel.sequences.tp.gather(k_rope);
        let q = linear(gathered_rows(&query_input), query.weight.val(), None);
        let ([b, t, _], heads) = (k_rope.dims(), parallel.sequences.tp.part(self.config.num_attention_heads).len());
        let (scale, cp) = (softmax_scale(&self.config), &parallel.sequences.cp);
        let (weight, device) = (self.kv_b_proj.weight.val(), k_rope.device());
        if cp.is_alone() {
            let kv = linear(gathered_rows(&latent), weight, None);
            return latent_attention(q, kv, k_rope, &self.rope.first(t, &device), heads, scale, batch.first_keys());
        }
        let positions: Vec<usize> = cp.chunks(t * cp.size()).into_iter().flatten().collect();
        let positions = self.rope.at(&positions, &device);
        let nope = self.config.qk_nope_head_dim;
        let q_bthw = q.reshape([b, t, heads, nope + rope]);
        let q_rope = fused::rope(q_bthw.clone().slice_dim(3, nope..nope + rope).swap_dims(1, 2), &positions);
        let q_bthw = Tensor::cat(vec![q_bthw.slice_dim(3, 0..nope), q_rope.swap_dims(1, 2)], 3);
        let k_rope = fused::rope(k_rope.reshape([b, 1, t, rope]), &positions).reshape([b, t, rope]);
        let keys = Keys::Latent { weight: weight.clone().inner(), heads, nope, rope };
        let ring = Ring { cp: cp.clone(), keys, scale, first_keys: batch.first_keys().cloned(), dropout: None };
        ring.forward(q_bthw, Tensor::cat(vec![latent.x_btd, k_rope], 2), Some(weight))
    }

    /// The last projection to the query, with its input.
    pub(super) fn query(&self, x_btd: Tensor<3>) -> (Tensor<3>, &Linear) {
        match (&self.q_proj, &self.q_a_proj, &self.q_a_layernorm, &self.q_b_proj) {
            (Some(q), ..) => (x_btd, q),
            (None, Some(a), Some(norm), Some(b)) => (norm.forward(linear(x_btd, a.weight.val(), None)), b),
            _ => unreachable!("a query is projected directly or through its compression"),
        }
    }
}

/// The softmax scale: `1/sqrt(nope + rope)`, multiplied with YaRN by `m^2`, where `m = 0.1 * mscale_all_dim *
/// ln(factor) + 1`.
pub(super) fn softmax_scale(config: &DeepSeekConfig) -> f64 {
    let scale = ((config.qk_nope_head_dim + config.qk_rope_head_dim) as f64).powf(-0.5);
    config.rope_scaling.as_ref().map_or(scale, |yarn| scale * yarn.softmax_factor())
}

/// Projects `[b, t, in]` to two parts, `[b, t, width]` each.
///
/// The function slices the matrix rather than its product, because the gradient of a slice is as large as the tensor it
/// was cut from.
fn parts(x: Tensor<3>, projection: &Linear, [first, second]: [usize; 2]) -> [Tensor<3>; 2] {
    let from = x.dims()[2];
    [0..first, first..first + second]
        .map(|columns| linear(x.clone(), projection.weight.val().slice([0..from, columns]), None))
}
