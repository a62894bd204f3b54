//! DeepSeek's `config.json` and tensor names. The files store linear layers as `[out, in]`, Kiln as `[in, out]`.

mod export;
mod import;

pub(crate) use import::config;

use super::parameters;
use crate::ModelError;
use crate::family::HuggingFace;
use crate::hf::{Folder, Source};
use crate::{DeepSeekConfig, ParameterSpec};
use export::{absent_shared_experts, to_json};
use import::check_copies;
use moe::{MoeConfig, ScoreFunc};
use serde_json::Value;

/// Tensors that a multi-token prediction module has in addition to its parameters, with the originals they copy.
const COPIES: [(&str, &str); 2] =
    [("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight")];

/// The layer name of multi-token prediction module `k` in a model with `layers` layers.
fn mtp_layer(layers: usize, k: usize) -> String {
    format!("model.layers.{}", layers + k)
}

/// A DeepSeek in Hugging Face's format.
pub(super) struct DeepSeekFolder<'a> {
    pub shape: &'a DeepSeekConfig,
    pub moe: &'a MoeConfig,
}

impl HuggingFace for DeepSeekFolder<'_> {
    fn config(&self) -> Result<Value, ModelError> {
        to_json(self.shape, self.moe)
    }

    fn source(&self, path: &str) -> Source {
        name(self.shape.num_hidden_layers, path)
    }

    /// With sigmoid scores, transformers' model always has the selection bias.
    fn parameters(&self) -> Vec<ParameterSpec> {
        let moe = MoeConfig { selection_bias: self.moe.score_func == ScoreFunc::Sigmoid, ..self.moe.clone() };
        parameters::parameters(self.shape, &moe)
    }

    fn copies(&self) -> Vec<(String, &'static str, [usize; 2])> {
        let DeepSeekConfig { num_hidden_layers, mtp_depth, vocab_size, hidden_size, .. } = *self.shape;
        let of_module = |k| {
            let layer = mtp_layer(num_hidden_layers, k);
            COPIES.map(|(copy, original)| (format!("{layer}.{copy}"), original, [vocab_size, hidden_size]))
        };
        (0..mtp_depth).flat_map(of_module).collect()
    }

    fn empty(&self) -> Vec<(String, [usize; 2])> {
        absent_shared_experts(self.shape, self.moe)
    }

    fn check(&self, folder: &Folder) -> Result<(), ModelError> {
        check_copies(folder, self.shape)
    }
}

/// Maps Kiln's parameter paths to the names in this folder.
pub(crate) fn names(folder: &Folder) -> impl Fn(&str) -> Source + use<> {
    let layers = folder.config()["num_hidden_layers"].as_u64().unwrap_or_default() as usize;
    move |path| name(layers, path)
}

/// Maps Kiln's parameter paths to DeepSeek's names, for a model with `layers` layers.
fn name(layers: usize, path: &str) -> Source {
    let path = path.replace(".gamma", ".weight").replace(".Dense", "").replace(".Moe", "");
    let path = match path.split_once('.') {
        Some(("blocks", rest)) => format!("model.layers.{rest}"),
        Some(("mtp", rest)) => {
            let (k, rest) = rest.split_once('.').expect("a module's number is followed by its field");
            let rest = match rest.split_once('.') {
                Some(("block", rest)) => rest.into(),
                Some(("norm", rest)) => format!("shared_head.norm.{rest}"),
                _ => rest.to_string(),
            };
            format!("{}.{rest}", mtp_layer(layers, k.parse().expect("a module's number")))
        }
        Some(("embed", rest)) => format!("model.embed_tokens.{rest}"),
        Some(("head", "norm.weight")) => "model.norm.weight".into(),
        Some(("head", rest)) => rest.into(),
        _ => path,
    };
    if let Some((prefix, weight)) = path.split_once(".experts.") {
        return Source::TransposedExperts(format!("{prefix}.experts"), format!("{weight}.weight"));
    }
    if path.ends_with(".router.bias") {
        return Source::Same(path.replace(".router.bias", ".gate.e_score_correction_bias"));
    }
    match path.contains("norm") || path.contains("embed_tokens") {
        true => Source::Same(path),
        false => Source::Transposed(path.replace(".router.proj.", ".gate.")),
    }
}
