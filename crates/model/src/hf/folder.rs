//! Reading tensors from a Hugging Face folder.

use super::fp8;
use crate::ModelError;
use half::{bf16, f16};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::Value;
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// An open Hugging Face folder. Its files stay open and tensors are read on demand; a file that is truncated in the
/// meantime is an error.
pub struct Folder {
    path: PathBuf,
    config: Value,
    files: Vec<Shard>,
    /// File of each tensor in a sharded folder; empty if there is only one file.
    index: BTreeMap<String, usize>,
    /// Rows and columns of the block of an fp8 matrix that shares a scale.
    fp8_block: [usize; 2],
    /// Names of the tensors that were read.
    read: Mutex<HashSet<String>>,
}

struct Shard {
    path: PathBuf,
    file: File,
    /// Offset of the tensors.
    start: u64,
    header: Metadata,
}

/// A tensor as it is stored.
struct Stored<'a> {
    path: &'a Path,
    dtype: Dtype,
    shape: &'a [usize],
    file: &'a File,
    /// Byte range in the file.
    bytes: Range<u64>,
}

/// Bytes read at once; a multiple of the size of every type.
const AT_ONCE: u64 = 1 << 20;

/// The longest header that safetensors allows.
const MAX_HEADER: u64 = 100_000_000;

impl Stored<'_> {
    /// Reads the values; `decode` appends those of up to [`AT_ONCE`] bytes at a time.
    fn values(&self, decode: impl Fn(&[u8], &mut Vec<f32>)) -> Result<Vec<f32>, ModelError> {
        let mut values = Vec::with_capacity(self.shape.iter().product());
        let mut buffer = vec![0; (self.bytes.end - self.bytes.start).min(AT_ONCE) as usize];
        for start in self.bytes.clone().step_by(AT_ONCE as usize) {
            let bytes = &mut buffer[..(self.bytes.end - start).min(AT_ONCE) as usize];
            let failed = |source| ModelError::Io { path: self.path.into(), source };
            self.file.read_exact_at(bytes, start).map_err(failed)?;
            decode(bytes, &mut values);
        }
        Ok(values)
    }
}

/// Tokenizer files; a folder has some of them.
const TOKENIZER_FILES: [&str; 5] =
    ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"];

impl Folder {
    /// Opens `config.json` and `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed, or if the weights are quantized in a format other than fp8.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let config = read_json(&path.join("config.json"))?;
        let mut folder = Self {
            path: path.into(),
            config,
            files: vec![],
            index: BTreeMap::new(),
            fp8_block: [128, 128],
            read: Mutex::default(),
        };
        folder.fp8_block = folder.read_fp8_block()?;
        let index_path = path.join("model.safetensors.index.json");
        if !index_path.exists() {
            check_format(path)?;
            folder.add_file(path.join("model.safetensors"))?;
            return Ok(folder);
        }
        let index = read_json(&index_path)?;
        let bad = |reason: &str| ModelError::Format { path: index_path.clone(), reason: reason.into() };
        let map = index["weight_map"].as_object().ok_or_else(|| bad("has no object `weight_map`"))?;
        let mut number = BTreeMap::new();
        for (name, file) in map {
            let file = file.as_str().ok_or_else(|| bad("`weight_map` must map tensor names to file names"))?;
            if Path::new(file).file_name().is_none_or(|base| base != file) {
                return Err(bad(&format!("`{file}` is not the name of a file in the same folder")));
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
    pub fn config_error(&self, reason: impl Into<String>) -> ModelError {
        ModelError::Format { path: self.path.join("config.json"), reason: reason.into() }
    }

    /// The values of the keys of `config.json`, or of the section of it at the path `of`. An error names the key.
    pub(crate) fn keys<T: DeserializeOwned>(&self, json: &Value, of: &str) -> Result<T, ModelError> {
        let Some(object) = json.as_object() else {
            let what = if of.is_empty() { String::new() } else { format!("{of} ") };
            return Err(self.config_error(format!("{what}is not an object with keys and values")));
        };
        let (mut entries, last) = (object.iter(), Cell::new(None));
        let entries = std::iter::from_fn(|| {
            let entry = entries.next();
            last.set(entry.map(|(key, _)| key));
            entry.map(|(key, value)| (key.as_str(), value))
        });
        let read = T::deserialize(MapDeserializer::<_, serde_json::Error>::new(entries));
        read.map_err(|error| {
            let reason = error.to_string();
            let reason = reason
                .replace("expected usize", "expected a whole number")
                .replace("expected f64", "expected a number");
            // serde names a key only if it is missing, which it finds after the last one.
            self.config_error(match last.get() {
                Some(key) if of.is_empty() => format!("{key}: {reason}"),
                Some(key) => format!("{of}.{key}: {reason}"),
                None => reason,
            })
        })
    }

    /// Rejects a `copy` of a tensor that exists but is not equal to the original.
    pub(crate) fn check_copy(&self, copy: &str, original: &str, shape: &[usize]) -> Result<(), ModelError> {
        if !self.has(copy) || self.tensor(copy, shape)? == self.tensor(original, shape)? {
            return Ok(());
        }
        let (path, reason) = (self.stored(copy)?.path.into(), format!("tensor `{copy}` is not equal to `{original}`"));
        Err(ModelError::Format { path, reason })
    }

    /// Names and contents of the tokenizer files in the folder.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn tokenizer_files(&self) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
        let there = TOKENIZER_FILES.into_iter().filter(|name| self.path.join(name).is_file());
        let read = |name: &str| {
            let path = self.path.join(name);
            let bytes = fs::read(&path).map_err(|source| ModelError::Io { path, source })?;
            Ok((name.to_string(), bytes))
        };
        there.map(read).collect()
    }

    /// The tokens that end a text: `eos_token_id` of `generation_config.json`, or else of `config.json`.
    ///
    /// # Errors
    /// If `generation_config.json` cannot be read, or the value is neither a token nor a list of tokens.
    pub fn end_of_text(&self) -> Result<Vec<u32>, ModelError> {
        let path = self.path.join("generation_config.json");
        let generation = if path.is_file() { read_json(&path)? } else { Value::Null };
        let (path, id) = match &generation["eos_token_id"] {
            Value::Null => (self.path.join("config.json"), &self.config["eos_token_id"]),
            id => (path, id),
        };
        let ids = match id {
            Value::Null => return Ok(vec![]),
            Value::Array(ids) => &ids[..],
            id => std::slice::from_ref(id),
        };
        let token = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        ids.iter().map(token).collect::<Option<_>>().ok_or_else(|| {
            let reason = format!("eos_token_id is {id}: it is the number of a token, or a list of such numbers");
            ModelError::Format { path, reason }
        })
    }

    /// Whether the folder contains a tensor with this name.
    pub fn has(&self, name: &str) -> bool {
        self.stored(name).is_ok()
    }

    /// The names of the tensors that have not been read yet, in order, except those without elements.
    pub fn unread(&self) -> Vec<String> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.files.iter().flat_map(|file| file.header.tensors());
        let unread = all.filter(|(name, tensor)| !read.contains(name) && !tensor.shape.contains(&0));
        let mut names: Vec<String> = unread.map(|(name, _)| name).collect();
        names.sort();
        names
    }

    /// Reads a tensor as f32.
    ///
    /// Supported types are f32, f16, bf16 and fp8 (e4m3). An fp8 matrix comes with a tensor `NAME_scale_inv` that holds
    /// one f32 factor per block, as in DeepSeek-V3's files.
    ///
    /// # Errors
    /// If the tensor is missing, does not have the shape `expected`, or is stored in another type.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Vec<f32>, ModelError> {
        let stored = self.stored_as(name, expected)?;
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into());
        let halves = |decode: fn([u8; 2]) -> f32| {
            stored.values(|bytes, values| values.extend(bytes.as_chunks().0.iter().map(|b| decode(*b))))
        };
        let path = stored.path;
        match stored.dtype {
            Dtype::F32 => stored.values(|bytes, values| {
                values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }),
            Dtype::F16 => halves(|bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => halves(|bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::F8_E4M3 => {
                let &[rows, columns] = expected else {
                    let reason = format!("tensor `{name}` is fp8, but its shape {expected:?} is not that of a matrix");
                    return Err(ModelError::Format { path: path.into(), reason });
                };
                let [block_rows, block_columns] = self.fp8_block;
                let blocks = [rows.div_ceil(block_rows), columns.div_ceil(block_columns)];
                let scales_name = format!("{name}_scale_inv");
                let scales = self.stored_as(&scales_name, &blocks)?;
                if scales.dtype != Dtype::F32 {
                    let reason =
                        format!("tensor `{scales_name}` is stored as {:?}; scales of fp8 are F32", scales.dtype);
                    return Err(ModelError::Format { path: scales.path.into(), reason });
                }
                let mut values = stored.values(|bytes, values| values.extend(fp8::decoded(bytes)))?;
                fp8::scale(&mut values, columns, &self.tensor(&scales_name, &blocks)?, self.fp8_block);
                Ok(values)
            }
            other => {
                let reason = format!("tensor `{name}` is stored as {other:?}; F32, F16, BF16 and F8_E4M3 can be read");
                Err(ModelError::Format { path: path.into(), reason })
            }
        }
    }

    /// Rejects sizes in a model's shape that no tensor of the folder can have, before memory is allocated for them.
    pub(crate) fn check_sizes(&self, shape: &impl Serialize) -> Result<(), ModelError> {
        let tensors = || self.files.iter().flat_map(|file| file.header.tensors().into_values());
        let count = tensors().count();
        let numbers = tensors().fold(0usize, |sum, tensor| sum.saturating_add(tensor.shape.iter().product()));
        let json = serde_json::to_value(shape).expect("a configuration is JSON");
        for (key, value) in json.as_object().into_iter().flatten() {
            let (limit, what) = match &key[..] {
                // Not the size of any tensor.
                "max_position_embeddings" | "sliding_window" | "max_window_layers" => continue,
                "n_layer" | "num_hidden_layers" => (count, "tensors in the folder"),
                _ => (numbers, "numbers in the folder"),
            };
            if let Some(value) = value.as_u64().filter(|value| *value > limit as u64) {
                return Err(self.config_error(format!("says {value} for {key}, but there are only {limit} {what}")));
            }
        }
        Ok(())
    }

    fn read_fp8_block(&self) -> Result<[usize; 2], ModelError> {
        let quantization = &self.config["quantization_config"];
        if quantization.is_null() {
            return Ok(self.fp8_block);
        }
        let (method, format) = (quantization["quant_method"].as_str(), quantization["fmt"].as_str());
        if method != Some("fp8") || format.is_some_and(|format| format != "e4m3") {
            let (method, format) = (method.unwrap_or("none"), format.unwrap_or("none"));
            return Err(self.config_error(format!(
                "quantization_config has quant_method \"{method}\" and fmt \"{format}\"; fp8 with e4m3 can be read"
            )));
        }
        match &quantization["weight_block_size"] {
            Value::Null => Ok(self.fp8_block),
            block => match serde_json::from_value::<[usize; 2]>(block.clone()) {
                Ok([rows, columns]) if rows > 0 && columns > 0 => Ok([rows, columns]),
                _ => Err(self.config_error(format!(
                    "quantization_config.weight_block_size is {block}, not rows and columns as in [128, 128]"
                ))),
            },
        }
    }

    fn stored_as(&self, name: &str, expected: &[usize]) -> Result<Stored<'_>, ModelError> {
        let stored = self.stored(name)?;
        if stored.shape != expected {
            let (name, found, expected) = (name.into(), stored.shape.to_vec(), expected.to_vec());
            return Err(ModelError::WrongShape { path: stored.path.into(), name, found, expected });
        }
        Ok(stored)
    }

    fn stored(&self, name: &str) -> Result<Stored<'_>, ModelError> {
        let missing = |path: &Path| ModelError::MissingTensor { path: path.into(), name: name.into() };
        let file = match self.index.is_empty() {
            true => 0,
            false => *self.index.get(name).ok_or_else(|| missing(&self.path.join("model.safetensors.index.json")))?,
        };
        let Shard { path, file, start, header } = &self.files[file];
        let info = header.info(name).ok_or_else(|| missing(path))?;
        let bytes = start + info.data_offsets.0 as u64..start + info.data_offsets.1 as u64;
        Ok(Stored { path, dtype: info.dtype, shape: &info.shape, file, bytes })
    }

    fn add_file(&mut self, path: PathBuf) -> Result<usize, ModelError> {
        let io = |source: io::Error| ModelError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let bad = |error: String| {
            let reason = format!("not a whole safetensors file ({} bytes): {error}", metadata.len());
            ModelError::Format { path: path.clone(), reason }
        };
        if !metadata.is_file() {
            return Err(bad("no regular file".into()));
        }
        let header = read_header(&file, metadata.len()).map_err(io)?;
        let (start, header) = header.map_err(|error| bad(error.to_string()))?;
        self.files.push(Shard { path, file, start, header });
        Ok(self.files.len() - 1)
    }
}

/// Returns the header and its length including the length field. Verifies that every tensor is within the file and has
/// the number of bytes that its shape requires.
fn read_header(file: &File, length: u64) -> io::Result<Result<(u64, Metadata), SafeTensorError>> {
    let mut first = [0; size_of::<u64>()];
    if length < first.len() as u64 {
        return Ok(Err(SafeTensorError::HeaderTooSmall));
    }
    file.read_exact_at(&mut first, 0)?;
    let start = u64::from_le_bytes(first).saturating_add(first.len() as u64);
    if start > length.min(MAX_HEADER) {
        let too_large = start > MAX_HEADER;
        return Ok(Err(if too_large { SafeTensorError::HeaderTooLarge } else { SafeTensorError::InvalidHeaderLength }));
    }
    let mut header = vec![0; start as usize];
    file.read_exact_at(&mut header, 0)?;
    // Given only the header, the crate reports the missing data last, once everything else is valid.
    match SafeTensors::read_metadata(&header) {
        Ok(_) | Err(SafeTensorError::MetadataIncompleteBuffer) => {}
        Err(error) => return Ok(Err(error)),
    }
    let metadata: Metadata = match serde_json::from_slice(&header[first.len()..]) {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Err(SafeTensorError::InvalidHeaderDeserialization(error))),
    };
    let end = metadata.tensors().values().map(|tensor| tensor.data_offsets.1).max().unwrap_or(0);
    match start + end as u64 == length {
        true => Ok(Ok((start, metadata))),
        false => Ok(Err(SafeTensorError::MetadataIncompleteBuffer)),
    }
}

/// Rejects a folder without `model.safetensors` whose weights are in PyTorch's format.
fn check_format(folder: &Path) -> Result<(), ModelError> {
    let is_torch =
        |path: &Path| path.extension().is_some_and(|of| ["bin", "pth", "pt"].iter().any(|ending| of == *ending));
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let names = paths.filter(|path| is_torch(path)).filter_map(|path| Some(path.file_name()?.to_str()?.to_string()));
    let mut files: Vec<String> = names.collect();
    files.sort();
    let Some(file) = files.first().filter(|_| !folder.join("model.safetensors").exists()) else { return Ok(()) };
    let dir = folder.display();
    let python = match files.len() {
        1 => format!(
            "import torch, safetensors.torch as s\n\
             s.save_file({{k: v.contiguous().clone() for k, v in torch.load(\"{dir}/{file}\", weights_only=True).items()}}, \
             \"{dir}/model.safetensors\")"
        ),
        _ => format!(
            "from transformers import AutoModelForCausalLM\n\
             AutoModelForCausalLM.from_pretrained(\"{dir}\").save_pretrained(\"{dir}-safetensors\")"
        ),
    };
    Err(ModelError::PyTorch { path: folder.into(), file: file.clone(), python })
}

fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.into(), source })?;
    serde_json::from_str(&text)
        .map_err(|error| ModelError::Format { path: path.into(), reason: format!("not JSON: {error}") })
}
