//! Reference models made with transformers, shared by several tests.

#![allow(dead_code, reason = "each test file uses a part of it")]

use burn::tensor::Device;
use model::hf::{Folder, Pretrained};
use model::{AnyModel, DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, ModelConfig};
use moe::MoeConfig;
use std::path::Path;

/// The f32 folders of `tests/reference`.
pub const FIXTURES: [&str; 17] = [
    "gpt2-a",
    "gpt2-b",
    "deepseek-v3-q-lora",
    "deepseek-v3-no-q-lora",
    "deepseek-v3-yarn",
    "deepseek-v3-yarn-2",
    "deepseek-v3-mtp-1",
    "deepseek-v3-mtp-2",
    "deepseek-v2-greedy",
    "deepseek-v2-group-limited",
    "llama-scaled-rope",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "mistral-window",
    "mixtral",
    "qwen3-moe",
];

/// The model in a folder.
pub fn load(path: &Path) -> Pretrained {
    Pretrained::load(&Folder::open(path).unwrap(), &Device::flex()).unwrap()
}

/// A loaded model by family.
pub enum Loaded {
    Gpt2(Gpt2Config, Gpt2),
    Llama(LlamaConfig, Option<MoeConfig>, Llama),
    DeepSeek(DeepSeekConfig, MoeConfig, DeepSeek),
}

impl From<Pretrained> for Loaded {
    fn from(Pretrained { config, moe, model, .. }: Pretrained) -> Self {
        match (config, model) {
            (ModelConfig::Gpt2(config), AnyModel::Gpt2(model)) => Self::Gpt2(config, model),
            (ModelConfig::Llama(config), AnyModel::Llama(model)) => Self::Llama(config, moe, model),
            (ModelConfig::DeepSeek(config), AnyModel::DeepSeek(model)) => {
                Self::DeepSeek(config, moe.expect("its experts"), model)
            }
            _ => unreachable!("configuration and model are of one family"),
        }
    }
}
