use crate::write::hex;
use crate::{CheckpointError, Kind, Region};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// What `index.json` holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Version of this layout; [`Index::FORMAT`].
    pub format: u32,
    /// Optimizer steps of the run so far. With the seed it is all that the order of data and the random numbers of a run depend on.
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
    /// Steps of AdamW, without those that were skipped; 0: there are no moments.
    pub optimizer_steps: u64,
    /// The factor on fp16 losses; none without fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Ranks that wrote it.
    pub world_size: usize,
    /// Their strategy.
    pub strategy: String,
    /// All parameters.
    pub parameters: Vec<Parameter>,
    /// All files but this one.
    pub files: Vec<FileEntry>,
    /// SHA-256 of this file with these digits left out.
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
        self.shape.iter().try_fold(1usize, |len, width| len.checked_mul(*width))
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
    /// Its digest.
    pub sha256: String,
    /// What is in it, of parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<PieceEntry>,
}

/// A part of a parameter: elements `offset..offset + len`, flat, of it or of a box of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceEntry {
    /// The parameter.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// The box; none: all of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// Where the piece begins.
    pub offset: usize,
    /// Its length.
    pub len: usize,
}

impl PieceEntry {
    /// The piece as ranges of the parameter's elements, in its order; none if it cannot be.
    pub(crate) fn runs(&self) -> Option<Vec<Range<usize>>> {
        let region = self.region.clone().unwrap_or_else(|| Region::whole(&self.shape));
        let end = self.offset.checked_add(self.len)?;
        (region.fits(&self.shape) && end <= region.len()).then(|| region.runs(&self.shape, self.offset..end))
    }
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
    pub const FORMAT: u32 = 1;

    /// As JSON, with its digest.
    pub(crate) fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(&Self { digest: String::new(), ..self.clone() });
        let text = text.expect("an index is plain data") + "\n";
        let digest = hex(&Sha256::digest(&text));
        text.replacen(DIGEST_KEY, &format!("{DIGEST_KEY}{digest}"), 1)
    }

    /// Reads JSON; refuses what was changed since.
    pub(crate) fn from_json(text: &str, path: &Path) -> Result<Self, CheckpointError> {
        let broken = |reason: String| CheckpointError::broken(path, reason);
        let index: Self = serde_json::from_str(text).map_err(|error| broken(format!("not an index: {error}")))?;
        if index.format != Self::FORMAT {
            return Err(broken(format!("has format {}, and this program reads {}", index.format, Self::FORMAT)));
        }
        let plain = text.replacen(&format!("{DIGEST_KEY}{}", index.digest), DIGEST_KEY, 1);
        if hex(&Sha256::digest(plain)) != index.digest {
            return Err(broken("was changed after it was written".into()));
        }
        index.check(path)?;
        Ok(index)
    }

    /// All parameters that the files' pieces are of, in the order of their names.
    pub(crate) fn parameters_of(files: &[FileEntry]) -> Vec<Parameter> {
        let pieces = files.iter().flat_map(|file| &file.pieces);
        let shapes: BTreeMap<&str, &[usize]> = pieces.map(|piece| (piece.name.as_str(), &piece.shape[..])).collect();
        shapes.into_iter().map(|(name, shape)| Parameter { name: name.into(), shape: shape.into() }).collect()
    }

    /// An error unless the pieces of each parameter are the whole of it, once.
    pub(crate) fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        let broken = |reason: String| Err(CheckpointError::broken(path, reason));
        let mut pieces: BTreeMap<&str, Vec<&PieceEntry>> = BTreeMap::new();
        for file in &self.files {
            if Path::new(&file.name).file_name().is_none_or(|base| base != file.name.as_str()) {
                return broken(format!("`{}` is not the name of a file beside it", file.name));
            }
            file.pieces.iter().for_each(|piece| pieces.entry(&piece.name).or_default().push(piece));
        }
        for parameter in &self.parameters {
            let Some(pieces) = pieces.remove(parameter.name.as_str()) else {
                return broken(format!("parameter {} is in no file", parameter.name));
            };
            let fit = |piece: &&PieceEntry| piece.shape == parameter.shape;
            let runs: Option<Vec<_>> = pieces.iter().map(|piece| piece.runs().filter(|_| fit(piece))).collect();
            let mut runs: Vec<Range<usize>> = runs.unwrap_or_default().into_iter().flatten().collect();
            runs.sort_by_key(|run| run.start);
            let end = runs.iter().try_fold(0, |end, run| (run.start == end).then_some(run.end));
            if end.is_none() || end != parameter.len() {
                return broken(format!("the pieces of parameter {} are not the whole of it", parameter.name));
            }
        }
        match pieces.into_keys().next() {
            Some(name) => broken(format!("`{name}` is in a file, but not among the parameters")),
            None => Ok(()),
        }
    }
}
