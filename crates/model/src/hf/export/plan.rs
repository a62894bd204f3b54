//! The tensors of an export and where their values come from.

use super::Dtype;
use crate::ModelError;
use crate::hf::Source;
use crate::hf::load::transpose;
use crate::{Family, HuggingFace, ParameterSpec};
use std::collections::HashSet;

/// A tensor of the exported folder.
pub struct Tensor {
    /// Its name in the folder.
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    pub content: Content,
}

/// Where the values of a tensor come from.
#[derive(Clone)]
pub enum Content {
    /// Zeros, for a parameter that Kiln's model does not have.
    Zeros,
    /// A parameter, unchanged.
    Same { path: String },
    /// The transpose of a parameter `[in, out]`, or of one expert's matrix in a stack `[e, in, out]`.
    Transposed { path: String, expert: usize },
}

impl Tensor {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.dtype.size()
    }
}

/// Lists all tensors of the folder, in the model's order.
///
/// # Errors
/// If a source does not fit the dimensions of its parameter.
pub fn plan(model: &dyn Family, format: &dyn HuggingFace, dtype: Dtype) -> Result<Vec<Tensor>, ModelError> {
    let mut tensors = vec![];
    let ours: HashSet<String> = model.parameters().into_iter().map(|parameter| parameter.name).collect();
    for ParameterSpec { name: path, shape, keep_fp32, .. } in format.parameters() {
        let dtype = if keep_fp32 { Dtype::F32 } else { dtype };
        let is_ours = ours.contains(&path);
        let mut add = |name: String, shape: &[usize], content: Content| {
            let content = if is_ours { content } else { Content::Zeros };
            tensors.push(Tensor { name, shape: shape.to_vec(), dtype, content });
        };
        match (format.source(&path), &shape[..]) {
            (Source::Same(name), _) => add(name, &shape, Content::Same { path }),
            (Source::Transposed(name), &[from, to]) => {
                add(name, &[to, from], Content::Transposed { path, expert: 0 });
            }
            (Source::TransposedExperts(prefix, suffix), &[experts, from, to]) => {
                for expert in 0..experts {
                    let content = Content::Transposed { path: path.clone(), expert };
                    add(format!("{prefix}.{expert}.{suffix}"), &[to, from], content);
                }
            }
            (source, _) => return Err(ModelError::Parameter { path, reason: source.unfit(&shape) }),
        }
    }
    for (name, original, shape) in format.copies() {
        let content = copies(&tensors, original);
        tensors.push(Tensor { name, shape: shape.into(), dtype, content });
    }
    let empty = format.empty().into_iter();
    tensors.extend(empty.map(|(name, shape)| Tensor { name, shape: shape.into(), dtype, content: Content::Zeros }));
    Ok(tensors)
}

/// The content of the tensor with this name.
fn copies(tensors: &[Tensor], name: &str) -> Content {
    tensors.iter().find(|tensor| tensor.name == name).expect("every model has one").content.clone()
}

/// Reads the values of the parameter at a path.
pub type ReadParameter<'a> = dyn FnMut(&str) -> Result<Vec<f32>, ModelError> + 'a;

/// Reads tensors and caches the last parameter, because several tensors may be cut from it.
pub struct Values<'a> {
    of: &'a mut ReadParameter<'a>,
    kept: Option<(String, Vec<f32>)>,
}

impl<'a> Values<'a> {
    pub fn new(of: &'a mut ReadParameter<'a>) -> Self {
        Self { of, kept: None }
    }

    pub fn of(&mut self, tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
        let n = tensor.elements();
        match &tensor.content {
            Content::Zeros => Ok(vec![0.0; n]),
            Content::Same { path } => {
                self.read(path)?;
                match self.kept.take() {
                    Some((_, values)) if values.len() == n => Ok(values),
                    found => Err(wrong_length(path, found.map_or(0, |(_, values)| values.len()), &tensor.shape)),
                }
            }
            Content::Transposed { path, expert } => {
                let values = self.read(path)?;
                let Some(values) = values.get(expert * n..(expert + 1) * n) else {
                    return Err(wrong_length(path, values.len(), &tensor.shape));
                };
                Ok(transpose(values, tensor.shape[0], tensor.shape[1]))
            }
        }
    }

    fn read(&mut self, path: &str) -> Result<&[f32], ModelError> {
        if self.kept.as_ref().is_none_or(|(kept, _)| kept != path) {
            self.kept = None; // released before the next one is read
            self.kept = Some((path.into(), (self.of)(path)?));
        }
        Ok(self.kept.as_ref().map(|(_, values)| &values[..]).expect("it was just read"))
    }
}

fn wrong_length(path: &str, found: usize, shape: &[usize]) -> ModelError {
    ModelError::Parameter { path: path.into(), reason: format!("{found} values do not fill {shape:?}") }
}
