use super::HfError;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// An opened Hugging Face folder; tensors are read from memory-mapped files when they are asked for.
pub struct Folder {
    path: PathBuf,
    config: Value,
    files: Vec<(PathBuf, Mmap)>,
    /// File of each tensor, where the folder is sharded; else everything is in the one file.
    index: BTreeMap<String, usize>,
}

impl Folder {
    /// Opens `config.json` and `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    pub fn open(path: &Path) -> Result<Self, HfError> {
        let config = read_json(&path.join("config.json"))?;
        let mut folder = Self { path: path.into(), config, files: vec![], index: BTreeMap::new() };
        let index_path = path.join("model.safetensors.index.json");
        if !index_path.exists() {
            folder.add_file(path.join("model.safetensors"))?;
            return Ok(folder);
        }
        let index = read_json(&index_path)?;
        let bad = |reason: &str| HfError::Format { path: index_path.clone(), reason: reason.into() };
        let map = index["weight_map"].as_object().ok_or_else(|| bad("has no object `weight_map`"))?;
        let mut number = BTreeMap::new();
        for (name, file) in map {
            let file = file.as_str().ok_or_else(|| bad("`weight_map` must map tensor names to file names"))?;
            if Path::new(file).file_name().is_none_or(|base| base != file) {
                return Err(bad(&format!("`{file}` is not the name of a file beside it")));
            }
            if !number.contains_key(file) {
                number.insert(file, folder.add_file(path.join(file))?);
            }
            folder.index.insert(name.clone(), number[file]);
        }
        if folder.files.is_empty() {
            return Err(bad("`weight_map` lists no tensors"));
        }
        Ok(folder)
    }

    /// The folder's `config.json`.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// An error about `config.json`.
    pub fn config_error(&self, reason: impl Into<String>) -> HfError {
        HfError::Format { path: self.path.join("config.json"), reason: reason.into() }
    }

    /// Whether the folder has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        match self.index.is_empty() {
            true => self.tensors(0).is_ok_and(|tensors| tensors.tensor(name).is_ok()),
            false => self.index.contains_key(name),
        }
    }

    /// A tensor's values as f32; stored as f32, f16 or bf16.
    ///
    /// # Errors
    /// If it is missing, has not the shape `expected`, or is stored in another type.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, HfError> {
        let missing = |path: &Path| HfError::MissingTensor { path: path.into(), name: name.into() };
        let file = match self.index.is_empty() {
            true => 0,
            false => *self.index.get(name).ok_or_else(|| missing(&self.path.join("model.safetensors.index.json")))?,
        };
        let path = &self.files[file].0;
        let tensors = self.tensors(file)?;
        let view = tensors.tensor(name).map_err(|_| missing(path))?;
        if view.shape() != expected {
            let (name, found, expected) = (name.into(), view.shape().to_vec(), expected.to_vec());
            return Err(HfError::WrongShape { path: path.clone(), name, found, expected });
        }
        let halves = |decode: fn([u8; 2]) -> f32| view.data().as_chunks().0.iter().map(|b| decode(*b)).collect();
        match view.dtype() {
            Dtype::F32 => Ok(view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
            Dtype::F16 => Ok(halves(|bytes| f16::from_le_bytes(bytes).to_f32())),
            Dtype::BF16 => Ok(halves(|bytes| bf16::from_le_bytes(bytes).to_f32())),
            other => {
                let reason = format!("tensor `{name}` is stored as {other:?}; F32, F16 and BF16 can be read");
                Err(HfError::Format { path: path.clone(), reason })
            }
        }
    }

    fn add_file(&mut self, path: PathBuf) -> Result<usize, HfError> {
        let io = |source| HfError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the map is only read; as with every memory-mapped weight file, it must not be changed while in use.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        check_header(&path, &map)?;
        self.files.push((path, map));
        Ok(self.files.len() - 1)
    }

    fn tensors(&self, file: usize) -> Result<SafeTensors<'_>, HfError> {
        let (path, map) = &self.files[file];
        SafeTensors::deserialize(map)
            .map_err(|error| HfError::Format { path: path.clone(), reason: format!("not a safetensors file: {error}") })
    }
}

fn check_header(path: &Path, map: &Mmap) -> Result<(), HfError> {
    let broken = |error| HfError::Format {
        path: path.into(),
        reason: format!("not a whole safetensors file ({} bytes): {error}", map.len()),
    };
    SafeTensors::deserialize(map).map(|_| ()).map_err(broken)
}

fn read_json(path: &Path) -> Result<Value, HfError> {
    let text = fs::read_to_string(path).map_err(|source| HfError::Io { path: path.into(), source })?;
    serde_json::from_str(&text)
        .map_err(|error| HfError::Format { path: path.into(), reason: format!("not JSON: {error}") })
}
