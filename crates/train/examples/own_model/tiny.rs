//! A small language model of Burn's layers, and its configuration: nothing here is Kiln's.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The keys of the section `model`; `train config` prints their comments as documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TinyConfig {
    /// Tokens in the vocabulary; 0 takes the tokenizer's size.
    pub vocab_size: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream, a multiple of 16.
    pub width: usize,
    /// The longest context.
    pub context: usize,
}

impl Default for TinyConfig {
    fn default() -> Self {
        Self { vocab_size: 0, layers: 2, width: 64, context: 256 }
    }
}

impl TinyConfig {
    pub fn check(&self) -> Result<(), String> {
        for (key, size) in [("layers", self.layers), ("context", self.context), ("width", self.width)] {
            if size == 0 {
                return Err(format!("model.{key} is 0: give at least 1"));
            }
        }
        match self.width.is_multiple_of(HEAD_DIM) {
            true => Ok(()),
            false => Err(format!("model.width is {}: give a multiple of {HEAD_DIM}", self.width)),
        }
    }

    pub fn init(&self, device: &Device) -> Tiny {
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
        }
    }
}

#[derive(Module, Debug)]
pub struct Tiny {
    pub embed: Embedding,
    pub blocks: Vec<Block>,
    pub head: Head,
    pub context: usize,
}

/// `x + output(attention(norm(x)))`, then `x + down(gelu(up(mlp_norm(x))))`, without positions.
#[derive(Module, Debug)]
pub struct Block {
    pub norm: RmsNorm,
    pub qkv: Linear,
    pub output: Linear,
    pub mlp_norm: RmsNorm,
    pub up: Linear,
    pub down: Linear,
}

#[derive(Module, Debug)]
pub struct Head {
    pub norm: RmsNorm,
    pub lm_head: Linear,
}

pub const HEAD_DIM: usize = 16;
pub const SCALE: f64 = 0.25; // 1 / sqrt(HEAD_DIM)

impl Block {
    /// `attention` maps queries, keys and values, `[b, heads, t, HEAD_DIM]`, to `[b, t, heads, HEAD_DIM]`.
    pub fn forward(&self, x: Tensor<3>, attention: impl FnOnce([Tensor<4>; 3]) -> Tensor<4>) -> Tensor<3> {
        let [b, t, d] = x.dims();
        let qkv = self.qkv.forward(self.norm.forward(x.clone())).reshape([b, t, 3 * d / HEAD_DIM, HEAD_DIM]);
        let [q, k, v] = qkv.swap_dims(1, 2).chunk(3, 1).try_into().expect("three parts");
        let x = x + self.output.forward(attention([q, k, v]).reshape([b, t, d]));
        x.clone() + self.down.forward(gelu(self.up.forward(self.mlp_norm.forward(x))))
    }
}
