//! The only list of model families, and [`ModelConfig`], a configuration of any of them.

use crate::ModelError;
use crate::architecture::{AnyArchitecture, Architecture};
use crate::family::{Family, Size};
use crate::hf::{Folder, SourceOf};
use crate::{AnyModel, Batch, DeepSeek, DeepSeekConfig, Gpt2Config, Initial, LlamaConfig, Training};
use burn::tensor::Device;
use fsdp::Units;
use moe::MoeConfig;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::any::Any;
use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};
use yaml_serde::{Mapping, Value};

/// The families of this crate.
const OWN: &[Entry] = &[Entry::of::<Gpt2Config>(), Entry::of::<LlamaConfig>(), Entry::of::<DeepSeekConfig>()];

/// The families that the program has added.
static ADDED: RwLock<Vec<Entry>> = RwLock::new(vec![]);

/// A model, and its experts if it has any.
type WithExperts = (ModelConfig, Option<MoeConfig>);

/// What is known about an [`Architecture`] without a value of it.
#[derive(Clone, Copy)]
struct Entry {
    type_name: &'static str,
    model_types: &'static [&'static str],
    default: fn() -> WithExperts,
    read: fn(Value) -> Result<ModelConfig, yaml_serde::Error>,
    schema: fn(&mut SchemaGenerator) -> Schema,
    from_hugging_face: fn(&Folder) -> Result<WithExperts, ModelError>,
    hugging_face_names: fn(&Folder) -> SourceOf,
}

impl Entry {
    const fn of<C: Architecture>() -> Self {
        Self {
            type_name: C::TYPE,
            model_types: C::MODEL_TYPES,
            default: || (C::default().into(), C::default_experts()),
            read: |value| yaml_serde::from_value::<C>(value).map(ModelConfig::from),
            schema: |generator| {
                let mut schema = C::json_schema(generator);
                schema.insert("description".into(), C::ABOUT.into());
                let keys = schema.ensure_object();
                let properties = keys.entry("properties").or_insert_with(|| serde_json::json!({}));
                properties["type"] = serde_json::json!({"type": "string", "const": C::TYPE});
                keys.insert("required".into(), serde_json::json!(["type"]));
                schema
            },
            from_hugging_face: |folder| C::from_hugging_face(folder).map(|(shape, moe)| (shape.into(), moe)),
            hugging_face_names: C::hugging_face_names,
        }
    }
}

fn entries() -> Vec<Entry> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.iter().chain(added.iter()).copied().collect()
}

/// The shape of a model; `type` in the `model` section selects the family.
#[derive(Debug)]
pub struct ModelConfig(Box<dyn AnyArchitecture>);

impl ModelConfig {
    /// Adds the program's own family. Call this before you read a configuration; adding the family again changes
    /// nothing.
    ///
    /// # Panics
    /// If another family has its [`TYPE`](Architecture::TYPE), or if a key has no default.
    pub fn add<C: Architecture>() {
        let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
        match OWN.iter().chain(added.iter()).find(|entry| entry.type_name == C::TYPE) {
            None => {
                let without_keys = yaml_serde::from_value::<C>(Value::Mapping(Mapping::new()));
                if let Err(error) = without_keys {
                    panic!("model.type {}: {error}: give every key a default, with #[serde(default)]", C::TYPE);
                }
                added.push(Entry::of::<C>());
            }
            Some(entry) => {
                let is_same = (entry.default)().0.get::<C>().is_some();
                assert!(is_same, "model.type {} is another family's: give Architecture::TYPE another value", C::TYPE);
            }
        }
    }

    /// The values of `type`.
    pub fn types() -> Vec<&'static str> {
        entries().into_iter().map(|entry| entry.type_name).collect()
    }

    /// The families at their defaults, each with experts if it can have some.
    pub fn families() -> Vec<(Self, Option<MoeConfig>)> {
        entries().into_iter().map(|entry| (entry.default)()).collect()
    }

    /// The value of `type` for this model.
    pub fn type_name(&self) -> &'static str {
        self.0.type_name()
    }

    /// The configuration, if the model is of this family.
    pub fn get<C: Architecture>(&self) -> Option<&C> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// The model's family, with its experts.
    pub fn family<'a>(&'a self, moe: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        self.0.family(moe)
    }

    /// Rejects shapes that no model can be built from; the message names key, value and remedy. A vocabulary of 0
    /// passes.
    ///
    /// # Errors
    /// See [`Family::validate`]; also if `moe` is given for a type without experts.
    pub fn validate(&self, moe: Option<&MoeConfig>) -> Result<(), ModelError> {
        let families = Self::families();
        let with_experts = || families.iter().filter(|(_, moe)| moe.is_some()).map(|(family, _)| family.type_name());
        let kind = self.type_name();
        if moe.is_some() && !with_experts().any(|other| other == kind) {
            let others = with_experts().collect::<Vec<_>>().join(" or ");
            return Err(format!(
                "there is a `moe` section, but model.type {kind} has no experts: remove it, or take {others}"
            )
            .into());
        }
        self.family(moe).validate()
    }

    /// A model whose parameters are not set yet. Without `moe`, a DeepSeek has experts with their defaults.
    pub fn model(&self, moe: Option<&MoeConfig>, device: &Device) -> AnyModel {
        self.0.model(moe, device)
    }

    /// The initial values of the model's parameters.
    pub fn initial(&self, moe: Option<&MoeConfig>, seed: u64) -> Initial {
        Initial::new(self.type_name(), seed, self.family(moe).parameters())
    }

    /// The model as sharding units, one for each part that its [`calls`](crate::Decoder::calls) name. A unit's name is
    /// the path of its part in the model, so a parameter's name in a checkpoint is its path.
    pub fn units(&self, moe: Option<&MoeConfig>, training: &Training, device: &Device) -> Units<Batch> {
        let parameters = self.family(moe).parameters();
        let mut units = self.0.units(moe, &parameters, training, device);
        let initial = Initial::new(self.type_name(), training.seed, parameters.clone());
        training.set_rules(&mut units, parameters, initial);
        units
    }

    /// Vocabulary size; 0 until it is known from the data.
    pub fn vocab_size(&self) -> usize {
        self.family(None).vocab_size()
    }

    /// Sets the vocabulary size.
    pub fn set_vocab_size(&mut self, vocab_size: usize) {
        self.0.set_vocab_size(vocab_size);
    }

    /// Number of blocks, without embedding and head.
    pub fn blocks(&self) -> usize {
        self.family(None).blocks()
    }

    /// Sets the number of blocks.
    pub fn set_blocks(&mut self, blocks: usize) {
        self.0.set_blocks(blocks);
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
    pub fn from_hugging_face(folder: &Folder) -> Result<(Self, Option<MoeConfig>), ModelError> {
        (of_folder(folder)?.from_hugging_face)(folder)
    }

    /// Maps the paths of parameters to their sources in a Hugging Face folder.
    pub(crate) fn hugging_face_names(folder: &Folder) -> Result<SourceOf, ModelError> {
        Ok((of_folder(folder)?.hugging_face_names)(folder))
    }
}

/// The family that reads a folder.
fn of_folder(folder: &Folder) -> Result<Entry, ModelError> {
    let found = folder.config()["model_type"].as_str();
    let all = entries();
    let reads = |entry: &&Entry| found.is_some_and(|found| entry.model_types.contains(&found));
    all.iter().find(reads).copied().ok_or_else(|| {
        let found = found.map_or("no `model_type`".into(), |kind| format!("`model_type` \"{kind}\""));
        let known: Vec<&str> = all.iter().flat_map(|entry| entry.model_types).copied().collect();
        let (last, others) = known.split_last().expect("families of this crate read folders");
        folder.config_error(format!("has {found}; known are {} and {last}", others.join(", ")))
    })
}

impl AnyModel {
    /// The model, if it can predict several tokens ahead for [`generate_speculative`](crate::generate_speculative).
    pub fn predicts_ahead(&self) -> Option<&DeepSeek> {
        self.get::<DeepSeek>().filter(|model| !model.mtp.is_empty())
    }
}

impl<C: Architecture> From<C> for ModelConfig {
    fn from(config: C) -> Self {
        Self(Box::new(config))
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        (OWN[0].default)().0
    }
}

impl Clone for ModelConfig {
    fn clone(&self) -> Self {
        Self(self.0.boxed())
    }
}

impl PartialEq for ModelConfig {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

/// The keys of the shape, with `type` before them.
impl Serialize for ModelConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Mapping(shape) = self.0.to_yaml().map_err(S::Error::custom)? else {
            return Err(S::Error::custom(format!("the configuration of {} is not a struct", self.type_name())));
        };
        let mut keys = Mapping::new();
        keys.insert("type".into(), self.type_name().into());
        keys.extend(shape);
        keys.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = Mapping::deserialize(deserializer)?;
        let kind = keys.remove("type").ok_or_else(|| D::Error::missing_field("type"))?;
        let entry = entries().into_iter().find(|entry| kind.as_str() == Some(entry.type_name));
        let entry = entry.ok_or_else(|| {
            let types = Self::types().join(", ");
            let kind = kind.as_str().unwrap_or("not a name");
            D::Error::custom(format!(
                "model.type is {kind}: give one of {types}, or run the program that adds this type"
            ))
        })?;
        (entry.read)(Value::Mapping(keys)).map_err(D::Error::custom)
    }
}

impl JsonSchema for ModelConfig {
    fn schema_name() -> Cow<'static, str> {
        "ModelConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let choices: Vec<Schema> = entries().into_iter().map(|entry| (entry.schema)(generator)).collect();
        json_schema!({"oneOf": choices})
    }
}

#[cfg(test)]
mod tests;
