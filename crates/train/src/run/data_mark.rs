//! A checkpoint's record of its training data, so that a resumed run can report that the data changed.

use crate::error::TrainError;
use crate::format::human_count;
use checkpoint::Checkpoint;
use data::{DataError, Prepared};
use serde::{Deserialize, Serialize};

/// The file in a checkpoint.
pub(crate) const FILE: &str = "data.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// Where the data came from, for the user.
    source: String,
    train_tokens: u64,
    fingerprint: String,
}

impl Mark {
    fn of(source: &str, data: &Prepared) -> Result<Self, DataError> {
        let train_tokens = data.dataset.train_tokens();
        Ok(Self { source: source.into(), train_tokens, fingerprint: data.fingerprint()? })
    }
}

/// The file for checkpoints of a run on this data from `source`.
pub(crate) fn file(source: &str, data: &Prepared) -> Result<(String, Vec<u8>), DataError> {
    let json = serde_json::to_vec_pretty(&Mark::of(source, data)?).expect("numbers and strings have a JSON form");
    Ok((FILE.into(), json))
}

/// A warning if `data` from `source` differs from what the checkpoint's run trained on; `None` if it is the same or the
/// checkpoint has no record.
///
/// # Errors
/// If a file of either cannot be read.
pub(crate) fn change(checkpoint: &Checkpoint, source: &str, data: &Prepared) -> Result<Option<String>, TrainError> {
    if !checkpoint.index().extra().iter().any(|file| file.name == FILE) {
        return Ok(None);
    }
    // A format written by a later version must not prevent resuming.
    let Ok(before) = serde_json::from_slice::<Mark>(&checkpoint.read_file(FILE)?) else { return Ok(None) };
    let now = Mark::of(source, data)?;
    Ok((before.fingerprint != now.fingerprint).then(|| {
        let words = |mark: &Mark| format!("{} of {}", human_count(mark.train_tokens as usize, "token"), mark.source);
        let (step, before, now) = (checkpoint.index().step, words(&before), words(&now));
        let now = if before == now { "the same number with other content".into() } else { now };
        format!("warning: the training data changed after step {step}, from {before} to {now}")
    }))
}
