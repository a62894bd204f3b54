//! Your own model, `tiny.rs`, with the full command line: ranks, pipeline, checkpoints, validation and generation.
//!
//! `cargo run --example own_model -- --model tiny --gpus 4 --set model.width=96`

mod tiny;

use burn::tensor::{Device, Int, Tensor};
use model::{
    Architecture, Batch, Chunk, Decoder, Family, LayerCache, ModelError, ParameterSpec, Size, Training, VocabularyHead,
};
use moe::MoeConfig;
use tiny::{Block, Head, SCALE, Tiny, TinyConfig};

impl Decoder for Tiny {
    fn calls(&self, training: &Training) -> fsdp::Calls<Self, Batch> {
        let (mut calls, training, vocab) = (fsdp::Calls::new(), training.clone(), self.vocab_size);
        training.add_embedding(&mut calls, |tiny: &Self| &tiny.embed, vocab);
        for i in 0..self.blocks.len() {
            let forward = |block: &Block, x: Tensor<3>, batch: &Batch| {
                block.forward(x, |[q, k, v]| fused::causal_attention(q, k, v, SCALE, 0, batch.micro.first_keys()))
            };
            calls.then(format!("blocks.{i}"), move |tiny: &Self| &tiny.blocks[i], forward);
        }
        calls.last(
            "head",
            |tiny: &Self| &tiny.head,
            move |head: &Head, x: Tensor<3>, batch| {
                let output = VocabularyHead { weight: head.lm_head.weight.val(), transposed: false, vocab };
                let (x, tp) = (head.norm.forward(x), &training.parallel.sequences.tp);
                training.main_loss(batch, |targets, z_loss_coef| output.losses(tp, x, targets, z_loss_coef))
            },
        );
        calls
    }

    fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn max_positions(&self) -> usize {
        self.context
    }

    fn head_logits(&self, x: Tensor<3>) -> Tensor<3> {
        self.head.lm_head.forward(self.head.norm.forward(x))
    }

    fn embed_cached(&self, tokens: Tensor<2, Int>, _: &Chunk) -> Tensor<3> {
        self.embed.forward(tokens)
    }

    fn block_cached(&self, block: usize, x: Tensor<3>, layer: &mut LayerCache, chunk: &Chunk) -> Tensor<3> {
        self.blocks[block].forward(x, |[q, k, v]| chunk.attention(q, layer.append([k, v], chunk), SCALE, None))
    }
}

impl Family for TinyConfig {
    fn blocks(&self) -> usize {
        self.layers
    }

    fn width(&self) -> usize {
        self.width
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context(&self) -> Size {
        ("model.context", self.context)
    }

    fn document_masking(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), ModelError> {
        self.check().map_err(ModelError::from)
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        model::parameters_of(&self.init(&Device::flex()))
    }
}

impl Architecture for TinyConfig {
    type Model = Tiny;

    const TYPE: &'static str = "tiny";
    const ABOUT: &'static str = "attention without positions, of Burn's layers";

    fn family<'a>(&'a self, _: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        Box::new(self.clone())
    }

    fn model(&self, _: Option<&MoeConfig>, device: &Device) -> Tiny {
        self.init(device)
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_blocks(&mut self, blocks: usize) {
        self.layers = blocks;
    }
}

fn main() -> std::process::ExitCode {
    train::cli().with::<TinyConfig>().run()
}
