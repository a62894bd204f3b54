//! What `index.json` holds.

use crate::blocks::{Digest, hex, root};
use crate::files::read_small;
use crate::region::elements;
use crate::table::TABLE;
use crate::{CheckpointError, Kind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What `index.json` holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Version of this layout; [`Index::FORMAT`].
    pub format: u32,
    /// Optimizer steps of the run so far. With the seed it is all that the order of data and the random numbers of a
    /// run depend on.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// Loss of the last step, in nats per token; none before the first.
    pub loss: Option<f64>,
    /// Loss of the last validation, in nats per token.
    pub val_loss: Option<f64>,
    /// The lowest of all validations' losses so far, where the run keeps its checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Steps of the best validations on other data, before the run went on with this; their checkpoints stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u64>,
    /// The lowest validation loss so far, of a run that ends once it has waited long enough for a lower one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<Lowest>,
    /// Steps of AdamW, without those that were skipped; 0: there are no moments.
    pub optimizer_steps: u64,
    /// The factor on fp16 losses; none without fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Ranks that wrote it.
    pub world_size: usize,
    /// Their strategy.
    pub strategy: String,
    /// All parameters, in the order of their names.
    pub parameters: Vec<Parameter>,
    /// The files of the ranks, in their order, and those that the run has added.
    pub files: Vec<FileEntry>,
    /// The file that says where the pieces of all parameters are in those of the ranks.
    pub table: FileEntry,
    /// BLAKE3 of this file with these digits left out.
    pub digest: String,
}

/// A validation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The step it was made after.
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
    /// Validations since.
    pub since: u64,
}

/// The factor on fp16 losses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The factor.
    pub factor: f64,
    /// Steps since it was last changed.
    pub good_steps: u64,
}

/// A parameter of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Path of fields in the model, `blocks.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape of the whole.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Number of elements; none if it is beyond what a computer can count.
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
    /// Its BLAKE3 digest, the one that `b3sum` prints.
    pub blake3: String,
}

impl FileEntry {
    pub(crate) fn new(name: impl Into<String>, bytes: u64, blocks: &[Digest]) -> Self {
        Self { name: name.into(), bytes, blake3: hex(&root(blocks)) }
    }
}

/// The part of an index that all formats have.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

const DIGEST_KEY: &str = "\"digest\": \"";

impl Index {
    /// What it has of each parameter: moments only once AdamW has made a step.
    pub fn kinds(&self) -> &'static [Kind] {
        if self.optimizer_steps > 0 { &Kind::ALL } else { &Kind::ALL[..1] }
    }

    /// The files that the run has added to those of its ranks.
    pub fn extra(&self) -> &[FileEntry] {
        self.files.get(self.world_size..).unwrap_or_default()
    }

    /// The version that this crate writes and reads.
    pub const FORMAT: u32 = 2;

    /// As JSON, with its digest.
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

    /// Reads JSON; refuses what was changed since.
    pub(crate) fn from_json(text: &str, path: &Path) -> Result<Self, CheckpointError> {
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

    /// An error unless names are those of files beside it, each once, and of different parameters.
    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        let broken = |reason: String| Err(CheckpointError::broken(path, reason));
        let mut names: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| Path::new(name).file_name().is_none_or(|base| base != **name)) {
            return broken(format!("`{name}` is not the name of a file beside it"));
        }
        // They are printed, and a terminal obeys some.
        let printed = names.iter().copied().chain(self.parameters.iter().map(|of| of.name.as_str()));
        if let Some(name) = printed.chain([self.strategy.as_str()]).find(|name| name.chars().any(char::is_control)) {
            return broken(format!("{name:?} has characters that no name has"));
        }
        names.sort_unstable();
        if self.files.len() < self.world_size || names.windows(2).any(|pair| pair[0] == pair[1]) {
            return broken("its files are not one a rank and others beside them".into());
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
