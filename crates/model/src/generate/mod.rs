//! Text generation with a cache.

pub(crate) mod sampling;

pub use sampling::Sampling;

use crate::ModelError;
use crate::{Cache, LanguageModel};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use std::ops::ControlFlow;

/// Settings of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Maximum number of tokens to add to each prompt.
    pub max_new_tokens: usize,
    /// Maximum number of tokens the model attends to; capped at the model's context.
    pub window: usize,
    /// The tokens that end a sequence, such as `<|endoftext|>`; neither reported nor returned.
    pub stop: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

/// An unfinished sequence, which is one row of the cache.
struct Row {
    sequence: usize,
    /// Prompt and new tokens.
    tokens: Vec<u32>,
    prompt: usize,
    /// Index of the first token in the window.
    start: usize,
    rng: ChaCha8Rng,
}

/// Continues each of `prompts` and returns the new tokens of each. Prompts may have different lengths.
///
/// `on_token` receives the index of the sequence and each new token; [`ControlFlow::Break`] ends that sequence.
///
/// A sequence's tokens do not depend on the other sequences: its draws are keyed by `(seed, index of the sequence)`,
/// and attention sees only its own tokens. When a sequence outgrows the window, its cache is cleared and generation
/// resumes from the last half of the window. A prompt longer than the window is read from its last `window` tokens.
///
/// # Errors
/// If a prompt is empty, the window is 0, or the sampling settings are invalid.
///
/// # Panics
/// If a prompt contains a token outside the vocabulary.
pub fn generate(
    model: &dyn LanguageModel,
    prompts: &[Vec<u32>],
    how: &Generation,
    device: &Device,
    on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<Vec<Vec<u32>>, ModelError> {
    let window = checked_window(model, prompts, how)?;
    let row = |(sequence, prompt): (usize, &Vec<u32>)| Row {
        sequence,
        tokens: prompt.clone(),
        prompt: prompt.len(),
        start: prompt.len().saturating_sub(window),
        rng: how.sampling.rng(sequence),
    };
    let mut rows: Vec<Row> = prompts.iter().enumerate().map(row).collect();
    if how.max_new_tokens == 0 {
        rows.clear();
    }
    let mut cache = model.cache(rows.len());
    let mut finished = vec![vec![]; prompts.len()];
    while !rows.is_empty() {
        let logits = next_logits(model, &mut rows, &mut cache, window, device);
        let vocab = logits.len() / rows.len();
        let mut left = vec![];
        for (row, logits) in rows.iter_mut().zip(logits.chunks_exact(vocab)) {
            let token = how.sampling.draw(logits, &mut row.rng);
            let goes_on = !how.stop.contains(&token) && {
                row.tokens.push(token);
                on_token(row.sequence, token).is_continue() && row.tokens.len() - row.prompt < how.max_new_tokens
            };
            left.push(goes_on);
        }
        if left.contains(&false) {
            cache.keep(&(0..rows.len()).filter(|row| left[*row]).collect::<Vec<_>>());
            let (active, ended) = rows.into_iter().zip(left).partition::<Vec<_>, _>(|(_, goes_on)| *goes_on);
            ended.into_iter().for_each(|(mut row, _)| finished[row.sequence] = row.tokens.split_off(row.prompt));
            rows = active.into_iter().map(|(row, _)| row).collect();
        }
    }
    Ok(finished)
}

/// Validates prompts and settings, and returns the maximum number of tokens the model attends to.
pub(crate) fn checked_window(
    model: &dyn LanguageModel,
    prompts: &[Vec<u32>],
    how: &Generation,
) -> Result<usize, ModelError> {
    how.sampling.validate()?;
    let window = how.window.min(model.context());
    if window == 0 {
        return Err(ModelError::Setting("the window is 0 tokens: give at least 1".into()));
    }
    match prompts.iter().position(Vec::is_empty) {
        Some(empty) => Err(ModelError::EmptyPrompt(empty)),
        None => Ok(window),
    }
}

/// Reads the tokens that are not in the cache yet and returns the logits after each row's last token, `[rows, vocab]`.
fn next_logits(
    model: &dyn LanguageModel,
    rows: &mut [Row],
    cache: &mut Cache,
    window: usize,
    device: &Device,
) -> Vec<f32> {
    for (i, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.tokens.len() - row.start > window) {
        row.start = row.tokens.len() - (window / 2).max(1);
        cache.clear(i);
    }
    let new: Vec<&[u32]> =
        rows.iter().zip(cache.lengths()).map(|(row, seen)| &row.tokens[row.start + seen..]).collect();
    let counts: Vec<usize> = new.iter().map(|new| new.len()).collect();
    let t = counts.iter().copied().max().expect("there are rows");
    let padded = |new: &&[u32]| (0..t).map(|i| new.get(i).copied().unwrap_or(0) as i32).collect::<Vec<_>>();
    let ids: Vec<i32> = new.iter().flat_map(padded).collect();
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids, [rows.len(), t]), device);
    model.next_logits(tokens_bt, &counts, cache).into_data().iter::<f32>().collect()
}
