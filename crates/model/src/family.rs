//! The model families: what a run must know of a model, and the only list of families.
//!
//! A family is a folder: `config` (shape and limits), the modules, `family` (this trait), `units` (sharding units and
//! the calls of a training forward), `cost` (what the calls cost) and `hf` (Hugging Face's names). A new family adds
//! its folder and a variant of [`ModelConfig`] and [`AnyModel`].

mod units;

use crate::cost::{Flops, Workload};
use crate::hf::{Folder, HfError, Source, SourceOf};
use crate::parameters::{ParameterSpec, fill};
use crate::{Batch, DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, Initial, LanguageModel, Llama, LlamaConfig};
use crate::{deepseek, gpt2, llama};
use burn::module::{Module, ModuleVisitor};
use burn::tensor::Device;
use fsdp::{CallBytes, CallTraffic, Units};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Deref;

pub use units::{ModelUnits, Training};
pub(crate) use units::{add_blocks, gather_all, gather_into, main_loss};

/// A configuration key and its value.
pub type Size = (&'static str, usize);

/// A model of some family, known by its configuration. Only [`model`](Self::model) and
/// [`add_units`](Self::add_units) create modules.
pub trait Family {
    /// Number of blocks, without embedding and head.
    fn blocks(&self) -> usize;

    /// Width of the residual stream.
    fn width(&self) -> usize;

    /// Vocabulary size; 0 until it is known from the data.
    fn vocab_size(&self) -> usize;

    /// The configuration key of the longest context, and its value in tokens.
    fn context(&self) -> Size;

    /// Number of multi-token prediction modules.
    fn mtp_depth(&self) -> usize {
        0
    }

    /// The blocks with experts, including those of multi-token prediction modules (numbered after the model's own),
    /// and the number of experts; or the reason why there are none, which completes a message.
    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str>;

    /// Rejects shapes that no model can be built from; the message names key, value and remedy. A vocabulary of 0
    /// passes.
    fn validate(&self) -> Result<(), String>;

    /// The number of parameters, in floating point so that it cannot overflow.
    fn parameter_count(&self) -> f64;

    /// Sizes of the model's matrices; the largest one is named if the model is too large.
    fn sizes(&self) -> Vec<Size>;

    /// Sizes per token in the largest tensors of a forward over a context of this size, which must not overflow; a tensor
    /// has the product of its sizes.
    fn activations(&self, context: Size) -> Vec<Vec<Size>>;

    /// What the number of tensor-parallel ranks must divide: heads and columns. A size of 1 allows no tensor
    /// parallelism.
    fn tensor_parallel_sizes(&self) -> Vec<Size>;

    /// All parameters, in the order in which the modules are visited.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// The initial values of the parameters.
    fn initial(&self, seed: u64) -> Initial;

    /// Number of calls that a forward makes after the blocks.
    fn calls_after_blocks(&self) -> usize {
        1
    }

    /// FLOPs of each call of a forward: the embedding, every block, and the calls after them.
    fn flops(&self) -> Vec<Flops>;

    /// Activation memory of each call.
    fn memory(&self, workload: &Workload) -> Vec<CallBytes>;

    /// Bytes that each call receives in its own collectives.
    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic>;

    /// A model whose parameters are not set yet.
    fn model(&self, device: &Device) -> AnyModel;

    /// The model cut into sharding units, with the calls of a training forward.
    ///
    /// A unit's name is the path of its field in the model, so a parameter's name in a checkpoint is its path.
    fn add_units(&self, units: &mut Units<Batch>, training: &Training, device: &Device) -> Box<dyn ModelUnits>;

    /// How Hugging Face's folders name and store the model.
    fn hugging_face(&self) -> Box<dyn HuggingFace + '_>;
}

/// A model in Hugging Face's format.
pub trait HuggingFace {
    /// `config.json`, without the keys that every model has.
    ///
    /// # Errors
    /// If transformers cannot compute what the model does.
    fn config(&self) -> Result<Value, HfError>;

    /// The tensor of a parameter, given its path.
    fn source(&self, path: &str) -> Source;

    /// The parameters that transformers' model has; those that this one lacks are zeros.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// Names and shapes of tensors that copy others, with the names of the originals.
    fn copies(&self) -> Vec<(String, &'static str, [usize; 2])> {
        vec![]
    }

    /// Names and shapes of tensors without elements that transformers expects.
    fn empty(&self) -> Vec<(String, [usize; 2])> {
        vec![]
    }

    /// Whether a tensor of this name holds no weights: what a model computes from its configuration, or a copy.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".rotary_emb.inv_freq")
    }

    /// Rejects a folder whose tensors contradict the model.
    fn check(&self, folder: &Folder) -> Result<(), HfError> {
        let _ = folder;
        Ok(())
    }
}

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
