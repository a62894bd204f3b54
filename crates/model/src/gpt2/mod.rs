//! GPT-2 (Radford et al., 2019): pre-norm blocks, learned positions, the output tied to the token embedding.

mod config;
mod cost;
mod decoder;
mod family;
pub(crate) mod hf;
mod parameters;

pub use config::Gpt2Config;

use crate::cache::{Chunk, LayerCache};
use crate::layers::dropout::{LayerDropout, Site};
use crate::layers::norm::project;
use crate::layers::ring::{Keys, Ring};
use crate::layers::vocabulary::{self, VocabularyHead};
use crate::{Architecture, Initial, LayerNorm, MicroBatch, Parallel, Targets};
use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use comm::Gathered;
use fused::{Losses, Rows, causal_self_attention, embedding, linear, linear_add, linear_gelu, linear_transposed};
use moe::gathered_rows;
use std::ops::Range;

/// A GPT-2 model; [`EmbeddingAndHead`] is its first and last part.
#[derive(Module, Debug)]
pub struct Gpt2 {
    /// Embeddings, final norm and (tied) head.
    pub ends: EmbeddingAndHead,
    /// The transformer blocks.
    pub blocks: Vec<Gpt2Block>,
    #[module(skip)]
    config: Gpt2Config,
}

/// Embeddings, final norm and head, in one module because the head is the token embedding.
#[derive(Module, Debug)]
pub struct EmbeddingAndHead {
    /// Token embedding and output matrix, `[vocab, d]`.
    pub wte: Embedding,
    /// Position embedding, `[n_positions, d]`.
    pub wpe: Embedding,
    /// Final norm.
    pub ln_f: LayerNorm,
    dropout: f64,
    vocab_size: usize,
}

/// `x + attn(ln_1(x))`, then `x + mlp(ln_2(x))`.
#[derive(Module, Debug)]
pub struct Gpt2Block {
    /// Norm before the attention.
    pub ln_1: LayerNorm,
    /// Attention over heads.
    pub attn: Gpt2Attention,
    /// Norm before the MLP.
    pub ln_2: LayerNorm,
    /// The MLP.
    pub mlp: Gpt2Mlp,
    layer: usize,
    dropout: f64,
}

/// Multi-head causal attention.
#[derive(Module, Debug)]
pub struct Gpt2Attention {
    /// Queries, keys and values in one matrix, `[d, 3d]`.
    pub c_attn: Linear,
    /// Output projection, `[d, d]`.
    pub c_proj: Linear,
    n_head: usize,
}

/// `c_proj(gelu(c_fc(x)))` with the tanh form of GELU.
#[derive(Module, Debug)]
pub struct Gpt2Mlp {
    /// Expansion, `[d, n_inner]`.
    pub c_fc: Linear,
    /// Projection back, `[n_inner, d]`.
    pub c_proj: Linear,
}

impl Gpt2 {
    /// Returns a model whose parameters are generated from `seed` when they are first read.
    pub fn init(config: &Gpt2Config, seed: u64, device: &Device) -> Self {
        Self::initial(config, seed).give(Self::new(config, device))
    }

    /// The initialization that [`init`](Self::init) applies.
    pub fn initial(config: &Gpt2Config, seed: u64) -> Initial {
        Initial::new(Gpt2Config::TYPE, seed, parameters::parameters(config))
    }

    /// Returns a model whose parameters are not set yet.
    pub fn new(config: &Gpt2Config, device: &Device) -> Self {
        Self {
            ends: EmbeddingAndHead::new(config, device),
            blocks: (0..config.n_layer).map(|layer| Gpt2Block::new(config, layer, device)).collect(),
            config: config.clone(),
        }
    }
}

impl EmbeddingAndHead {
    fn new(config: &Gpt2Config, device: &Device) -> Self {
        Self {
            wte: EmbeddingConfig::new(config.vocab_size, config.n_embd).init(device),
            wpe: EmbeddingConfig::new(config.n_positions, config.n_embd).init(device),
            ln_f: layer_norm(config, device),
            dropout: config.dropout,
            vocab_size: config.vocab_size,
        }
    }

    /// `wte[token] + wpe[position]`: maps `[b, t]` to the rank's rows `[b, s, d]`.
    pub fn embed(&self, tokens_bt: Tensor<2, Int>, batch: &MicroBatch, parallel: &Parallel) -> Tensor<3> {
        let (tp, wpe) = (&parallel.sequences.tp, self.wpe.weight.val());
        let t = tokens_bt.dims()[1];
        let x_bsd = vocabulary::embed(tp, self.wte.weight.val(), tokens_bt, self.vocab_size);
        let rows = parallel.sequences.rows(x_bsd.dims()[1]);
        let positions = match (&batch.documents, &rows[..]) {
            (Some(documents), _) => embedding(wpe, documents.positions_bt.clone().slice_dim(1, tp.part(t))),
            (None, [rows]) if batch.padding == 0 => wpe.slice(rows.clone()).unsqueeze(),
            (None, _) => {
                // Padding has no position: the table may have no row for it.
                let ([_, s, d], end) = (x_bsd.dims(), parallel.sequences.padded(batch.padding).whole(x_bsd.dims()[1]));
                let filled = rows.iter().map(|rows| rows.start.min(end)..rows.end.min(end));
                let filled: Vec<_> = filled.filter(|rows| !rows.is_empty()).collect();
                let missing = s - filled.iter().map(Range::len).sum::<usize>();
                let none = (missing > 0).then(|| Tensor::zeros([missing, d], (&wpe.device(), wpe.dtype())));
                let rows = filled.into_iter().map(|rows| wpe.clone().slice(rows)).chain(none);
                Tensor::cat(rows.collect(), 0).unsqueeze()
            }
        };
        let x_bsd = x_bsd + positions;
        LayerDropout { dropout: batch.step, p: self.dropout, layer: 0 }.apply(x_bsd, Site::Embedding, &rows)
    }

    /// [`embed`](Self::embed) without dropout, for tokens at these positions.
    fn embed_at(&self, tokens_bt: Tensor<2, Int>, positions: Vec<usize>) -> Tensor<3> {
        let positions: Vec<i64> = positions.into_iter().map(|position| position as i64).collect();
        let positions = TensorData::new(positions, tokens_bt.dims());
        let positions_bt = Tensor::<2, Int>::from_data(positions, &tokens_bt.device());
        embedding(self.wte.weight.val(), tokens_bt) + embedding(self.wpe.weight.val(), positions_bt)
    }

    /// `ln_f(x) wte^T`: maps `[b, t, d]` to `[b, t, vocab]`.
    pub fn logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        linear_transposed(self.ln_f.forward(x_btd), self.wte.weight.val())
    }

    /// Cross entropy of the next tokens and their z-loss, as the rank's share computed from its rows.
    pub fn losses(&self, x_bsd: Tensor<3>, targets: Targets, z_loss_coef: f64, parallel: &Parallel) -> Losses {
        let head = VocabularyHead { weight: self.wte.weight.val(), transposed: true, vocab: self.vocab_size };
        head.losses(&parallel.sequences.tp, self.ln_f.forward(x_bsd), targets, z_loss_coef)
    }
}

impl Gpt2Block {
    fn new(config: &Gpt2Config, layer: usize, device: &Device) -> Self {
        let d = config.n_embd;
        let inner = config.n_inner.unwrap_or(4 * d);
        let linear = |from, to| LinearConfig::new(from, to).with_bias(config.bias).init(device);
        Self {
            ln_1: layer_norm(config, device),
            attn: Gpt2Attention { c_attn: linear(d, 3 * d), c_proj: linear(d, d), n_head: config.n_head },
            ln_2: layer_norm(config, device),
            mlp: Gpt2Mlp { c_fc: linear(d, inner), c_proj: linear(inner, d) },
            layer,
            dropout: config.dropout,
        }
    }

    /// Maps the rank's rows, `[b, s, d]` to `[b, s, d]`.
    pub fn forward(&self, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> Tensor<3> {
        let dropout = LayerDropout { dropout: batch.step, p: self.dropout, layer: self.layer };
        let normed = parallel.sequences.tp.gather_again(self.ln_1.forward(x_bsd.clone()));
        let y = self.attn.forward(normed, batch, dropout, parallel);
        self.mlp(y, x_bsd, dropout, parallel)
    }

    fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let none = LayerDropout { dropout: None, p: 0.0, layer: self.layer };
        let y_btd = self.attn.forward_cached(self.ln_1.forward(x_btd.clone()), layer, chunk);
        self.mlp(y_btd, x_btd, none, &Parallel::default())
    }

    /// The rest of the block after the heads' output `y`.
    fn mlp(&self, y: Tensor<3>, x_bsd: Tensor<3>, dropout: LayerDropout, parallel: &Parallel) -> Tensor<3> {
        let (tp, rows) = (&parallel.sequences.tp, parallel.sequences.rows(x_bsd.dims()[1]));
        let dropped = |y_bsd: Tensor<3>, place| dropout.apply(y_bsd, place, &rows);
        let [x_bsd, normed] = match dropout.is_none() {
            true => self.ln_2.forward_sum(&self.attn.c_proj, y, x_bsd, tp),
            false => {
                let x_bsd = x_bsd + dropped(project(tp, &self.attn.c_proj, y), Site::AttentionOutput);
                [x_bsd.clone(), self.ln_2.forward(x_bsd)]
            }
        };
        let (h, projection) = (self.mlp.forward(tp.gather_again(normed)), &self.mlp.c_proj);
        match dropout.is_none() && tp.is_alone() {
            true => linear_add(h, projection.weight.val(), projection.bias.as_ref().map(Param::val), x_bsd),
            false => x_bsd + dropped(project(tp, projection, h), Site::MlpOutput),
        }
    }
}

impl Gpt2Attention {
    /// Attention of the rank's heads, up to the output projection.
    fn forward(&self, x: Gathered, batch: &MicroBatch, dropout: LayerDropout, parallel: &Parallel) -> Tensor<3> {
        let ([b, t, d], heads) = (x.x_btd.dims(), parallel.sequences.tp.part(self.n_head));
        let (qkv, dropped) = (apply(&self.c_attn, gathered_rows(&x)), dropout.key(Site::Attention));
        let (head, n) = (d / self.n_head, heads.len());
        let scale = (head as f64).powf(-0.5);
        // The dropout mask depends on the length without padding.
        let (first_keys, length) = (batch.first_keys(), t * parallel.sequences.cp.size() - batch.padding);
        if parallel.sequences.cp.is_alone() {
            let dropped = dropped.map(|(p, key)| (p, key.at_index(heads.start * length * length)));
            if batch.padding == 0 {
                return causal_self_attention(qkv, n, scale, dropped, first_keys);
            }
            let first_keys = first_keys.map(|first_keys_bt| first_keys_bt.clone().slice_dim(1, 0..length));
            let none = Tensor::zeros([b, batch.padding, n * head], (&qkv.device(), qkv.dtype()));
            let y = causal_self_attention(qkv.slice_dim(1, 0..length), n, scale, dropped, first_keys.as_ref());
            return Tensor::cat(vec![y, none], 1);
        }
        let dropout = dropped.map(|(p, key)| (p, key, heads.start, length));
        let q_bthd = qkv.clone().slice_dim(2, 0..n * head).reshape([b, t, n, head]);
        let (cp, first_keys) = (parallel.sequences.cp.clone(), first_keys.cloned());
        let ring = Ring { cp, keys: Keys::Whole { heads: n }, scale, first_keys, dropout };
        ring.forward(q_bthd, qkv.slice_dim(2, n * head..3 * n * head), None)
    }

    /// Slices the product, not the matrix: there is no gradient here, and slicing would copy the matrix for every
    /// token.
    fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let (n, head) = (self.n_head, d / self.n_head);
        let qkv = apply(&self.c_attn, x_btd).reshape([b, t, 3 * n, head]).swap_dims(1, 2);
        let [q_bhtd, k_bhtd, v_bhtd] = [0, n, 2 * n].map(|from| qkv.clone().slice([0..b, from..from + n]));
        let keys_and_values = layer.append([k_bhtd, v_bhtd], chunk);
        chunk.attention(q_bhtd, keys_and_values, (head as f64).powf(-0.5), None).reshape([b, t, d])
    }
}

impl Gpt2Mlp {
    /// The expansion and GELU, without the projection back.
    fn forward(&self, x: Gathered) -> Tensor<3> {
        linear_gelu(gathered_rows(&x), self.c_fc.weight.val(), self.c_fc.bias.as_ref().map(Param::val))
    }
}

fn layer_norm(config: &Gpt2Config, device: &Device) -> LayerNorm {
    LayerNorm::new(config.n_embd, config.bias, config.layer_norm_epsilon, device)
}

fn apply(layer: &Linear, x: impl Into<Rows<3>>) -> Tensor<3> {
    linear(x, layer.weight.val(), layer.bias.as_ref().map(Param::val))
}
