//! DeepSeek-V2/V3 (arXiv 2405.04434, 2412.19437): multi-head latent attention and a mixture of experts.

mod absorbed;
mod block;
mod config;
mod cost;
mod decoder;
mod family;
pub(crate) mod hf;
mod mla;
mod mtp;
mod parameters;
mod speculative;

pub use block::Block;
pub use config::DeepSeekConfig;
pub use mla::Mla;
pub use mtp::Mtp;
pub use speculative::{Drafts, generate_speculative};

use crate::layers::vocabulary::VocabularyHead;
use crate::{Architecture, ExpertLoads, Initial, LanguageModel, MtpBatch, RmsNorm, Rope, Targets};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use comm::TensorParallel;
use fused::{Losses, embedding, linear};
use moe::MoeConfig;

/// A DeepSeek model: embedding, blocks, head, and multi-token prediction modules.
#[derive(Module, Debug)]
pub struct DeepSeek {
    /// Token embedding, `[vocab, d]`.
    pub embed: Embedding,
    /// The transformer blocks.
    pub blocks: Vec<Block>,
    /// Final norm and output matrix.
    pub head: Head,
    /// Multi-token prediction modules, `mtp_depth` of them; only training and speculative generation use them.
    pub mtp: Vec<Mtp>,
    #[module(skip)]
    config: DeepSeekConfig,
}

/// The rotations of queries and keys, which all blocks share.
fn rope(config: &DeepSeekConfig) -> Rope {
    let (d, theta) = (config.qk_rope_head_dim, config.rope_theta);
    config.rope_scaling.as_ref().map_or_else(|| Rope::plain(d, theta), |yarn| yarn.rope(d, theta))
}

/// Final norm and output matrix.
#[derive(Module, Debug)]
pub struct Head {
    /// Final norm.
    pub norm: RmsNorm,
    /// Output matrix, `[d, vocab]`.
    pub lm_head: Linear,
    vocab_size: usize,
}

impl DeepSeek {
    /// Returns a model whose parameters are generated from `seed` when they are first read.
    pub fn init(config: &DeepSeekConfig, moe: &MoeConfig, seed: u64, device: &Device) -> Self {
        Self::initial(config, moe, seed).give(Self::new(config, moe, device))
    }

    /// The initialization that [`init`](Self::init) applies.
    pub fn initial(config: &DeepSeekConfig, moe: &MoeConfig, seed: u64) -> Initial {
        Initial::new(DeepSeekConfig::TYPE, seed, parameters::parameters(config, moe))
    }

    /// Returns the model with its selection biases updated after an optimizer step on one device, given the loads that
    /// the step's [`calls`](crate::Decoder::calls) have recorded; see
    /// [`MoeLayer::update_bias`](moe::MoeLayer::update_bias). Sharded runs use [`layer_loads`](crate::layer_loads)
    /// instead.
    pub fn update_biases(mut self, loads: &ExpertLoads) -> Self {
        let blocks = self.blocks.iter_mut().chain(self.mtp.iter_mut().map(|mtp| &mut mtp.block));
        loads.update_biases(blocks.filter_map(|block| Some((block.layer, block.mlp.moe_mut()?))));
        self
    }

    /// Returns a model whose parameters are not set yet.
    pub fn new(config: &DeepSeekConfig, moe: &MoeConfig, device: &Device) -> Self {
        let (d, vocab, positions) = (config.hidden_size, config.vocab_size, rope(config));
        Self {
            embed: EmbeddingConfig::new(vocab, d).init(device),
            blocks: (0..config.num_hidden_layers)
                .map(|layer| Block::new(config, moe, &positions, layer, device))
                .collect(),
            head: Head {
                norm: RmsNorm::new(d, config.rms_norm_eps, device),
                lm_head: LinearConfig::new(d, vocab).with_bias(false).init(device),
                vocab_size: vocab,
            },
            mtp: (0..config.mtp_depth).map(|k| Mtp::new(config, moe, &positions, k, device)).collect(),
            config: config.clone(),
        }
    }

    /// Returns the cross entropy of the next tokens, `[1]`, and one loss of the tokens after them per multi-token
    /// prediction module.
    ///
    /// `batches` come from [`MtpBatch::of_rows`] for the same rows. As in evaluation, there is no noise and no capacity
    /// limit.
    ///
    /// # Panics
    /// See [`LanguageModel::loss`].
    pub fn mtp_losses(
        &self,
        tokens_bt: Tensor<2, Int>,
        targets_bt: Tensor<2, Int>,
        batches: &[MtpBatch],
    ) -> (Tensor<1>, Vec<Option<Tensor<1>>>) {
        let mut h_btd = self.head.norm.forward(self.hidden(tokens_bt));
        let alone = TensorParallel::default();
        let output = self.head.output(&alone);
        let main = output.losses(h_btd.clone(), Targets::all(targets_bt), 0.0).cross_entropy;
        let further = self.mtp.iter().zip(batches).map(|(mtp, batch)| {
            let embeddings_btd = embedding(self.embed.weight.val(), batch.tokens_bt.clone());
            h_btd = mtp.forward(h_btd.clone(), embeddings_btd);
            mtp::loss(batch, &output, h_btd.clone())
        });
        (main, further.collect())
    }
}

impl Head {
    /// `[b, t, d]` to `[b, t, vocab]`.
    pub fn logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        linear(self.norm.forward(x_btd), self.lm_head.weight.val(), None)
    }

    /// Cross entropy of the next tokens and their z-loss, as the rank's share computed from its rows.
    pub fn losses(&self, x_bsd: Tensor<3>, targets: Targets, z_loss_coef: f64, tp: &TensorParallel) -> Losses {
        self.output(tp).losses(self.norm.forward(x_bsd), targets, z_loss_coef)
    }

    fn output<'a>(&'a self, tp: &'a TensorParallel) -> OutputMatrix<'a> {
        OutputMatrix { lm_head: &self.lm_head, vocab_size: self.vocab_size, tp }
    }
}

/// The output matrix, or a rank's columns of it.
pub struct OutputMatrix<'a> {
    /// The matrix, `[d, vocab]`.
    pub lm_head: &'a Linear,
    /// Size of the vocabulary over all ranks.
    pub vocab_size: usize,
    /// The ranks that hold the other columns.
    pub tp: &'a TensorParallel,
}

impl OutputMatrix<'_> {
    /// [`Head::losses`] from the output of the final norm, `[b, s, d]`.
    pub fn losses(&self, normed_bsd: Tensor<3>, targets: Targets, z_loss_coef: f64) -> Losses {
        self.head().losses(self.tp, normed_bsd, targets, z_loss_coef)
    }

    fn head(&self) -> VocabularyHead {
        VocabularyHead { weight: self.lm_head.weight.val(), transposed: false, vocab: self.vocab_size }
    }
}
