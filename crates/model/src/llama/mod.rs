//! Llama (arXiv 2302.13971, 2407.21783) and models like it: Mistral, Qwen2, Qwen3, Mixtral and Qwen3-MoE.

mod attention;
mod config;
mod cost;
mod decoder;
mod family;
pub(crate) mod hf;
mod parameters;

pub use attention::LlamaAttention;
pub use config::LlamaConfig;

use crate::cache::{Chunk, LayerCache};
use crate::layers::vocabulary::VocabularyHead;
use crate::{Architecture, BlockOutput, ExpertLoads, Initial, MicroBatch, Mlp, Parallel, RmsNorm, Rope, Targets};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use comm::TensorParallel;
use fused::Losses;
use moe::MoeConfig;

/// A Llama model.
#[derive(Module, Debug)]
pub struct Llama {
    /// Token embedding, `[vocab, d]`, which may also be the output matrix.
    pub embed: Embedding,
    /// The transformer blocks.
    pub blocks: Vec<LlamaBlock>,
    /// Final norm, and the output matrix unless it is the embedding.
    pub head: LlamaHead,
    #[module(skip)]
    config: LlamaConfig,
}

/// `x + attn(norm(x))`, then `x + mlp(norm(x))`; the MLP is dense or a mixture of experts.
#[derive(Module, Debug)]
pub struct LlamaBlock {
    /// Norm before the attention.
    pub input_layernorm: RmsNorm,
    /// Grouped-query attention.
    pub self_attn: LlamaAttention,
    /// Norm before the MLP.
    pub post_attention_layernorm: RmsNorm,
    /// A dense SwiGLU, or experts.
    pub mlp: Mlp,
    layer: usize,
}

/// Final norm and output matrix.
#[derive(Module, Debug)]
pub struct LlamaHead {
    /// Final norm.
    pub norm: RmsNorm,
    /// Output matrix, `[d, vocab]`; `None` if it is the token embedding.
    pub lm_head: Option<Linear>,
}

impl Llama {
    /// Returns a model whose parameters are generated from `seed` when they are first read.
    pub fn init(config: &LlamaConfig, moe: Option<&MoeConfig>, seed: u64, device: &Device) -> Self {
        Self::initial(config, moe, seed).give(Self::new(config, moe, device))
    }

    /// The initialization that [`init`](Self::init) applies.
    pub fn initial(config: &LlamaConfig, moe: Option<&MoeConfig>, seed: u64) -> Initial {
        Initial::new(LlamaConfig::TYPE, seed, parameters::parameters(config, moe))
    }

    /// Returns the model with its selection biases updated after an optimizer step on one device, given the loads that
    /// the step's [`calls`](crate::Decoder::calls) have recorded; see
    /// [`MoeLayer::update_bias`](moe::MoeLayer::update_bias). Sharded runs use [`layer_loads`](crate::layer_loads)
    /// instead.
    pub fn update_biases(mut self, loads: &ExpertLoads) -> Self {
        let blocks = self.blocks.iter_mut().enumerate();
        loads.update_biases(blocks.filter_map(|(layer, block)| Some((layer, block.mlp.moe_mut()?))));
        self
    }

    /// Returns a model whose parameters are not set yet.
    pub fn new(config: &LlamaConfig, moe: Option<&MoeConfig>, device: &Device) -> Self {
        let (d, vocab, width, theta) = (config.hidden_size, config.vocab_size, config.head_dim(), config.rope_theta);
        let scaling = config.rope_scaling.as_ref();
        let positions = scaling.map_or_else(|| Rope::plain(width, theta), |scaling| scaling.rope(width, theta));
        let lm_head = || LinearConfig::new(d, vocab).with_bias(false).init(device);
        Self {
            embed: EmbeddingConfig::new(vocab, d).init(device),
            blocks: (0..config.num_hidden_layers)
                .map(|layer| LlamaBlock::new(config, moe, &positions, layer, device))
                .collect(),
            head: LlamaHead {
                norm: RmsNorm::new(d, config.rms_norm_eps, device),
                lm_head: (!config.tie_word_embeddings).then(lm_head),
            },
            config: config.clone(),
        }
    }
}

impl LlamaBlock {
    fn new(config: &LlamaConfig, moe: Option<&MoeConfig>, positions: &Rope, layer: usize, device: &Device) -> Self {
        let d = config.hidden_size;
        let norm = || RmsNorm::new(d, config.rms_norm_eps, device);
        Self {
            input_layernorm: norm(),
            self_attn: LlamaAttention::new(config, positions, layer, device),
            post_attention_layernorm: norm(),
            mlp: match config.experts_of(layer, moe) {
                Some(moe) => Mlp::experts(d, moe, device),
                None => Mlp::dense(d, config.intermediate_size, device),
            },
            layer,
        }
    }

    /// Maps the rank's rows, `[b, s, d]` to `[b, s, d]`.
    pub fn forward_over(&self, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> BlockOutput {
        let normed = parallel.sequences.tp.gather_again(self.input_layernorm.forward(x_bsd.clone()));
        let y = self.self_attn.forward(normed, batch, parallel);
        self.mlp(y, x_bsd, batch, parallel)
    }

    fn forward_cached(&self, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        let y = self.self_attn.forward_cached(self.input_layernorm.forward(x_btd.clone()), layer, chunk);
        self.mlp(y, x_btd, &MicroBatch::default(), &Parallel::default()).x_btd
    }

    /// The rest of the block after the heads' output `y`.
    fn mlp(&self, y: Tensor<3>, x_bsd: Tensor<3>, batch: &MicroBatch, parallel: &Parallel) -> BlockOutput {
        let tp = &parallel.sequences.tp;
        let [x_bsd, normed] = self.post_attention_layernorm.forward_sum(&self.self_attn.o_proj, y, x_bsd, tp);
        self.mlp.forward_add(normed, x_bsd, self.layer, batch, parallel)
    }
}

impl LlamaHead {
    /// Cross entropy of the next tokens and their z-loss with a separate output matrix, as the rank's share computed
    /// from its rows.
    ///
    /// # Panics
    /// If the head has no output matrix.
    pub fn losses(
        &self,
        x_bsd: Tensor<3>,
        targets: Targets,
        z_loss_coef: f64,
        vocab: usize,
        tp: &TensorParallel,
    ) -> Losses {
        let lm_head = self.lm_head.as_ref().expect("the head has an output matrix");
        let head = VocabularyHead { weight: lm_head.weight.val(), transposed: false, vocab };
        head.losses(tp, self.norm.forward(x_bsd), targets, z_loss_coef)
    }
}

/// [`LlamaHead::losses`] from the output of the final norm, with the token embedding as output matrix.
fn tied_losses(
    table: &Embedding,
    normed_bsd: Tensor<3>,
    targets: Targets,
    z_loss_coef: f64,
    vocab: usize,
    tp: &TensorParallel,
) -> Losses {
    let head = VocabularyHead { weight: table.weight.val(), transposed: true, vocab };
    head.losses(tp, normed_bsd, targets, z_loss_coef)
}
