//! DeepSeek as a [`Decoder`]: the list of its calls, and generation with a cache. The calls are the embedding, each
//! block, and those after them: its head, or with multi-token prediction the parts it is split into.
//!
//! ```text
//! depth 0     head
//! depth D     head.norm | embed                | mtp.0                 ..  mtp.D-1             | head.lm_head
//! width       d         | [h^0, e^1, .., e^D]  | [h^0, h^1, e^2, ..]       [h^0, h^1, .., h^D] | all losses
//! ```
//!
//! A call has one part and passes on one tensor. So the second call of `embed` appends the embeddings `e^k` of the
//! tokens `k` positions ahead to the output of the blocks, and each module replaces `e^k` with its `h^k`. In evaluation
//! all of them just pass on `h^0`.

use super::{Block, DeepSeek, Mtp, OutputMatrix, mtp};
use crate::cache::{Chunk, LayerCache};
use crate::layers::vocabulary;
use crate::{Batch, Decoder, MtpBatch, Training};
use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};
use fsdp::{Calls, Loss};
use fused::embedding;

impl Decoder for DeepSeek {
    fn calls(&self, training: &Training) -> Calls<Self, Batch> {
        let (mut calls, vocab) = (Calls::new(), self.config.vocab_size);
        training.add_embedding(&mut calls, |deepseek: &Self| &deepseek.embed, vocab);
        training.add_blocks(&mut calls, (|deepseek: &Self| &deepseek.blocks, self.blocks.len()), Block::forward_over);
        let (of, tp) = (training.clone(), training.parallel.sequences.tp.clone());
        if self.mtp.is_empty() {
            calls.last(
                "head",
                |deepseek: &Self| &deepseek.head,
                move |head, x_bsd, batch| of.main_loss(batch, |targets, coef| head.losses(x_bsd, targets, coef, &tp)),
            );
            return calls;
        }
        calls.then("head.norm", |deepseek: &Self| &deepseek.head.norm, |norm, x_bsd: Tensor<3>, _| norm.forward(x_bsd));
        let of_embed = tp.clone();
        calls.then(
            "embed",
            |deepseek: &Self| &deepseek.embed,
            move |table: &Embedding, h_bsd, batch: &Batch| {
                let ahead = |tokens: &MtpBatch| {
                    vocabulary::embed(&of_embed, table.weight.val(), tokens.tokens_bt.clone(), vocab)
                };
                Tensor::cat(std::iter::once(h_bsd).chain(batch.mtp.iter().map(ahead)).collect(), 2)
            },
        );
        for k in 0..self.mtp.len() {
            let (of, layer) = (training.clone(), self.blocks.len() + k);
            calls.then(
                format!("mtp.{k}"),
                move |deepseek: &Self| &deepseek.mtp[k],
                move |module, x_bsw, batch| predict_ahead(module, x_bsw, batch, &of, [k, layer]),
            );
        }
        calls.last(
            "head.lm_head",
            |deepseek: &Self| &deepseek.head.lm_head,
            move |lm_head, x_bsw, batch| {
                all_losses(&OutputMatrix { lm_head, vocab_size: vocab, tp: &tp }, x_bsw, batch, &of)
            },
        );
        calls
    }

    fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn max_positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn head_logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        self.head.logits(x_btd)
    }

    fn embed_cached(&self, tokens_bt: Tensor<2, Int>, _: &Chunk) -> Tensor<3> {
        embedding(self.embed.weight.val(), tokens_bt)
    }

    fn block_cached(&self, block: usize, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        self.blocks[block].forward_cached(x_btd, layer, chunk)
    }
}

/// Replaces the embeddings of module `k` with the module's output.
fn predict_ahead(
    module: &Mtp,
    x_bsw: Tensor<3>,
    batch: &Batch,
    training: &Training,
    [k, layer]: [usize; 2],
) -> (Tensor<3>, Option<Tensor<1>>) {
    if batch.mtp.is_empty() {
        return (x_bsw, None);
    }
    let mut parts = x_bsw.chunk(batch.mtp.len() + 1, 2);
    let (h_bsd, embeddings_bsd) = (parts[k].clone(), parts[k + 1].clone());
    let output = module.forward_over(h_bsd, embeddings_bsd, &batch.micro, &training.parallel);
    output.record(&training.loads, layer, &batch.micro);
    parts[k + 1] = output.x_btd;
    (Tensor::cat(parts, 2), output.aux_loss)
}

/// The main loss of `h^0`, plus its z-loss and `coef / depth` times the losses of the modules.
fn all_losses(output: &OutputMatrix, x_bsw: Tensor<3>, batch: &Batch, training: &Training) -> Loss {
    let depth = batch.mtp.len();
    let mut parts = x_bsw.chunk(depth + 1, 2).into_iter();
    let h_bsd = parts.next().expect("one part at least");
    let main = training.main_loss(batch, |targets, coef| output.losses(h_bsd, targets, coef));
    if training.mtp_loss_coef == 0.0 {
        return main;
    }
    let further = parts.zip(&batch.mtp).filter_map(|(h_bsd, of)| mtp::loss(of, output, h_bsd));
    let further = further.map(|loss| loss * (training.mtp_loss_coef / depth as f64));
    Loss { aux: main.aux.into_iter().chain(further).reduce(|sum, loss| sum + loss), ..main }
}
