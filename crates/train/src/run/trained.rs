//! What a run has trained on, by sequence length. With it, a run that is resumed with a different length sees no token
//! twice in an epoch.
//!
//! A checkpoint's `config.yaml` has the length of the run that wrote it; its `trained.json` has what was trained on
//! before that run began.

use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::run::folder::config_in;
use checkpoint::{Checkpoint, Index};
use data::Trained;

/// The file in a checkpoint.
pub(crate) const FILE: &str = "trained.json";

/// The file for checkpoints of a run that began after this training; `None` if all of it had this run's length and
/// order.
pub(crate) fn file(trained: &[Trained], train: &TrainConfig) -> Option<(String, Vec<u8>)> {
    let json = serde_json::to_vec_pretty(trained).expect("numbers have a JSON form");
    let other = |part: &Trained| (part.seed, part.seq_len) != (train.seed, train.seq_len);
    trained.iter().any(other).then(|| (FILE.into(), json))
}

/// What was trained on up to a checkpoint.
pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Vec<Trained>, TrainError> {
    let (folder, index) = (checkpoint.path(), checkpoint.index());
    if index.tokens == 0 {
        return Ok(vec![]);
    }
    let has_file = index.extra().iter().any(|file| file.name == FILE);
    let json = has_file.then(|| checkpoint.read_file(FILE)).transpose()?;
    until(index, config_in(folder)?.train.seq_len, json.as_deref())
        .map_err(|problem| TrainError::Trained { path: folder.join(FILE), problem })
}

/// What was trained on up to `index` by a run with sequences of `seq_len`, given its file about earlier training.
fn until(index: &Index, seq_len: usize, json: Option<&[u8]>) -> Result<Vec<Trained>, String> {
    let mut trained: Vec<Trained> = match json {
        Some(json) => serde_json::from_slice(json).map_err(|error| error.to_string())?,
        None => vec![],
    };
    let before = trained.iter().try_fold(0u64, |sum, part| sum.checked_add(part.tokens));
    let tokens = before.and_then(|before| index.tokens.checked_sub(before));
    let tokens = tokens.ok_or_else(|| format!("has more tokens than the checkpoint's {}", index.tokens))?;
    let last = Trained { seed: index.seed, seq_len, tokens };
    match trained.last_mut() {
        Some(before) if (before.seed, before.seq_len) == (last.seed, last.seq_len) => before.tokens += tokens,
        _ => trained.push(last),
    }
    Ok(trained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_tells_what_was_trained_on_before_and_since() {
        let train = |seq_len| TrainConfig { seq_len, seed: 7, ..TrainConfig::default() };
        let part = |seq_len, tokens| Trained { seed: 7, seq_len, tokens };
        let until = |tokens, seq_len, before: &[Trained]| {
            let json = file(before, &train(seq_len)).map(|(_, json)| json);
            until(&Index { seed: 7, tokens, ..Index::default() }, seq_len, json.as_deref())
        };
        let mut trained = until(160, 16, &[]).unwrap();
        assert_eq!(trained, [part(16, 160)]);
        assert_eq!((file(&[], &train(16)), file(&trained, &train(16))), (None, None));
        for (seq_len, tokens, expected) in [
            (64, 800, vec![part(16, 160), part(64, 640)]),
            (64, 864, vec![part(16, 160), part(64, 704)]),
            (16, 880, vec![part(16, 160), part(64, 704), part(16, 16)]),
        ] {
            trained = until(tokens, seq_len, &trained).unwrap();
            assert_eq!(trained, expected);
        }
        assert_eq!(until(100, 16, &trained).unwrap_err(), "has more tokens than the checkpoint's 100");
    }
}
