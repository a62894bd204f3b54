//! Reference models made with transformers, shared by several tests.

#![allow(dead_code, reason = "each test file uses a part of it")]

use burn::tensor::Device;
use model::hf::{Folder, Pretrained};
use model::{DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, Llama, LlamaConfig};
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
        if let (Some(config), Some(model)) = (config.get::<Gpt2Config>(), model.get::<Gpt2>()) {
            return Self::Gpt2(config.clone(), model.clone());
        }
        if let (Some(config), Some(model)) = (config.get::<LlamaConfig>(), model.get::<Llama>()) {
            return Self::Llama(config.clone(), moe, model.clone());
        }
        let (config, model) = (config.get::<DeepSeekConfig>(), model.get::<DeepSeek>());
        let (config, model) = config.zip(model).expect("configuration and model are of one family");
        Self::DeepSeek(config.clone(), moe.expect("its experts"), model.clone())
    }
}
