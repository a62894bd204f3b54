//! The sub-commands, a file each: its arguments, what can go wrong, and what it does.

pub mod config;
pub mod eval;
pub mod export;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod logits;
pub mod prepare;
pub mod presets;
pub mod report;

use crate::cli::whole_number;
use crate::run_folder::is_empty;
use model::hf::{Folder, HfError};
use std::path::{Path, PathBuf};

/// Parses an argument that counts something.
fn at_least_1(text: &str) -> Result<usize, String> {
    match whole_number(text)? {
        0 => Err("give at least 1".into()),
        number => Ok(number),
    }
}

/// A folder to write has something in it.
#[derive(Debug, thiserror::Error)]
#[error("{} exists and is not an empty folder: name a new one with --out, or delete it", .0.display())]
pub struct NotNew(PathBuf);

/// Refuses what is there and is not an empty folder.
fn check_new(folder: &Path) -> Result<(), NotNew> {
    if folder.exists() && !is_empty(folder) { Err(NotNew(folder.into())) } else { Ok(()) }
}

/// Why a folder given with --hf is not opened.
#[derive(Debug, thiserror::Error)]
pub enum HfFolderError {
    #[error("there is no folder {}: {advice}", path.display())]
    Missing { path: PathBuf, advice: String },
    #[error(transparent)]
    Hf(#[from] HfError),
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
