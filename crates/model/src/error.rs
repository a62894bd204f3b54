//! The error of configurations, of generation, and of folders in Hugging Face's format.

use std::path::PathBuf;

/// Why a model cannot be built, text cannot be generated, or a folder cannot be read or written. Each message names the
/// key or the file, and the tensor if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A setting with which no model can be built or no text generated; the message names its value and the remedy.
    #[error("{0}")]
    Setting(String),
    /// A prompt without tokens, given by its number.
    #[error("prompt {0} is empty: give at least one token, such as the end of a text")]
    EmptyPrompt(usize),
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

impl ModelError {
    /// The error for a type of model that has no format in transformers.
    pub(crate) fn without_format(kind: &str) -> Self {
        Self::NotExpressible { key: "model.type", reason: format!("transformers has no model of {kind} type") }
    }
}

impl From<String> for ModelError {
    fn from(setting: String) -> Self {
        Self::Setting(setting)
    }
}

impl From<&str> for ModelError {
    fn from(setting: &str) -> Self {
        Self::Setting(setting.into())
    }
}
