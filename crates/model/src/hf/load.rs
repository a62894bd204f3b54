//! Loading a model's weights from a Hugging Face folder.

use super::Folder;
use crate::ModelError;
use crate::{AnyModel, LanguageModel, ModelConfig, fill};
use burn::module::Module;
use burn::tensor::Device;
use moe::MoeConfig;
use std::ops::Deref;

/// A model loaded from a folder.
#[derive(Debug)]
pub struct Pretrained {
    /// Family and shape.
    pub config: ModelConfig,
    /// The experts, if it has some.
    pub moe: Option<MoeConfig>,
    /// The model with its weights.
    pub model: AnyModel,
    /// Names of the folder's tensors that are not part of the model: `config.json` may belong to a different model.
    pub unread: Vec<String>,
}

impl Pretrained {
    /// Loads configuration and weights.
    pub fn load(folder: &Folder, device: &Device) -> Result<Self, ModelError> {
        let (config, moe) = ModelConfig::from_hugging_face(folder)?;
        let family = config.family(moe.as_ref());
        let format = family.hugging_face().ok_or_else(|| ModelError::without_format(config.type_name()))?;
        let source_of = names(folder)?;
        let model =
            config.model(moe.as_ref(), device).fill(|path, shape| values(folder, path, &source_of(path), shape))?;
        format.check(folder)?;
        let unread = folder.unread().into_iter().filter(|name| !format.is_buffer(name)).collect();
        drop(format);
        drop(family);
        Ok(Self { config, moe, model, unread })
    }
}

impl Deref for Pretrained {
    type Target = dyn LanguageModel;

    fn deref(&self) -> &Self::Target {
        &*self.model
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

impl Source {
    /// Why a parameter of this shape cannot have this source.
    pub(super) fn unfit(&self, shape: &[usize]) -> String {
        let wanted = match self {
            Self::Same(_) => "any number of",
            Self::Transposed(_) => "two",
            Self::TransposedExperts(..) => "three",
        };
        format!("its source {self:?} is for {wanted} dimensions, and its shape is {shape:?}: name another source")
    }
}

/// Maps the path of a parameter to its source.
pub type SourceOf = Box<dyn Fn(&str) -> Source>;

/// Maps the path of a parameter in Kiln's models to its source in `folder`.
///
/// # Errors
/// If no family reads the folder's `model_type`.
pub fn names(folder: &Folder) -> Result<SourceOf, ModelError> {
    ModelConfig::hugging_face_names(folder)
}

/// Sets every parameter of `module` to the values of its source. `source_of` maps a parameter's field path
/// (`blocks.0.attn.c_attn.weight`) to the source.
///
/// # Errors
/// If the folder lacks a tensor, has it with another shape, or cannot be read, or if a source does not fit the dimensions
/// of its parameter.
pub fn bind<M: Module>(module: M, folder: &Folder, source_of: &dyn Fn(&str) -> Source) -> Result<M, ModelError> {
    fill(module, |path, shape| values(folder, path, &source_of(path), shape))
}

fn values(folder: &Folder, path: &str, source: &Source, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
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
        _ => Err(ModelError::Parameter { path: path.into(), reason: source.unfit(shape) }),
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
