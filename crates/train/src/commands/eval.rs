use crate::cli::say;
use crate::resume::open_data;
use crate::saved::Saved;
use crate::trainer::TrainError;
use crate::units::{Batch, check_tokens};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use clap::Args;
use data::OpenOptions;
use indicatif::{ProgressBar, ProgressStyle};
use model::LanguageModel;
use serde::Deserialize;
use std::f64::consts::LN_2;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Measures a trained model: loss, perplexity and bits per byte on a text, or accuracy on multiple choice.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A run's folder, or one of its checkpoints (checkpoints/step-N)
    run: PathBuf,
    /// A text; all of it counts
    #[arg(long, value_name = "SRC", required_unless_present = "choices")]
    data: Option<String>,
    /// Instead: a JSONL file of {"ctx": "..", "endings": ["..", ..], "label": N}, as HellaSwag's
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "data")]
    choices: Option<PathBuf>,
    /// Tokens of a sequence; those of training if not given
    #[arg(long, value_name = "N")]
    seq_len: Option<usize>,
    /// Sequences computed at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch: usize,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {reason}", path.display())]
    Choice { path: PathBuf, line: usize, reason: String },
    #[error("{0}")]
    Invalid(String),
}

pub fn run(args: &EvalArgs) -> Result<(), EvalError> {
    let saved = Saved::open(&args.run)?;
    let device = Device::flex();
    let model = saved.model(&device)?;
    let seq_len = args.seq_len.unwrap_or(saved.config.train.seq_len);
    if seq_len == 0 || seq_len > model.context() || args.batch == 0 {
        let context = model.context();
        return Err(EvalError::Invalid(format!(
            "--seq-len {seq_len}, --batch {}: give a length from 1 to the model's context of {context}, and at least 1 sequence",
            args.batch
        )));
    }
    match (&args.data, &args.choices) {
        (Some(source), _) => text(&saved, &*model, source, seq_len, args.batch),
        (None, Some(path)) => choices(&saved, &*model, path, &device),
        (None, None) => unreachable!("clap asks for one of them"),
    }
}

/// Cross entropy over windows side by side; what does not fill a window at the end is left out.
fn text(saved: &Saved, model: &dyn LanguageModel, source: &str, seq_len: usize, batch: usize) -> Result<(), EvalError> {
    let options =
        OpenOptions { tokenizer: None, val_fraction: Some(1.0), progress: true, ..saved.config.data.options(true) };
    let prepared = open_data(&saved.checkpoint, source, options)?;
    let windows = if prepared.dataset.val_tokens() == 0 { 0 } else { prepared.dataset.val_windows(seq_len) };
    if windows == 0 {
        return Err(EvalError::Invalid(format!(
            "{source} has {} tokens, fewer than a window of {seq_len} and its last target: give a smaller --seq-len",
            prepared.dataset.val_tokens()
        )));
    }
    let bar = progress(windows as u64);
    let mut nats = 0.0;
    for first in (0..windows).step_by(batch) {
        let window = prepared.dataset.val_batch(first..windows.min(first + batch), seq_len);
        let sequences = window.sequences;
        let window = Batch::new(window, None, &saved.config.model, &Device::flex())?;
        let loss = model::cross_entropy(model.logits(window.inputs_bt), window.targets_bt);
        nats += f64::from(loss.into_scalar::<f32>()) * (sequences * seq_len) as f64;
        bar.inc(sequences as u64);
    }
    bar.finish_and_clear();
    let predicted = windows * seq_len;
    let loss = nats / predicted as f64;
    say(&format!("{}: {predicted} tokens predicted, in windows of {seq_len}", prepared.name));
    say(&format!("loss {loss:.4} nats per token"));
    say(&format!("perplexity {:.3}", loss.exp()));
    if let Some(meta) = prepared.meta {
        say(&format!("bits per byte {:.4}", loss / LN_2 * meta.tokens as f64 / meta.text_bytes as f64));
    }
    Ok(())
}

/// A question as HellaSwag writes it.
#[derive(Deserialize)]
struct Question {
    ctx: String,
    endings: Vec<String>,
    label: usize,
}

/// How often the right ending has the highest log-probability of all, and the highest per character (`acc` and `acc_norm` of EleutherAI's
/// lm-evaluation-harness).
fn choices(saved: &Saved, model: &dyn LanguageModel, path: &Path, device: &Device) -> Result<(), EvalError> {
    let (tokenizer, vocab_size) = (saved.tokenizer()?, saved.config.model.vocab_size());
    let text = fs::read_to_string(path).map_err(|source| EvalError::Read { path: path.into(), source })?;
    let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return Err(EvalError::Invalid(format!("{} has no questions", path.display())));
    }
    let bar = progress(lines.len() as u64);
    let (mut right, mut right_normed) = (0, 0);
    for (i, line) in &lines {
        let wrong = |reason: String| EvalError::Choice { path: path.into(), line: i + 1, reason };
        let question: Question = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let Question { ctx, endings, label } = question;
        if label >= endings.len() {
            return Err(wrong(format!("label is {label}, of {} endings", endings.len())));
        }
        let encode = |text: &str| tokenizer.encode(text).map_err(|error| wrong(error.to_string()));
        let context = encode(&ctx)?;
        let mut scores = vec![];
        for ending in &endings {
            let letters = ending.chars().count() as f64;
            let tail = encode(&format!(" {ending}"))?;
            let all = [&context[..], &tail[..]].concat();
            let window = &all[all.len().saturating_sub(model.context() + 1)..];
            let count = tail.len().min(window.len().saturating_sub(1));
            check_tokens(window.iter().copied(), vocab_size)?;
            let scored = log_probabilities(model, window, device);
            let sum: f64 = scored[scored.len() - count..].iter().sum();
            scores.push((sum, sum / letters));
        }
        let best = |of: fn(&(f64, f64)) -> f64| {
            (0..scores.len()).max_by(|a, b| of(&scores[*a]).total_cmp(&of(&scores[*b]))).unwrap_or_default()
        };
        right += usize::from(best(|score| score.0) == label);
        right_normed += usize::from(best(|score| score.1) == label);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let share = |right: usize| right as f64 / lines.len() as f64;
    say(&format!("{} questions", lines.len()));
    say(&format!("accuracy {:.4}, normalised by length {:.4}", share(right), share(right_normed)));
    Ok(())
}

/// Log-probability of each token but the first.
fn log_probabilities(model: &dyn LanguageModel, window: &[u32], device: &Device) -> Vec<f64> {
    let t = window.len().saturating_sub(1);
    if t == 0 {
        return vec![];
    }
    let ids: Vec<i32> = window.iter().map(|token| *token as i32).collect();
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids[..t].to_vec(), [1, t]), device);
    let next_bt1 = Tensor::<3, Int>::from_data(TensorData::new(ids[1..].to_vec(), [1, t, 1]), device);
    let log_btv = activation::log_softmax(model.logits(tokens_bt), 2);
    log_btv.gather(2, next_bt1).into_data().iter::<f64>().collect()
}

fn progress(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  eta {eta}").expect("a valid template");
    ProgressBar::new(len).with_style(style)
}
