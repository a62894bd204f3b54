//! Training and the subcommands. Each file holds a command's arguments, errors and implementation; `values` parses the
//! values that several commands take.

pub mod completions;
pub mod config;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod launch;
pub mod logits;
pub mod man;
pub mod plan;
pub mod prepare;
pub mod presets;
pub mod profile;
pub mod report;
pub(crate) mod saved;
pub mod train;
mod values;

use crate::run::folder::is_empty;
use model::ModelError;
use model::hf::Folder;
use std::path::{Path, PathBuf};

/// The destination already exists.
#[derive(Debug, thiserror::Error)]
pub enum NotNew {
    #[error("{} exists and is not an empty folder: name a new one with --out, or delete it", .0.display())]
    Folder(PathBuf),
    #[error("{} exists: name a new file with {flag}, or delete it", path.display())]
    File { path: PathBuf, flag: &'static str },
}

/// Rejects an existing path unless it is an empty folder.
fn check_new(folder: &Path) -> Result<(), NotNew> {
    if folder.exists() && !is_empty(folder) { Err(NotNew::Folder(folder.into())) } else { Ok(()) }
}

/// Rejects an existing file given with `flag`.
fn check_new_file(path: &Path, flag: &'static str) -> Result<(), NotNew> {
    if path.exists() { Err(NotNew::File { path: path.into(), flag }) } else { Ok(()) }
}

/// Why a folder given with --hf cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HfFolderError {
    #[error("there is no folder {}: {advice}", path.display())]
    Missing { path: PathBuf, advice: String },
    #[error(transparent)]
    Hf(#[from] ModelError),
}

/// Opens a folder given with --hf.
fn open_hf(path: &Path) -> Result<Folder, HfFolderError> {
    if path.exists() {
        return Ok(Folder::open(path)?);
    }
    let elsewhere = path.to_str().and_then(|name| data::how_to_get(name, "model"));
    let advice = elsewhere.unwrap_or_else(|| "give one with config.json and model.safetensors".into());
    Err(HfFolderError::Missing { path: path.into(), advice })
}
