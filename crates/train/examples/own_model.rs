//! Your own model with the full command line: ranks, pipeline, checkpoints, validation, generation.
//!
//! `cargo run --example own_model -- --model tiny --gpus 4 --set model.width=96`

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor};
use model::{
    Architecture, Batch, Chunk, Decoder, Family, LayerCache, ModelError, ParameterSpec, Size, Training, VocabularyHead,
};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of the section `model`; `train config` prints their comments as documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct TinyConfig {
    /// Tokens in the vocabulary; 0 takes the tokenizer's size.
    vocab_size: usize,
    /// Number of blocks.
    layers: usize,
    /// Width of the residual stream, a multiple of 16.
    width: usize,
    /// The longest context.
    context: usize,
}

impl Default for TinyConfig {
    fn default() -> Self {
        Self { vocab_size: 0, layers: 2, width: 64, context: 256 }
    }
}

#[derive(Module, Debug)]
struct Tiny {
    embed: Embedding,
    blocks: Vec<Block>,
    head: Head,
    context: usize,
    vocab_size: usize,
}

/// `x + output(attention(norm(x)))`, then `x + down(gelu(up(mlp_norm(x))))`, without positions.
#[derive(Module, Debug)]
struct Block {
    norm: RmsNorm,
    qkv: Linear,
    output: Linear,
    mlp_norm: RmsNorm,
    up: Linear,
    down: Linear,
}

#[derive(Module, Debug)]
struct Head {
    norm: RmsNorm,
    lm_head: Linear,
}

const HEAD_DIM: usize = 16;
const SCALE: f64 = 0.25; // 1 / sqrt(HEAD_DIM)

impl Block {
    /// `attention` maps queries, keys and values, `[b, heads, t, HEAD_DIM]`, to `[b, t, heads, HEAD_DIM]`.
    fn forward(&self, x: Tensor<3>, attention: impl FnOnce([Tensor<4>; 3]) -> Tensor<4>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let qkv = self.qkv.forward(self.norm.forward(x.clone())).reshape([b, t, 3 * d / HEAD_DIM, HEAD_DIM]);
        let [q, k, v] = qkv.swap_dims(1, 2).chunk(3, 1).try_into().expect("three parts");
        let x = x + self.output.forward(attention([q, k, v]).reshape([b, t, d]));
        x.clone() + self.down.forward(gelu(self.up.forward(self.mlp_norm.forward(x))))
    }
}

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
        for (key, size) in [("layers", self.layers), ("context", self.context), ("width", self.width)] {
            if size == 0 {
                return Err(format!("model.{key} is 0: give at least 1").into());
            }
        }
        match self.width.is_multiple_of(HEAD_DIM) {
            true => Ok(()),
            false => Err(format!("model.width is {}: give a multiple of {HEAD_DIM}", self.width).into()),
        }
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        model::parameters_of(&self.model(None, &Device::flex()))
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
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let (d, norm) = (self.width, || RmsNormConfig::new(self.width).init(device));
        let block = |_| Block {
            norm: norm(),
            qkv: linear(d, 3 * d),
            output: linear(d, d),
            mlp_norm: norm(),
            up: linear(d, 4 * d),
            down: linear(4 * d, d),
        };
        Tiny {
            embed: EmbeddingConfig::new(self.vocab_size, d).init(device),
            blocks: (0..self.layers).map(block).collect(),
            head: Head { norm: norm(), lm_head: linear(d, self.vocab_size) },
            context: self.context,
            vocab_size: self.vocab_size,
        }
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
