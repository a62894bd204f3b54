//! Llama as a [`Decoder`]: the list of its calls (the embedding, each block, and the head), and generation with a
//! cache.
//!
//! With a separate output matrix, the head is one call. If the output matrix is the embedding, the head's unit holds
//! the final norm only, and a second call of the embedding's unit computes the loss.

use super::{Llama, LlamaBlock, LlamaHead, tied_losses};
use crate::cache::{Chunk, LayerCache};
use crate::{Batch, Decoder, Training};
use burn::tensor::{Int, Tensor};
use fsdp::Calls;
use fused::{embedding, linear, linear_transposed};

impl Decoder for Llama {
    fn calls(&self, training: &Training) -> Calls<Self, Batch> {
        let (mut calls, vocab) = (Calls::new(), self.config.vocab_size);
        training.add_embedding(&mut calls, |llama: &Self| &llama.embed, vocab);
        training.add_blocks(&mut calls, (|llama: &Self| &llama.blocks, self.blocks.len()), LlamaBlock::forward_over);
        let (of, tp) = (training.clone(), training.parallel.sequences.tp.clone());
        match self.head.lm_head {
            None => {
                calls.then("head", |llama: &Self| &llama.head, |head, x_bsd: Tensor<3>, _| head.norm.forward(x_bsd));
                calls.last(
                    "embed",
                    |llama: &Self| &llama.embed,
                    move |table, normed_bsd, batch| {
                        of.main_loss(batch, |targets, coef| tied_losses(table, normed_bsd, targets, coef, vocab, &tp))
                    },
                );
            }
            Some(_) => calls.last(
                "head",
                |llama: &Self| &llama.head,
                move |head: &LlamaHead, x_bsd, batch| {
                    of.main_loss(batch, |targets, coef| head.losses(x_bsd, targets, coef, vocab, &tp))
                },
            ),
        }
        calls
    }

    fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn max_positions(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn head_logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let normed_btd = self.head.norm.forward(x_btd);
        match &self.head.lm_head {
            Some(lm_head) => linear(normed_btd, lm_head.weight.val(), None),
            None => linear_transposed(normed_btd, self.embed.weight.val()),
        }
    }

    fn embed_cached(&self, tokens_bt: Tensor<2, Int>, _: &Chunk) -> Tensor<3> {
        embedding(self.embed.weight.val(), tokens_bt)
    }

    fn block_cached(&self, block: usize, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        self.blocks[block].forward_cached(x_btd, layer, chunk)
    }
}
