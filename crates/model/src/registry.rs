//! The only list of model families: [`ModelConfig`] and [`AnyModel`].

use crate::family::{Family, Size};
use crate::hf::{Folder, HfError, SourceOf};
use crate::parameters::fill;
use crate::{Batch, Decoder, DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, LanguageModel, Llama, LlamaConfig, Training};
use crate::{deepseek, gpt2, llama};
use burn::module::{Module, ModuleVisitor};
use burn::tensor::Device;
use fsdp::{Fsdp, FsdpError, Units};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// The shape of a model; `type` in the `model` section selects the family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ModelConfig {
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// Llama, Mistral, Qwen2 and Qwen3; Mixtral and Qwen3-MoE with a `moe` section.
    Llama(LlamaConfig),
    /// DeepSeek-V2/V3: latent attention and experts.
    DeepSeek(DeepSeekConfig),
}

impl ModelConfig {
    /// The values of `type`.
    pub const TYPES: [&str; 3] = ["gpt2", "llama", "deepseek"];

    /// The families at their defaults, each with experts if it can have some.
    pub fn families() -> Vec<(Self, Option<MoeConfig>)> {
        vec![
            (Self::Gpt2(Gpt2Config::default()), None),
            (Self::Llama(LlamaConfig::default()), Some(MoeConfig::default())),
            (Self::DeepSeek(DeepSeekConfig::default()), Some(MoeConfig::default())),
        ]
    }

    /// The element of [`TYPES`](Self::TYPES) for this model.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Gpt2(_) => Self::TYPES[0],
            Self::Llama(_) => Self::TYPES[1],
            Self::DeepSeek(_) => Self::TYPES[2],
        }
    }

    /// The model's family, with its experts.
    pub fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        match self {
            Self::Gpt2(shape) => Box::new(gpt2::Gpt2Family::new(shape, moe)),
            Self::Llama(shape) => Box::new(llama::LlamaFamily::new(shape, moe)),
            Self::DeepSeek(shape) => Box::new(deepseek::DeepSeekFamily::new(shape, moe)),
        }
    }

    /// A model whose parameters are not set yet. Without `moe`, a DeepSeek has experts with their defaults.
    pub fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> AnyModel {
        match self {
            Self::Gpt2(shape) => AnyModel::Gpt2(Gpt2::new(shape, device)),
            Self::Llama(shape) => AnyModel::Llama(Llama::new(shape, moe, device)),
            Self::DeepSeek(shape) => {
                AnyModel::DeepSeek(DeepSeek::new(shape, &moe.cloned().unwrap_or_default(), device))
            }
        }
    }

    /// The model as sharding units, one for each part that its [`calls`](Decoder::calls) name. A unit's name is the
    /// path of its part in the model, so a parameter's name in a checkpoint is its path.
    pub fn units(&self, moe: Option<&MoeConfig>, training: &Training, device: &Device) -> Units<Batch> {
        fn of<M: Decoder>(model: M, training: &Training) -> Units<Batch> {
            model.calls(training).into_units(model)
        }
        let mut units = match self.model(moe, device) {
            AnyModel::Gpt2(model) => of(model, training),
            AnyModel::Llama(model) => of(model, training),
            AnyModel::DeepSeek(model) => of(model, training),
        };
        training.set_rules(&mut units, &*self.family(moe));
        units
    }

    /// Vocabulary size; 0 until it is known from the data.
    pub fn vocab_size(&self) -> usize {
        self.family(None).vocab_size()
    }

    /// Sets the vocabulary size.
    pub fn set_vocab_size(&mut self, vocab_size: usize) {
        match self {
            Self::Gpt2(shape) => shape.vocab_size = vocab_size,
            Self::Llama(shape) => shape.vocab_size = vocab_size,
            Self::DeepSeek(shape) => shape.vocab_size = vocab_size,
        }
    }

    /// Number of blocks, without embedding and head.
    pub fn blocks(&self) -> usize {
        self.family(None).blocks()
    }

    /// Sets the number of blocks.
    pub fn set_blocks(&mut self, blocks: usize) {
        match self {
            Self::Gpt2(shape) => shape.n_layer = blocks,
            Self::Llama(shape) => shape.num_hidden_layers = blocks,
            Self::DeepSeek(shape) => shape.num_hidden_layers = blocks,
        }
    }

    /// Number of multi-token prediction modules.
    pub fn mtp_depth(&self) -> usize {
        self.family(None).mtp_depth()
    }

    /// The configuration key of the longest context, and its value in tokens.
    pub fn context(&self) -> Size {
        self.family(None).context()
    }

    /// Reads the model's configuration from a Hugging Face folder, with that of its experts.
    ///
    /// # Errors
    /// If no family reads the folder's `model_type`, or the configuration is not supported.
    pub fn from_hugging_face(folder: &Folder) -> Result<(Self, Option<MoeConfig>), HfError> {
        match folder.config()["model_type"].as_str() {
            Some("gpt2") => Ok((Self::Gpt2(gpt2::hf::config(folder)?), None)),
            Some("deepseek_v2" | "deepseek_v3") => {
                let (shape, moe) = deepseek::hf::config(folder)?;
                Ok((Self::DeepSeek(shape), Some(moe)))
            }
            Some(kind) if llama::hf::MODEL_TYPES.contains(&kind) => {
                let (shape, moe) = llama::hf::config(folder)?;
                Ok((Self::Llama(shape), moe))
            }
            other => Err(unknown_model_type(folder, other)),
        }
    }

    /// Maps the paths of parameters to their sources in a Hugging Face folder.
    pub(crate) fn hugging_face_names(folder: &Folder) -> Result<SourceOf, HfError> {
        match folder.config()["model_type"].as_str() {
            Some("gpt2") => Ok(Box::new(gpt2::hf::names(folder))),
            Some("deepseek_v2" | "deepseek_v3") => Ok(Box::new(deepseek::hf::names(folder))),
            Some(kind) if llama::hf::MODEL_TYPES.contains(&kind) => Ok(Box::new(llama::hf::names(folder))),
            other => Err(unknown_model_type(folder, other)),
        }
    }
}

fn unknown_model_type(folder: &Folder, found: Option<&str>) -> HfError {
    let found = found.map_or("no `model_type`".into(), |kind| format!("`model_type` \"{kind}\""));
    let llama = llama::hf::MODEL_TYPES.join(", ");
    folder.config_error(format!("has {found}; known are gpt2, {llama}, deepseek_v2 and deepseek_v3"))
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::Gpt2(Gpt2Config::default())
    }
}

/// A model of any family.
#[derive(Debug)]
pub enum AnyModel {
    /// A GPT-2.
    Gpt2(Gpt2),
    /// A Llama.
    Llama(Llama),
    /// A DeepSeek.
    DeepSeek(DeepSeek),
}

impl AnyModel {
    /// Sets every parameter; see [`fill`].
    ///
    /// # Errors
    /// The first error of `values`.
    pub fn fill<E>(self, values: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, E>) -> Result<Self, E> {
        Ok(match self {
            Self::Gpt2(model) => Self::Gpt2(fill(model, values)?),
            Self::Llama(model) => Self::Llama(fill(model, values)?),
            Self::DeepSeek(model) => Self::DeepSeek(fill(model, values)?),
        })
    }

    /// The model with the whole parameters of a sharded one, if `keep`; see [`Fsdp::gather_model`]. A collective.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn gather(self, fsdp: &Fsdp<Batch>, keep: bool) -> Result<Option<Self>, FsdpError> {
        Ok(match self {
            Self::Gpt2(model) => fsdp.gather_model(model, keep)?.map(Self::Gpt2),
            Self::Llama(model) => fsdp.gather_model(model, keep)?.map(Self::Llama),
            Self::DeepSeek(model) => fsdp.gather_model(model, keep)?.map(Self::DeepSeek),
        })
    }

    /// Visits every parameter.
    pub fn visit(&self, visitor: &mut impl ModuleVisitor) {
        match self {
            Self::Gpt2(model) => model.visit(visitor),
            Self::Llama(model) => model.visit(visitor),
            Self::DeepSeek(model) => model.visit(visitor),
        }
    }

    /// The model, if it can predict several tokens ahead for [`generate_speculative`](crate::generate_speculative).
    pub fn predicts_ahead(&self) -> Option<&DeepSeek> {
        match self {
            Self::DeepSeek(model) if !model.mtp.is_empty() => Some(model),
            _ => None,
        }
    }
}

impl Deref for AnyModel {
    type Target = dyn LanguageModel;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Gpt2(model) => model,
            Self::Llama(model) => model,
            Self::DeepSeek(model) => model,
        }
    }
}

#[cfg(test)]
mod tests;
