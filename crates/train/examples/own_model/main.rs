//! Your own model, `tiny.rs`, with the full command line: ranks, pipeline, checkpoints, validation and generation.
//!
//! `cargo run --example own_model -- --model tiny --gpus 4 --set model.width=96`

mod tiny;

use burn::tensor::{Device, Tensor};
use model::{Attention, Dimensions, ModelError, Parts, SimpleArchitecture, SimpleDecoder};
use tiny::{Block, Head, SCALE, Tiny, TinyConfig};

impl SimpleDecoder for Tiny {
    type Block = Block;
    type Head = Head;

    fn parts(&self) -> Parts<'_, Self> {
        Parts { embed: &self.embed, blocks: &self.blocks, head: &self.head, context: self.context }
    }

    fn forward(block: &Block, x: Tensor<3>, attention: &mut Attention) -> Tensor<3> {
        block.forward(x, |qkv| attention.causal(qkv, SCALE))
    }

    fn output(head: &Head, x: Tensor<3>) -> (Tensor<3>, Tensor<2>) {
        (head.norm.forward(x), head.lm_head.weight.val())
    }
}

impl SimpleArchitecture for TinyConfig {
    type Model = Tiny;

    const TYPE: &'static str = "tiny";
    const ABOUT: &'static str = "attention without positions, of Burn's layers";

    fn dimensions(&mut self) -> Dimensions<'_> {
        let Self { vocab_size, layers, width, context } = self;
        Dimensions { vocab_size, blocks: layers, width: *width, context: ("model.context", *context) }
    }

    fn model(&self, device: &Device) -> Tiny {
        self.init(device)
    }

    fn validate(&self) -> Result<(), ModelError> {
        self.check().map_err(ModelError::from)
    }
}

fn main() -> std::process::ExitCode {
    train::cli().with::<TinyConfig>().run()
}
