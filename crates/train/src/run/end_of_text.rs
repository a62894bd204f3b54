//! A checkpoint's record of the tokens that end a text, in addition to the one that its tokenizer knows: imported
//! models may have several.

use checkpoint::{Checkpoint, CheckpointError};
use data::Tokenizer;

/// The file in a checkpoint, which stays with the tokenizer's files.
pub(crate) const FILE: &str = "end_of_text.json";

/// The file for checkpoints of a model that ends texts with these tokens.
pub(crate) fn file(tokens: &[u32]) -> (String, Vec<u8>) {
    (FILE.into(), serde_json::to_vec(tokens).expect("numbers have a JSON form"))
}

/// The tokens that end a text, the tokenizer's first.
///
/// # Errors
/// If the checkpoint cannot be read.
pub(crate) fn of(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Vec<u32>, CheckpointError> {
    let mut all: Vec<u32> = tokenizer.eot().into_iter().collect();
    if checkpoint.index().extra().iter().any(|file| file.name == FILE) {
        let others: Vec<u32> = serde_json::from_slice(&checkpoint.read_file(FILE)?).unwrap_or_default();
        all.extend(others.into_iter().filter(|token| Some(*token) != tokenizer.eot()));
    }
    Ok(all)
}
