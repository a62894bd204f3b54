//! What a run has trained on in sequences of which lengths: with it a run that goes on with another length sees no token twice in an epoch.
//!
//! A checkpoint's `config.yaml` has the length of the run that wrote it, its `trained.json` what was trained on before that one began.

use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::run_folder::config_in;
use checkpoint::Index;
use data::Trained;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The file of a checkpoint.
pub(crate) const FILE: &str = "trained.json";

/// Far above what thousands of changes need.
const MAX_BYTES: u64 = 1 << 20;

/// The file of checkpoints of a run that began with this done; none where all of it was in the length and order that this run has.
pub(crate) fn file(trained: &[Trained], train: &TrainConfig) -> Option<(String, Vec<u8>)> {
    let json = serde_json::to_vec_pretty(trained).expect("numbers have a JSON form");
    let other = |part: &Trained| (part.seed, part.seq_len) != (train.seed, train.seq_len);
    trained.iter().any(other).then(|| (FILE.into(), json))
}

/// What was trained on until a checkpoint in `folder`.
pub(crate) fn of(folder: &Path, index: &Index) -> Result<Vec<Trained>, TrainError> {
    if index.tokens == 0 {
        return Ok(vec![]);
    }
    let path = folder.join(FILE);
    let wrong = |problem: String| TrainError::Trained { path: path.clone(), problem };
    let mut trained: Vec<Trained> = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(wrong(error.to_string())),
        Ok(file) => {
            let mut json = Vec::new();
            file.take(MAX_BYTES).read_to_end(&mut json).map_err(|error| wrong(error.to_string()))?;
            serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))?
        }
    };
    let before = trained.iter().try_fold(0u64, |sum, part| sum.checked_add(part.tokens));
    let tokens = before.and_then(|before| index.tokens.checked_sub(before));
    let tokens = tokens.ok_or_else(|| wrong(format!("has more tokens than the checkpoint's {}", index.tokens)))?;
    let last = Trained { seed: index.seed, seq_len: config_in(folder)?.train.seq_len, tokens };
    match trained.last_mut() {
        Some(before) if (before.seed, before.seq_len) == (last.seed, last.seq_len) => before.tokens += tokens,
        _ => trained.push(last),
    }
    Ok(trained)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::run_folder::CONFIG;
    use std::fs;

    #[test]
    fn a_checkpoint_tells_what_was_trained_on_before_and_since() {
        let folder = tempfile::tempdir().unwrap();
        let config = |seq_len| {
            let train = TrainConfig { seq_len, seed: 7, ..TrainConfig::default() };
            let config = Config { train: train.clone(), ..Config::default() };
            fs::write(folder.path().join(CONFIG), config.to_yaml()).unwrap();
            train
        };
        let of = |tokens| of(folder.path(), &Index { seed: 7, tokens, ..Index::default() });
        let part = |seq_len, tokens| Trained { seed: 7, seq_len, tokens };
        assert_eq!(of(0).unwrap(), []);
        let train = config(16);
        let mut trained = of(160).unwrap();
        assert_eq!(trained, [part(16, 160)]);
        assert_eq!((file(&[], &train), file(&trained, &train)), (None, None));
        for (seq_len, tokens, expected) in [
            (64, 800, vec![part(16, 160), part(64, 640)]),
            (64, 864, vec![part(16, 160), part(64, 704)]),
            (16, 880, vec![part(16, 160), part(64, 704), part(16, 16)]),
        ] {
            let train = config(seq_len);
            if let Some((name, json)) = file(&trained, &train) {
                fs::write(folder.path().join(name), json).unwrap();
            }
            trained = of(tokens).unwrap();
            assert_eq!(trained, expected);
        }
        let message = of(100).unwrap_err().to_string();
        assert!(message.contains("trained.json: has more tokens than the checkpoint's 100"), "{message}");
    }
}
