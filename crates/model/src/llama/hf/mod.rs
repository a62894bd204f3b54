//! `config.json` and tensor names of the Llama family: `llama`, `mistral`, `qwen2`, `qwen3`, `mixtral` and `qwen3_moe`.
//! The files store linear layers as `[out, in]`, Kiln as `[in, out]`.

mod export;
mod import;
mod rope;

pub(crate) use import::config;

use super::parameters;
use crate::ModelError;
use crate::family::HuggingFace;
use crate::hf::{Folder, Source};
use crate::{LlamaConfig, ParameterSpec};
use export::{model_type, to_json};
use moe::MoeConfig;
use serde_json::Value;

/// The `model_type`s of this family.
pub(crate) const MODEL_TYPES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"];

/// A Llama in Hugging Face's format.
pub(super) struct LlamaFolder<'a> {
    shape: &'a LlamaConfig,
    moe: Option<&'a MoeConfig>,
    model_type: &'static str,
}

impl<'a> LlamaFolder<'a> {
    /// A Llama of this shape with these experts.
    pub fn new(shape: &'a LlamaConfig, moe: Option<&'a MoeConfig>) -> Self {
        Self { shape, moe, model_type: model_type(shape, moe) }
    }
}

impl HuggingFace for LlamaFolder<'_> {
    fn config(&self) -> Result<Value, ModelError> {
        to_json(self.shape, self.moe)
    }

    fn source(&self, path: &str) -> Source {
        name(self.model_type, path)
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        parameters::parameters(self.shape, self.moe)
    }

    /// transformers does not tie an output matrix that differs from the embedding, whatever `config.json` says.
    fn check(&self, folder: &Folder) -> Result<(), ModelError> {
        let (copy, shape) = ("lm_head.weight", [self.shape.vocab_size, self.shape.hidden_size]);
        match self.shape.tie_word_embeddings && folder.has(copy) {
            true => folder.check_copy(copy, "model.embed_tokens.weight", &shape),
            false => Ok(()),
        }
    }
}

/// Maps Kiln's parameter paths to the names in this folder.
pub(crate) fn names(folder: &Folder) -> impl Fn(&str) -> Source + use<> {
    let model_type = folder.config()["model_type"].as_str().unwrap_or_default().to_string();
    move |path| name(&model_type, path)
}

/// Maps Kiln's parameter paths to the names in a folder of this `model_type`.
fn name(model_type: &str, path: &str) -> Source {
    let path = path.replace(".gamma", ".weight").replace(".Dense", "").replace(".Moe.router.proj", ".gate");
    let path = match path.split_once('.') {
        Some(("blocks", rest)) => format!("model.layers.{}", rest.replace(".Moe", "")),
        Some(("embed", rest)) => format!("model.embed_tokens.{rest}"),
        Some(("head", "norm.weight")) => "model.norm.weight".into(),
        Some(("head", rest)) => rest.into(),
        _ => path,
    };
    let mixtral = model_type == "mixtral";
    let path = if mixtral { path.replace(".mlp.", ".block_sparse_moe.") } else { path };
    if let Some((prefix, matrix)) = path.split_once(".experts.") {
        let matrix = match matrix {
            "gate_proj" if mixtral => "w1",
            "down_proj" if mixtral => "w2",
            "up_proj" if mixtral => "w3",
            other => other,
        };
        return Source::TransposedExperts(format!("{prefix}.experts"), format!("{matrix}.weight"));
    }
    match path.contains("norm") || path.contains("embed_tokens") || path.ends_with(".bias") {
        true => Source::Same(path),
        false => Source::Transposed(path),
    }
}
