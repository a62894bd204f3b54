//! GPT-2 as a [`Decoder`]: the list of its calls, and generation with a cache. Both ends form one unit, because
//! embedding and output share their matrix. Each block is another unit.

use super::Gpt2;
use crate::cache::{Chunk, LayerCache};
use crate::{Batch, Decoder, Training};
use burn::tensor::{Int, Tensor};
use fsdp::Calls;

impl Decoder for Gpt2 {
    fn calls(&self, training: &Training) -> Calls<Self, Batch> {
        let (mut calls, of) = (Calls::new(), training.parallel.clone());
        calls.first(
            "ends",
            |gpt2: &Self| &gpt2.ends,
            move |ends, batch: &Batch| ends.embed(batch.inputs_bt.clone(), &batch.micro, &of),
        );
        for i in 0..self.blocks.len() {
            let of = training.parallel.clone();
            calls.then(
                format!("blocks.{i}"),
                move |gpt2: &Self| &gpt2.blocks[i],
                move |block, x_bsd, batch| block.forward(x_bsd, &batch.micro, &of),
            );
        }
        let training = training.clone();
        calls.last(
            "ends",
            |gpt2: &Self| &gpt2.ends,
            move |ends, x_bsd, batch| {
                training.main_loss(batch, |targets, coef| ends.losses(x_bsd, targets, coef, &training.parallel))
            },
        );
        calls
    }

    fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn max_positions(&self) -> usize {
        self.config.n_positions
    }

    fn head_logits(&self, x_btd: Tensor<3>) -> Tensor<3> {
        self.ends.logits(x_btd)
    }

    fn embed_cached(&self, tokens_bt: Tensor<2, Int>, chunk: &Chunk) -> Tensor<3> {
        self.ends.embed_at(tokens_bt, chunk.positions(self.config.n_positions))
    }

    fn block_cached(&self, block: usize, x_btd: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        self.blocks[block].forward_cached(x_btd, layer, chunk)
    }
}
