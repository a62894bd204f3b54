//! Weights in Hugging Face's format: a folder with `config.json` and `model.safetensors` (or its shards and index).
//!
//! [`Folder`] and [`Pretrained`] read one, [`export`] writes one.

mod deepseek;
mod export;
mod folder;
mod fp8;
mod gpt2;
mod load;

pub use export::{Dtype, ExportModel, ExportOptions, Summary, export};
pub use folder::Folder;
pub use load::{Pretrained, Source, bind, names};

use std::path::PathBuf;

/// Why a folder could not be read or written; each message names the file, and the tensor or key where there is one.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// The folder has weights, but of PyTorch's own format.
    #[error(
        "{} has no model.safetensors but {file}, which only PyTorch reads: convert it, in Python:\n{python}",
        path.display()
    )]
    PyTorch {
        /// The folder.
        path: PathBuf,
        /// The file, or the first of them.
        file: String,
        /// What converts it.
        python: String,
    },
    /// A file that is missing or cannot be read.
    #[error(
        "cannot read {}: {source}; a model's folder has config.json, and model.safetensors or its shards and their index",
        path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file or folder that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder of an export has files in it.
    #[error("{} exists and is not empty: choose a new folder, or delete it", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A model that Hugging Face's code cannot compute.
    #[error("{key}: {reason}")]
    NotExpressible {
        /// The key of the configuration.
        key: &'static str,
        /// Its value, and why there is no equal.
        reason: String,
    },
    /// The values of a parameter could not be had, or are not what its shape says, or do not fit the file's type.
    #[error("parameter `{path}`: {reason}")]
    Parameter {
        /// The path of the parameter in our model.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A file that is not what its name says.
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
    /// A tensor has another shape than `config.json` says.
    #[error("{}: tensor `{name}` has shape {found:?}, but config.json makes it {expected:?}", path.display())]
    WrongShape {
        /// The file the tensor is in.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
    },
}
