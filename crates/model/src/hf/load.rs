//! Loading a model's weights from a Hugging Face folder.

use super::{Folder, HfError, deepseek, gpt2};
use crate::{DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, LanguageModel, fill};
use burn::module::Module;
use burn::tensor::Device;
use moe::MoeConfig;
use std::ops::Deref;

/// A model loaded from a folder.
pub enum Pretrained {
    /// `model_type` `gpt2`.
    Gpt2(Gpt2Config, Gpt2),
    /// `model_type` `deepseek_v2` or `deepseek_v3`.
    DeepSeek(DeepSeekConfig, MoeConfig, DeepSeek),
}

impl Pretrained {
    /// Loads configuration and weights.
    pub fn load(folder: &Folder, device: &Device) -> Result<Self, HfError> {
        match folder.config()["model_type"].as_str() {
            Some("gpt2") => {
                let config = gpt2::config(folder)?;
                let model = bind(Gpt2::new(&config, device), folder, &names(folder))?;
                Ok(Self::Gpt2(config, model))
            }
            Some("deepseek_v2" | "deepseek_v3") => {
                let (config, moe) = deepseek::config(folder)?;
                let model = bind(DeepSeek::new(&config, &moe, device), folder, &names(folder))?;
                deepseek::check_copies(folder, &config)?;
                Ok(Self::DeepSeek(config, moe, model))
            }
            other => {
                let found = other.map_or("no `model_type`".into(), |kind| format!("`model_type` \"{kind}\""));
                Err(folder.config_error(format!("has {found}; known are gpt2, deepseek_v2 and deepseek_v3")))
            }
        }
    }

    /// Vocabulary size.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Gpt2(config, _) => config.vocab_size,
            Self::DeepSeek(config, ..) => config.vocab_size,
        }
    }
}

impl Deref for Pretrained {
    type Target = dyn LanguageModel;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Gpt2(_, model) => model,
            Self::DeepSeek(_, _, model) => model,
        }
    }
}

/// The source of a parameter's values in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A tensor with the parameter's shape.
    Same(String),
    /// A matrix `[out, in]` for a parameter `[in, out]`.
    Transposed(String),
    /// One matrix `[out, in]` per expert for a parameter `[e, in, out]`: `PREFIX.{e}.SUFFIX`.
    TransposedExperts(String, String),
}

/// Maps the path of a parameter in Kiln's models to its source in `folder`.
pub fn names(folder: &Folder) -> impl Fn(&str) -> Source {
    let gpt2 = (folder.config()["model_type"] == "gpt2").then(|| gpt2::prefix(folder));
    let layers = folder.config()["num_hidden_layers"].as_u64().unwrap_or_default() as usize;
    move |path| match gpt2 {
        Some(prefix) => gpt2::name(prefix, path),
        None => deepseek::name(layers, path),
    }
}

/// Sets every parameter of `module` to the values of its source. `source_of` maps a parameter's field path
/// (`blocks.0.attn.c_attn.weight`) to the source.
pub fn bind<M: Module>(module: M, folder: &Folder, source_of: &dyn Fn(&str) -> Source) -> Result<M, HfError> {
    fill(module, |path, shape| values(folder, &source_of(path), shape))
}

fn values(folder: &Folder, source: &Source, shape: &[usize]) -> Result<Vec<f32>, HfError> {
    match (source, shape) {
        (Source::Same(name), _) => folder.tensor(name, shape),
        (Source::Transposed(name), &[rows, columns]) => {
            Ok(transpose(&folder.tensor(name, &[columns, rows])?, rows, columns))
        }
        (Source::TransposedExperts(prefix, suffix), &[experts, rows, columns]) => {
            let mut stacked = vec![]; // grows with what is read, whatever config.json claims
            for expert in 0..experts {
                let values = folder.tensor(&format!("{prefix}.{expert}.{suffix}"), &[columns, rows])?;
                stacked.extend(transpose(&values, rows, columns));
            }
            Ok(stacked)
        }
        _ => unreachable!("{source:?} for a parameter of shape {shape:?}"),
    }
}

/// Transposes `[columns, rows]` to `[rows, columns]` tile by tile, so that reads and writes both stay in the cache.
pub(super) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let mut transposed = vec![0.0; rows * columns];
    for row in (0..rows).step_by(TILE) {
        for column in (0..columns).step_by(TILE) {
            for r in row..rows.min(row + TILE) {
                let end = columns.min(column + TILE);
                for (c, to) in (column..).zip(&mut transposed[r * columns + column..r * columns + end]) {
                    *to = values[c * rows + r];
                }
            }
        }
    }
    transposed
}
