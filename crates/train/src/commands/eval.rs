//! `train eval`.

mod choices;

use super::values::at_least_1;
use crate::commands::saved::{Saved, SavedError};
use crate::error::TrainError;
use crate::format::count;
use crate::hints;
use crate::host::device;
use crate::run::remote;
use crate::terminal::say;
use crate::trainer::batch::{BatchMaker, check_documents};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use comm::SequenceRanks;
use data::{DataError, Dataset, Decoder, OpenOptions, Prepared, Split, Tokenizer, TokenizerSpec};
use indicatif::{ProgressBar, ProgressStyle};
use model::AnyModel;
use serde::Serialize;
use std::f64::consts::LN_2;
use std::io;
use std::path::{Path, PathBuf};

/// Measure a trained model: loss, perplexity and bits per byte on a text, or accuracy on multiple choice.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A run's folder (its newest checkpoint), RUN@best, RUN@12 (that step), or a folder step-N
    run: PathBuf,
    /// Data to evaluate on, in any form that training's `--data` accepts; by default what the run validated on
    #[arg(long, value_name = "SRC")]
    data: Option<String>,
    /// Which tokens to evaluate on; by default val for the run's own data and for prepared data, all for any other text
    #[arg(long, value_enum)]
    split: Option<SplitArg>,
    /// The JSONL field, or the CSV, TSV or Parquet column, that holds the text; by default that of training
    #[arg(long, value_name = "NAME")]
    text_field: Option<String>,
    /// Evaluate multiple choice instead: a JSONL file of {"ctx": "..", "endings": ["..", ..], "label": N}, as in
    /// HellaSwag
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["data", "split", "text_field", "seq_len"])]
    choices: Option<PathBuf>,
    /// The tokenizer, for a run on tokens alone, which has none: byte, gpt2, or the path of a Hugging Face tokenizer
    #[arg(long, value_name = "T")]
    tokenizer: Option<TokenizerSpec>,
    /// Tokens per sequence; by default that of training
    #[arg(long, value_name = "N", value_parser = at_least_1, allow_negative_numbers = true)]
    seq_len: Option<usize>,
    /// Sequences computed at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_1, allow_negative_numbers = true)]
    batch: usize,
    /// auto, cpu, cuda, vulkan, metal, or a single device such as cuda:1
    #[arg(long, value_name = "DEV", default_value = "auto")]
    device: String,
    /// Print a JSON object for each text
    #[arg(long)]
    json: bool,
}

/// The results for a text, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    /// The name the run gives the text, if it validates on several.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    data: &'a str,
    split: SplitArg,
    seq_len: usize,
    /// Tokens predicted.
    tokens: usize,
    /// Loss in nats per token.
    loss: f64,
    perplexity: f64,
    /// `None` without a tokenizer.
    bits_per_byte: Option<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum SplitArg {
    Val,
    Train,
    All,
}

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("{}", hints::data(.0))]
    Data(#[from] DataError),
    #[error("cannot read {}: {source}: check the path given with --choices", path.display())]
    Choices { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: {reason}", path.display())]
    Choice { path: PathBuf, line: usize, reason: String },
    #[error("{0}")]
    Invalid(String),
}

pub fn run(args: &EvalArgs) -> Result<(), EvalError> {
    let questions = args.choices.as_deref().map(choices::read).transpose()?;
    let saved = Saved::open(&args.run)?;
    match questions {
        Some(questions) => choices::answer(&questions, &saved, args),
        None => text(args, &saved),
    }
}

/// Evaluates cross entropy over adjacent windows; the remainder that does not fill a window is left out.
fn text(args: &EvalArgs, saved: &Saved) -> Result<(), EvalError> {
    let seq_len = args.seq_len.unwrap_or(saved.config.train.seq_len);
    let (_, context) = saved.config.model.context();
    if seq_len > context {
        let reason = format!("--seq-len is {seq_len}: give at most {context}, which is the model's context");
        return Err(EvalError::Invalid(reason));
    }
    // All of the run's separate validation sources, unless other data or another split is requested.
    let own = saved.config.data.validation.as_ref().filter(|_| matches!(args.split, None | Some(SplitArg::Val)));
    let sources = match (&args.data, own) {
        (Some(source), _) => vec![(None, source.as_str())],
        (None, Some(validation)) => validation.sources(),
        (None, None) => vec![(None, saved.config.data.source.as_str())],
    };
    let texts = sources.into_iter().map(|(name, source)| Text::open(args, saved, name, source, seq_len));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let device = device::of_command(&args.device)?;
    let model = saved.model(&device)?;
    let mut losses = vec![];
    for text in &texts {
        let Measured { nats, predicted, bytes } = measure(saved, &model, text, (seq_len, args.batch), &device)?;
        let what = &text.what;
        if predicted == 0 {
            let problem =
                "no position has a token to predict in its document (data.document_mask of the run): give other text";
            return Err(EvalError::Invalid(format!("{what}: {problem}")));
        }
        let loss = nats / predicted as f64;
        losses.push(loss);
        let bits_per_byte = bytes.filter(|bytes| *bytes > 0).map(|bytes| nats / LN_2 / bytes as f64);
        if args.json {
            let (name, data, split) = (text.name, &text.prepared.name[..], text.split);
            let perplexity = loss.exp();
            say_json(&Figures { name, data, split, seq_len, tokens: predicted, loss, perplexity, bits_per_byte });
            continue;
        }
        say(&format!("{what}: {} predicted, in windows of {seq_len}", count(predicted, "token")));
        say(&format!("loss {loss:.4} nats per token"));
        say(&format!("perplexity {:.3}", loss.exp()));
        bits_per_byte.iter().for_each(|bits| say(&format!("bits per byte {bits:.4}")));
    }
    if losses.len() > 1 && !args.json {
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        say(&format!("mean loss {mean:.4} nats per token"));
    }
    Ok(())
}

/// A text to evaluate on.
struct Text<'a> {
    /// The name the run gives it.
    name: Option<&'a str>,
    /// A description for the user: name, split and data.
    what: String,
    split: SplitArg,
    prepared: Prepared,
    /// The tokens of the split, all of them in the validation part.
    dataset: Dataset,
}

impl<'a> Text<'a> {
    fn open(
        args: &EvalArgs,
        saved: &Saved,
        name: Option<&'a str>,
        source: &str,
        seq_len: usize,
    ) -> Result<Self, EvalError> {
        let data = &saved.config.data;
        let mut options = OpenOptions { progress: true, ..data.options(true) };
        options.text_field = args.text_field.clone().unwrap_or(options.text_field);
        let mut prepared = saved.open_data(&remote::data::local(source, false)?, options, args.tokenizer.as_ref())?;
        if store::is_of_store(source) {
            prepared.name = source.into();
        }
        // If the run has separate validation data, none of its training data is held out.
        let has_split = prepared.has_split || data.validation.is_none() && is_same(source, &data.source);
        let split = args.split.filter(|_| name.is_none()).unwrap_or(match has_split {
            true => SplitArg::Val,
            false => SplitArg::All,
        });
        let (of, part) = match split {
            SplitArg::Val => ("validation split of ", Split::Val),
            SplitArg::Train => ("training split of ", Split::Train),
            SplitArg::All => ("", Split::All),
        };
        let dataset = prepared.dataset.only(part);
        let name_of = name.map_or(String::new(), |name| format!("{name}: "));
        let what = format!("{name_of}{of}{}", prepared.name);
        if dataset.val_windows(seq_len) == 0 {
            return Err(EvalError::Invalid(format!(
                "{what} has {}, fewer than a window of {seq_len} and its last target: give more text, or a smaller --seq-len",
                count(dataset.val_tokens() as usize, "token")
            )));
        }
        check_documents(&saved.config, &prepared)?;
        Ok(Self { name, what, split, prepared, dataset })
    }
}

/// Prints results as a line of JSON; non-finite numbers become null.
fn say_json(figures: &impl Serialize) {
    say(&serde_json::to_string(figures).expect("numbers and names have a JSON form"));
}

/// Total cross entropy of all windows in nats, number of predicted tokens, and the bytes of text that they represent.
struct Measured {
    nats: f64,
    predicted: usize,
    bytes: Option<usize>,
}

fn measure(
    saved: &Saved,
    model: &AnyModel,
    Text { prepared, dataset, .. }: &Text,
    (seq_len, batch): (usize, usize),
    device: &Device,
) -> Result<Measured, TrainError> {
    let (end_of_text, windows) = (prepared.end_of_text(), dataset.val_windows(seq_len));
    let mut bytes = prepared.tokenizer.as_ref().map(TextBytes::new);
    let maker = BatchMaker::new(&saved.config, end_of_text, SequenceRanks::default(), device);
    let bar = progress(windows as u64);
    let (mut nats, mut predicted) = (0.0, 0.0);
    for first in (0..windows).step_by(batch) {
        let window = dataset.val_batch(first..windows.min(first + batch), seq_len)?;
        let (sequences, counts) = (window.sequences, maker.count(&window));
        bytes.iter_mut().for_each(|bytes| bytes.add(maker.targets(&window)));
        let window = maker.for_evaluation(window)?;
        let loss = model.losses(&window).loss;
        nats += f64::from(loss.into_scalar::<f32>()) * counts.positions;
        predicted += counts.labels;
        bar.inc(sequences as u64);
    }
    bar.finish_and_clear();
    Ok(Measured { nats, predicted: predicted as usize, bytes: bytes.map(TextBytes::finish) })
}

/// Whether both name the same data.
fn is_same(a: &str, b: &str) -> bool {
    let real = |path: &str| Path::new(path).canonicalize();
    a == b || matches!((real(a), real(b)), (Ok(a), Ok(b)) if a == b)
}

/// Counts the bytes of text that tokens represent, excluding end-of-text tokens. A character counts in proportion to
/// how many of its tokens are predicted.
struct TextBytes {
    decoder: Decoder,
    end: Option<u32>,
    /// Number of tokens of the incomplete character, and how many of them are predicted.
    waiting: [usize; 2],
    bytes: f64,
}

impl TextBytes {
    fn new(tokenizer: &Tokenizer) -> Self {
        Self { decoder: tokenizer.decoder(), end: tokenizer.eot(), waiting: [0; 2], bytes: 0.0 }
    }

    /// Adds the next tokens, each with a flag that tells whether it is predicted.
    fn add(&mut self, tokens: impl Iterator<Item = (i32, bool)>) {
        for (token, predicted) in tokens.filter(|(token, _)| Some(*token as u32) != self.end) {
            self.waiting = [self.waiting[0] + 1, self.waiting[1] + usize::from(predicted)];
            let text = self.decoder.push(token as u32);
            if !text.is_empty() {
                self.bytes += text.len() as f64 * self.share();
                self.waiting = [0; 2];
            }
        }
    }

    fn share(&self) -> f64 {
        self.waiting[1] as f64 / self.waiting[0].max(1) as f64
    }

    fn finish(self) -> usize {
        let share = self.share();
        (self.bytes + self.decoder.finish().len() as f64 * share).round() as usize
    }
}

fn progress(len: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  eta {eta}").expect("a valid template");
    ProgressBar::new(len).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_by_what_is_predicted_of_a_character() {
        let mut bytes = TextBytes::new(&Tokenizer::byte());
        // "aé.é€": the first byte of the second "é" begins a document and is not predicted; 0 ends a document.
        let unpredicted = [(0xC3, false)];
        let all = |tokens: &'static [i32]| tokens.iter().map(|token| (*token, true));
        bytes.add(all(&[0x61, 0xC3, 0xA9, 0]).chain(unpredicted).chain(all(&[0xA9, 0xE2, 0x82])));
        bytes.add(all(&[0xAC]));
        assert_eq!(bytes.finish(), 1 + 2 + 1 + 3);
    }
}
