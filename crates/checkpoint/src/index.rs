//! The contents of `index.json`.

use crate::blocks::{Digest, hex, root};
use crate::files::{BLOCKS, read_small};
use crate::region::elements;
use crate::table::TABLE;
use crate::{CheckpointError, Kind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The contents of `index.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Version of this layout, [`Index::FORMAT`].
    pub format: u32,
    /// Optimizer steps of the run so far. A run's data order and random numbers depend on this and the seed alone.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Loss of the last step, in nats per token. None before the first step.
    pub loss: Option<f64>,
    /// Loss of the last validation, in nats per token.
    pub val_loss: Option<f64>,
    /// The lowest validation loss so far, if the run keeps its checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Steps of the best validations on other data, from before the run resumed with the current data. Their
    /// checkpoints stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u64>,
    /// The lowest validation loss so far, for a run that stops early if no lower one follows for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<Lowest>,
    /// AdamW's steps without skipped ones. 0: there are no moments.
    pub optimizer_steps: u64,
    /// The scale of fp16 losses. None without fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Number of ranks that wrote the checkpoint.
    pub world_size: usize,
    /// Their parallelism strategy.
    pub strategy: String,
    /// All parameters, ordered by name.
    pub parameters: Vec<Parameter>,
    /// The ranks' files in rank order, followed by those that the run added.
    pub files: Vec<FileEntry>,
    /// The file with the positions of the pieces of all parameters in the ranks' files.
    pub table: FileEntry,
    /// BLAKE3 of this file without these digits.
    pub digest: String,
}

/// A validation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The step after which it ran.
    pub step: u64,
    /// Its loss, in nats per token.
    pub val_loss: f64,
}

/// The lowest validation loss, whether or not its checkpoint is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lowest {
    /// The step of the validation.
    pub step: u64,
    /// Its loss, in nats per token.
    pub val_loss: f64,
    /// Validations since then.
    pub since: u64,
}

/// The scale of fp16 losses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The scale factor.
    pub factor: f64,
    /// Steps since the factor last changed.
    pub good_steps: u64,
}

/// A parameter of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Its path of fields in the model, such as `blocks.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Number of elements. None if it overflows.
    pub fn len(&self) -> Option<usize> {
        elements(&self.shape)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

/// A file of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its BLAKE3 digest, as `b3sum` prints it.
    pub blake3: String,
}

impl FileEntry {
    pub(crate) fn new(name: impl Into<String>, bytes: u64, blocks: &[Digest]) -> Self {
        Self { name: name.into(), bytes, blake3: hex(&root(blocks)) }
    }
}

/// The part of an index that all formats share.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

const DIGEST_KEY: &str = "\"digest\": \"";

impl Index {
    /// What is stored for each parameter: moments only after AdamW's first step.
    pub fn kinds(&self) -> &'static [Kind] {
        if self.optimizer_steps > 0 { &Kind::ALL } else { &Kind::ALL[..1] }
    }

    /// The files that the run added to those of its ranks.
    pub fn extra(&self) -> &[FileEntry] {
        self.files.get(self.world_size..).unwrap_or_default()
    }

    /// Names of all files of the checkpoint. The last one is that of the index: who has it after all others has a whole
    /// checkpoint.
    pub fn file_names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().chain([&self.table]).map(|file| &*file.name).chain([BLOCKS, "index.json"])
    }

    /// The version that this crate writes and reads.
    pub const FORMAT: u32 = 2;

    /// The index as JSON with its digest.
    pub(crate) fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(&Self { digest: String::new(), ..self.clone() });
        let text = text.expect("an index is plain data") + "\n";
        let digest = hex(blake3::hash(text.as_bytes()).as_bytes());
        text.replacen(DIGEST_KEY, &format!("{DIGEST_KEY}{digest}"), 1)
    }

    /// Reads `index.json`.
    pub(crate) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let text = String::from_utf8(read_small(path)?);
        Self::from_json(&text.map_err(|_| CheckpointError::broken(path, "not an index: it is no text"))?, path)
    }

    /// Parses JSON from `path`. Refuses an index that was changed after it was written.
    ///
    /// # Errors
    /// If it is no index, or one of another format, or one that was changed.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, CheckpointError> {
        let broken = |reason: String| CheckpointError::broken(path, reason);
        if let Ok(Version { format }) = serde_json::from_str(text)
            && format != Self::FORMAT
        {
            return Err(CheckpointError::OtherFormat { path: path.into(), format });
        }
        let index: Self = serde_json::from_str(text).map_err(|error| broken(format!("not an index: {error}")))?;
        let plain = text.replacen(&format!("{DIGEST_KEY}{}", index.digest), DIGEST_KEY, 1);
        if hex(blake3::hash(plain.as_bytes()).as_bytes()) != index.digest {
            return Err(broken("was changed after it was written".into()));
        }
        index.check(path)?;
        Ok(index)
    }

    /// An error unless each file name is unique and names a file next to the index, and the parameters are sorted and
    /// distinct.
    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        let broken = |reason: String| Err(CheckpointError::broken(path, reason));
        let mut names: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| Path::new(name).file_name().is_none_or(|base| base != **name)) {
            return broken(format!("`{name}` is not the name of a file in the same folder"));
        }
        // The names are printed, and terminals obey control characters.
        let printed = names.iter().copied().chain(self.parameters.iter().map(|of| of.name.as_str()));
        if let Some(name) = printed.chain([self.strategy.as_str()]).find(|name| name.chars().any(char::is_control)) {
            return broken(format!("{name:?} has characters that no name has"));
        }
        names.sort_unstable();
        if self.files.len() < self.world_size || names.windows(2).any(|pair| pair[0] == pair[1]) {
            return broken("its files are not one per rank followed by the added ones".into());
        }
        if self.table.name != TABLE {
            return broken(format!("`{}` is not {TABLE}", self.table.name));
        }
        match self.parameters.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            Some(pair) => broken(format!("parameter {} is not in its place", pair[1].name)),
            None => Ok(()),
        }
    }
}
