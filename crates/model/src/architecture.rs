//! [`Architecture`], which a family implements for its configuration, and models and configurations of any family.

use crate::ModelError;
use crate::family::Family;
use crate::hf::{Folder, Source, SourceOf};
use crate::parameters::{ParameterSpec, fill, visited};
use crate::{Batch, Decoder, LanguageModel, Training};
use burn::module::{ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use fsdp::{Fsdp, FsdpError, Units};
use moe::MoeConfig;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::Deref;

/// The configuration of a model of some family: the keys of the section `model`.
///
/// The families of this crate implement it. A program can implement it for its own model, whose [`Decoder`] then trains
/// like theirs: see [`ModelConfig::add`](crate::ModelConfig::add). Derive the serde traits and `JsonSchema`, and give
/// every key a default with `#[serde(default, deny_unknown_fields)]`; the doc comments of the keys are their
/// documentation on the command line. Use `f64` for fractional numbers, because it is written as it was read. Nested
/// sections must not be optional.
pub trait Architecture:
    Debug + Clone + PartialEq + Default + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// The model.
    type Model: Decoder;

    /// The value of `model.type`.
    const TYPE: &'static str;

    /// A one-line description of this type of model.
    const ABOUT: &'static str;

    /// The values of `model_type` in Hugging Face's `config.json` that this family reads.
    const MODEL_TYPES: &'static [&'static str] = &[];

    /// Returns what a run needs to know about the model. `moe` configures its experts.
    fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a>;

    /// A model whose parameters are not set yet.
    fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> Self::Model;

    /// Sets the vocabulary size, once it is known from the data.
    fn set_vocab_size(&mut self, vocab_size: usize);

    /// Sets the number of blocks.
    fn set_blocks(&mut self, blocks: usize);

    /// The default section `moe`; `None` if models of this family have no experts.
    fn default_experts() -> Option<MoeConfig> {
        None
    }

    /// Reads the configuration of a folder with one of [`MODEL_TYPES`](Self::MODEL_TYPES).
    ///
    /// # Errors
    /// If the configuration is not supported.
    fn from_hugging_face(folder: &Folder) -> Result<(Self, Option<MoeConfig>), ModelError> {
        Err(folder.config_error(format!("models of type {} cannot be read from such a folder", Self::TYPE)))
    }

    /// Maps the paths of parameters to their sources in a folder with one of [`MODEL_TYPES`](Self::MODEL_TYPES). By
    /// default a tensor has the name of its parameter.
    fn hugging_face_names(folder: &Folder) -> SourceOf {
        let _ = folder;
        Box::new(|path| Source::Same(path.into()))
    }
}

/// An [`Architecture`] of any type.
pub(crate) trait AnyArchitecture: Any + Debug + Send + Sync {
    fn type_name(&self) -> &'static str;
    fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a>;
    fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> AnyModel;
    fn units(
        &self,
        moe: Option<&MoeConfig>,
        listed: &[ParameterSpec],
        training: &Training,
        device: &Device,
    ) -> Units<Batch>;
    fn set_vocab_size(&mut self, vocab_size: usize);
    fn set_blocks(&mut self, blocks: usize);
    fn to_yaml(&self) -> Result<yaml_serde::Value, yaml_serde::Error>;
    fn boxed(&self) -> Box<dyn AnyArchitecture>;
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<C: Architecture> AnyArchitecture for C {
    fn type_name(&self) -> &'static str {
        C::TYPE
    }

    fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        Architecture::family(self, moe)
    }

    fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> AnyModel {
        AnyModel(Box::new(Architecture::model(self, moe, device)))
    }

    fn units(
        &self,
        moe: Option<&MoeConfig>,
        listed: &[ParameterSpec],
        training: &Training,
        device: &Device,
    ) -> Units<Batch> {
        let model = Architecture::model(self, moe, device);
        let (family, calls) = (Architecture::family(self, moe), model.calls(training));
        let (made, told) = (calls.len(), 1 + family.blocks() + family.calls_after_blocks());
        assert_eq!(
            made,
            told,
            "{}: Decoder::calls makes {made} calls, and Family::blocks and calls_after_blocks tell of {told}",
            C::TYPE
        );
        let (built, configured) = (model.blocks(), family.blocks());
        assert_eq!(built, configured, "{}: Decoder::blocks is {built}, and Family::blocks is {configured}", C::TYPE);
        let (longest, (key, context)) = (model.max_positions(), family.context());
        assert_eq!(longest, context, "{}: Decoder::max_positions is {longest}, and {key} is {context}", C::TYPE);
        let has: BTreeSet<_> = visited(&model).into_iter().collect();
        let listed: BTreeSet<_> = listed.iter().map(|of| (of.name.clone(), of.shape.clone())).collect();
        let differ: Vec<_> = has.symmetric_difference(&listed).collect();
        assert!(
            differ.is_empty(),
            "{}: Family::parameters and the module have different parameters: {differ:?}",
            C::TYPE
        );
        calls.into_units(model)
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        Architecture::set_vocab_size(self, vocab_size);
    }

    fn set_blocks(&mut self, blocks: usize) {
        Architecture::set_blocks(self, blocks);
    }

    fn to_yaml(&self) -> Result<yaml_serde::Value, yaml_serde::Error> {
        yaml_serde::to_value(self)
    }

    fn boxed(&self) -> Box<dyn AnyArchitecture> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// A model of any family.
#[derive(Debug)]
pub struct AnyModel(Box<dyn AnyDecoder>);

/// Returns the values of a parameter, given its path and shape; errors are stored elsewhere.
type ValuesOf<'a> = dyn FnMut(&str, &[usize]) -> Result<Vec<f32>, ()> + 'a;

/// A [`Decoder`] of any type.
trait AnyDecoder: Any + Debug {
    fn language_model(&self) -> &(dyn LanguageModel + 'static);
    fn fill(self: Box<Self>, values: &mut ValuesOf) -> Result<AnyModel, ()>;
    fn gather(self: Box<Self>, fsdp: &Fsdp<Batch>, keep: bool) -> Result<Option<AnyModel>, FsdpError>;
    fn for_each_parameter(&self, see: &mut dyn FnMut(&str, Vec<usize>, Tensor<1>));
}

impl<M: Decoder> AnyDecoder for M {
    fn language_model(&self) -> &(dyn LanguageModel + 'static) {
        self
    }

    fn fill(self: Box<Self>, values: &mut ValuesOf) -> Result<AnyModel, ()> {
        Ok(AnyModel(Box::new(fill(*self, values)?)))
    }

    fn gather(self: Box<Self>, fsdp: &Fsdp<Batch>, keep: bool) -> Result<Option<AnyModel>, FsdpError> {
        Ok(fsdp.gather_model(*self, keep)?.map(|model| AnyModel(Box::new(model))))
    }

    fn for_each_parameter(&self, see: &mut dyn FnMut(&str, Vec<usize>, Tensor<1>)) {
        self.visit(&mut Parameters { path: vec![], see });
    }
}

impl AnyModel {
    /// Sets every parameter; see [`fill`].
    ///
    /// # Errors
    /// The first error of `values`.
    pub fn fill<E>(self, mut values: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, E>) -> Result<Self, E> {
        let mut failed = None;
        let filled = self.0.fill(&mut |path, shape| values(path, shape).map_err(|error| failed = Some(error)));
        filled.map_err(|()| failed.expect("only `values` fails"))
    }

    /// The model with the whole parameters of a sharded one, if `keep`; see [`Fsdp::gather_model`]. A collective.
    ///
    /// # Errors
    /// If a rank fails.
    pub fn gather(self, fsdp: &Fsdp<Batch>, keep: bool) -> Result<Option<Self>, FsdpError> {
        self.0.gather(fsdp, keep)
    }

    /// Calls `see` with the path, the shape and the values, row by row, of every parameter.
    pub fn for_each_parameter(&self, mut see: impl FnMut(&str, Vec<usize>, Tensor<1>)) {
        self.0.for_each_parameter(&mut see);
    }

    /// The model, if it is of this type.
    pub fn get<M: Decoder>(&self) -> Option<&M> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

impl Deref for AnyModel {
    type Target = dyn LanguageModel;

    fn deref(&self) -> &Self::Target {
        self.0.language_model()
    }
}

struct Parameters<'a> {
    path: Vec<String>,
    see: &'a mut dyn FnMut(&str, Vec<usize>, Tensor<1>),
}

impl ModuleVisitor for Parameters<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (value, shape) = (param.val(), param.lazy_shape());
        (self.see)(&self.path.join("."), shape.to_vec(), value.reshape([shape.num_elements()]));
    }
}
