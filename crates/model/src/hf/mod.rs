//! Weights in Hugging Face's format: a folder with `config.json` and `model.safetensors` (or its shards and index).

mod deepseek;
mod folder;
mod gpt2;
mod load;

pub use folder::Folder;
pub use load::{Pretrained, Source, bind, names};

use std::path::PathBuf;

/// Why a folder could not be read; each message names the file, and the tensor or key where there is one.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// A file that is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
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
