//! Weights in Hugging Face's format: a folder with `config.json` and `model.safetensors`, or shards with an index.
//!
//! [`Folder`] and [`Pretrained`] read such a folder, [`export`] writes one.

mod export;
mod folder;
mod fp8;
mod load;

pub use export::{Dtype, ExportOptions, Summary, export};
pub use folder::Folder;
pub use load::{Pretrained, Source, SourceOf, bind, names};

use std::path::PathBuf;

/// Whether transformers means SiLU by this name of an activation.
pub(crate) fn is_silu(hidden_act: &str) -> bool {
    matches!(hidden_act, "silu" | "swish")
}

/// Why a folder could not be read or written. Each message names the file, and the tensor or key if there is one.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// The folder's weights are in PyTorch's own format.
    #[error(
        "{} has no model.safetensors but {file}, which only PyTorch reads: convert it, in Python:\n{python}",
        path.display()
    )]
    PyTorch {
        /// The folder.
        path: PathBuf,
        /// The file, or the first of several.
        file: String,
        /// Python code that converts it.
        python: String,
    },
    /// A file is missing or cannot be read.
    #[error(
        "cannot read {}: {source}; a model's folder has config.json, and model.safetensors or its shards and their index",
        path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The destination of an export is not empty.
    #[error("{} exists and is not empty: choose a new folder, or delete it", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// Hugging Face's code cannot compute this model.
    #[error("{key}: {reason}")]
    NotExpressible {
        /// The configuration key.
        key: &'static str,
        /// Its value, and why it cannot be expressed.
        reason: String,
    },
    /// The values of a parameter could not be read, do not match its shape, or do not fit the file's type.
    #[error("parameter `{path}`: {reason}")]
    Parameter {
        /// The path of the parameter in Kiln's model.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A file is malformed.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder has no tensor of this name.
    #[error("{}: no tensor `{name}`: the file is incomplete or holds another model", path.display())]
    MissingTensor {
        /// The file or index that was searched.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor's shape differs from what `config.json` implies.
    #[error("{}: tensor `{name}` has shape {found:?}, but config.json makes it {expected:?}", path.display())]
    WrongShape {
        /// The file that contains the tensor.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
}
