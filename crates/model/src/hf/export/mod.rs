//! Export of a model as a Hugging Face folder.

mod plan;
mod write;

pub use write::Dtype;

use crate::Family;
use crate::ModelError;
use plan::{Tensor, Values, plan};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use write::write_shard;

/// Settings of an export.
#[derive(Debug, Clone, Copy)]
pub struct ExportOptions<'a> {
    /// Type of the weights. The selection bias is always f32, as on the hub and in transformers.
    pub dtype: Dtype,
    /// Maximum bytes of tensors per file; a single larger tensor gets its own file.
    pub max_shard_bytes: u64,
    /// The tokens that end a text, the tokenizer's first.
    pub end_of_text: &'a [u32],
    /// The token that begins a text; defaults to the first one that ends one.
    pub begin_of_text: Option<u32>,
    /// Names and contents of the tokenizer files to add to the folder.
    pub tokenizer: &'a [(String, Vec<u8>)],
}

impl Default for ExportOptions<'_> {
    /// f32, 5 GB per file (the former default of transformers), no tokenizer.
    fn default() -> Self {
        let (end_of_text, tokenizer) = (&[], &[]);
        Self { dtype: Dtype::F32, max_shard_bytes: 5_000_000_000, end_of_text, begin_of_text: None, tokenizer }
    }
}

/// Result of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Names of the weight files.
    pub weight_files: Vec<String>,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of elements in the tensors.
    pub parameters: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
}

/// Writes a new folder that transformers can load: `config.json`, `generation_config.json`, the tokenizer files, and
/// `model.safetensors` or shards with `model.safetensors.index.json`.
///
/// `values` returns a parameter's values row by row, given its path in Kiln's model (`blocks.0.attn.c_attn.weight`). It
/// is called once per parameter, in any order, and only one parameter is in memory at a time. The folder is written as
/// `NAME.partial` next to its destination, synced and renamed, so it is either complete or absent.
///
/// Settings that only matter in training (capacity, noise, balancing losses, the speed of the bias) are left out. A
/// GPT-2 without biases gets zero biases, as does a DeepSeek with sigmoid scores but no selection bias.
///
/// # Errors
/// If the folder exists and is not empty or cannot be written, if `values` fails or returns numbers that do not fit the
/// shape or the type, or if transformers cannot compute what the model does.
pub fn export<E: Into<Box<dyn Error + Send + Sync>>>(
    folder: &Path,
    model: &dyn Family,
    options: &ExportOptions,
    mut values: impl FnMut(&str) -> Result<Vec<f32>, E>,
) -> Result<Summary, ModelError> {
    let format = model.hugging_face().ok_or_else(|| ModelError::without_format("this"))?;
    let mut config = format.config()?;
    let name = options.dtype.name();
    let begin = options.begin_of_text.or(options.end_of_text.first().copied());
    let end = match options.end_of_text {
        [] => Value::Null,
        [one] => json!(one),
        several => json!(several),
    };
    let tokens = json!({"bos_token_id": begin, "eos_token_id": end, "pad_token_id": null});
    for (key, value) in [("torch_dtype", json!(name)), ("dtype", json!(name))] {
        config[key] = value;
    }
    let mut generation = json!({"_from_model_config": true});
    for json in [&mut config, &mut generation] {
        tokens.as_object().expect("an object").iter().for_each(|(key, value)| json[key] = value.clone());
    }

    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(ModelError::NotEmpty { path: folder.into() });
    }
    let partial = Partial::create(folder)?;
    let mut values = |path: &str| {
        values(path).map_err(|error| ModelError::Parameter { path: path.into(), reason: error.into().to_string() })
    };
    let mut values = Values::new(&mut values);
    let summary = write_weights(&partial.path, &plan(model, &*format, options.dtype)?, options, &mut values)?;
    write_json(&partial.path.join("config.json"), &config)?;
    write_json(&partial.path.join("generation_config.json"), &generation)?;
    for (name, bytes) in options.tokenizer {
        write_synced(&partial.path.join(name), bytes)?;
    }
    partial.rename(folder)?;
    Ok(summary)
}

fn write_weights(
    folder: &Path,
    tensors: &[Tensor],
    options: &ExportOptions,
    values: &mut Values<'_>,
) -> Result<Summary, ModelError> {
    let shards = shards(tensors, options.max_shard_bytes);
    let name = |i: usize| match shards.len() {
        1 => "model.safetensors".to_string(),
        n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    let mut weight_map = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        write_shard(&folder.join(name(i)), shard, values)?;
        weight_map.extend(shard.iter().map(|tensor| (&tensor.name, name(i))));
    }
    let bytes = tensors.iter().map(Tensor::bytes).sum();
    if shards.len() > 1 {
        let index = json!({"metadata": {"total_size": bytes}, "weight_map": weight_map});
        write_json(&folder.join("model.safetensors.index.json"), &index)?;
    }
    Ok(Summary {
        weight_files: (0..shards.len()).map(name).collect(),
        tensors: tensors.len(),
        parameters: tensors.iter().map(Tensor::elements).sum(),
        bytes,
    })
}

/// Splits the tensors into runs of at most `max_bytes`.
fn shards(tensors: &[Tensor], max_bytes: u64) -> Vec<&[Tensor]> {
    let (mut shards, mut first, mut bytes) = (vec![], 0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        if i > first && bytes + tensor.bytes() > max_bytes {
            shards.push(&tensors[first..i]);
            (first, bytes) = (i, 0);
        }
        bytes += tensor.bytes();
    }
    shards.push(&tensors[first..]);
    shards
}

fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    write_synced(path, (serde_json::to_string_pretty(value).expect("JSON has a text") + "\n").as_bytes())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    let write = || {
        fs::write(path, bytes)?;
        File::open(path)?.sync_all()
    };
    write().map_err(|source| ModelError::Write { path: path.into(), source })
}

/// A folder being written; deleted unless it is renamed.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn create(folder: &Path) -> Result<Self, ModelError> {
        // Built from the name because the path may end in a slash.
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let path = folder.with_file_name(format!("{name}.partial"));
        let create = || {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::create_dir(&path)
        };
        match create() {
            Ok(()) => Ok(Self { path }),
            Err(_) if path.exists() => Err(ModelError::NotEmpty { path }), // an interrupted or a concurrent export
            Err(source) => Err(ModelError::Write { path, source }),
        }
    }

    fn rename(self, folder: &Path) -> Result<(), ModelError> {
        let rename = || {
            File::open(&self.path)?.sync_all()?;
            if folder.exists() {
                fs::remove_dir(folder)?; // it was empty
            }
            fs::rename(&self.path, folder)?;
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        };
        rename().map_err(|source| ModelError::Write { path: folder.into(), source })
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // fails harmlessly after a rename
    }
}
