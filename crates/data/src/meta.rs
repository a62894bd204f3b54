//! The metadata of a prepared folder.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::DataError;

/// The version of the folder's format. Caches of other versions are not used; the data is prepared again.
pub const VERSION: u32 = 1;

/// Maximum size of an accepted file, far above what thousands of shards need.
const MAX_BYTES: u64 = 16 << 20;

/// A key that Kiln's files have and hardly any other file does.
const SHARDS: &[u8] = b"\"shards\"";

/// The file `meta.json` of a folder written by [`prepare`](crate::prepare).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of the format.
    pub version: u32,
    /// The source that was prepared.
    pub source: String,
    /// The tokenizer as given, or a note that it was learned.
    pub tokenizer: String,
    /// Number of token ids.
    pub vocab_size: usize,
    /// The token after each document. Null if the source is one document or the tokenizer has no such token.
    pub eot: Option<u32>,
    /// Number of documents.
    pub documents: u64,
    /// Bytes of text, for bits per byte.
    pub text_bytes: u64,
    /// Number of tokens in all shards.
    pub tokens: u64,
    /// How many of them, at the end, form the validation split.
    pub val_tokens: u64,
    /// The token files, in order.
    pub shards: Vec<Shard>,
}

/// One token file of a prepared folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its name.
    pub file: String,
    /// Number of tokens.
    pub tokens: u64,
    /// SHA-256 of the file, in hexadecimal digits. Older folders lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Shard {
    /// The file name of the shard with this number.
    pub(crate) fn name(number: usize) -> String {
        format!("train-{number:06}.bin")
    }
}

impl Meta {
    /// The name of the metadata file.
    pub(crate) const FILE: &str = "meta.json";

    /// Whether `folder` has a `meta.json` written by Kiln, intact or damaged. Other programs write files of that name,
    /// but not next to token files named like Kiln's.
    pub(crate) fn is_in(folder: &Path) -> bool {
        let path = folder.join(Self::FILE);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        // `load` reports a file that cannot be read.
        let ours = || read.is_err() || bytes.windows(SHARDS.len()).any(|part| part == SHARDS);
        path.is_file() && (folder.join(Shard::name(0)).is_file() || ours())
    }

    /// Reads and checks the `meta.json` of `folder`.
    pub(crate) fn load(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(Self::FILE);
        let wrong = |problem| DataError::Meta { path: path.clone(), problem };
        let length = fs::metadata(&path).map_err(|error| DataError::read(&path, error))?.len();
        if length > MAX_BYTES {
            return Err(wrong(format!("has {length} bytes, more than {MAX_BYTES}")));
        }
        let bytes = fs::read(&path).map_err(|error| DataError::read(&path, error))?;
        let meta: Self = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if meta.version != VERSION {
            return Err(wrong(format!("has version {}, this program reads {VERSION}", meta.version)));
        }
        if meta.vocab_size == 0 || meta.vocab_size > i32::MAX as usize {
            return Err(wrong(format!("vocab_size {} is not a vocabulary", meta.vocab_size)));
        }
        if meta.val_tokens > meta.tokens {
            return Err(wrong(format!("val_tokens {} of {} tokens", meta.val_tokens, meta.tokens)));
        }
        let sum = meta.shards.iter().try_fold(0u64, |sum, shard| sum.checked_add(shard.tokens));
        if sum != Some(meta.tokens) {
            return Err(wrong(format!("the shards' tokens do not add up to {}", meta.tokens)));
        }
        for shard in &meta.shards {
            // A name must not lead out of the folder.
            if Path::new(&shard.file).file_name().is_none_or(|name| name != shard.file.as_str()) {
                return Err(wrong(format!("{:?} is not a file name", shard.file)));
            }
        }
        Ok(meta)
    }

    /// Writes `meta.json` into `folder`.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(Self::FILE);
        let text = serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form");
        fs::write(&path, text + "\n").map_err(|error| DataError::write(&path, error))
    }
}
