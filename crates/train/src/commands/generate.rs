//! `train generate`.

mod continued;

use super::values::{at_least_1, number, whole_number};
use crate::commands::saved::{self, Saved, SavedError};
use crate::error::TrainError;
use crate::format::count;
use crate::host::device;
use crate::terminal::say;
use crate::terminal::shown;
use crate::trainer::batch::check_tokens;
use clap::Args;
use continued::Continued;
use data::{Tokenizer, TokenizerSpec};
use model::{Drafts, Generation, ModelError, Sampling, generate, generate_speculative};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

/// Continue texts with a trained model.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A run's folder (its newest checkpoint), RUN@best, RUN@12 (that step), or a folder step-N
    run: PathBuf,
    /// The text to continue; read from stdin if not given. An empty prompt starts a new text
    #[arg(long, value_name = "TEXT", conflicts_with = "prompts")]
    prompt: Option<String>,
    /// A file with one prompt per line, all continued in one batch; `-` is stdin
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Maximum number of tokens to add to each prompt; an end-of-text token ends it earlier
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_1, allow_negative_numbers = true)]
    tokens: usize,
    /// Number of continuations of each prompt
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = at_least_1, allow_negative_numbers = true)]
    samples: usize,
    /// End a text before this string, as soon as it is generated; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 0.8, value_parser = number, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample from the K most likely tokens only
    #[arg(long, value_name = "K", value_parser = whole_number, allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Sample from the smallest set of most likely tokens that has this probability
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// The tokenizer, for a run on tokens alone, which has none: byte, gpt2, or the path of a Hugging Face tokenizer
    #[arg(long, value_name = "T")]
    tokenizer: Option<TokenizerSpec>,
    /// Draft tokens with the model's multi-token prediction modules and verify several at once: the same text in fewer
    /// passes
    #[arg(long)]
    speculative: bool,
    /// Seed of the sampling
    #[arg(long, value_name = "N", default_value_t = 1337, value_parser = whole_number, allow_negative_numbers = true)]
    seed: usize,
    /// auto, cpu, cuda, vulkan, metal, or a single device such as cuda:1
    #[arg(long, value_name = "DEV", default_value = "auto")]
    device: String,
    /// Print a JSON object per text, one on each line
    #[arg(long)]
    json: bool,
}

/// A text, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Text<'a> {
    prompt: &'a str,
    /// Index of this continuation of the prompt, from 1.
    sample: usize,
    /// The continuation of the prompt.
    text: &'a str,
    tokens: usize,
    finish: Finish,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Finish {
    /// It has the requested number of tokens.
    Length,
    /// An end-of-text token was sampled.
    EndOfText,
    /// A stop string was generated.
    Stop,
}

/// Why no text was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateCommandError {
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Generate(#[from] ModelError),
    #[error("cannot read {what}: {source}: give --prompt TEXT, or another file with --prompts")]
    Prompts { what: String, source: io::Error },
    #[error("{0} has no prompts: give at least one line")]
    NoPrompts(String),
    #[error(
        "the prompt is empty, and the tokenizer has neither an end of text nor a line's end to begin with: give --prompt TEXT"
    )]
    Nothing,
    #[error(
        "--speculative drafts with multi-token prediction modules, and the model of {0} has none (model.mtp_depth 0): leave it out, or train a \
         model with --set model.mtp_depth=1"
    )]
    NoModules(String),
}

pub fn run(args: &GenerateArgs) -> Result<(), GenerateCommandError> {
    let sampling =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed as u64 };
    sampling.validate()?;
    let checkpoint = saved::find(&args.run)?;
    let texts = prompts(args)?;
    let saved = Saved::open(&checkpoint)?;
    if args.speculative && saved.config.model.mtp_depth() == 0 {
        return Err(GenerateCommandError::NoModules(args.run.display().to_string()));
    }
    let (device, tokenizer) = (device::of_command(&args.device)?, saved.tokenizer(args.tokenizer.as_ref())?);
    let prompts = texts.iter().map(|text| encode(&tokenizer, text)).collect::<Result<Vec<_>, _>>()?;
    check_tokens(prompts.iter().flatten().copied(), saved.config.model.vocab_size())?;
    let (_, window) = saved.config.model.context();
    say_what_is_cut(&prompts, window);
    let prompts: Vec<_> = prompts.iter().flat_map(|prompt| vec![prompt.clone(); args.samples]).collect();
    let model = saved.model(&device)?;
    let how = Generation { max_new_tokens: args.tokens, window, stop: saved.end_of_text(&tokenizer)?, sampling };

    let streams = prompts.len() == 1 && !args.json;
    if streams {
        print(&texts[0]);
    }
    let mut continued: Vec<_> = prompts.iter().map(|_| Continued::new(&tokenizer, &args.stop)).collect();
    let mut made = 0;
    let started = Instant::now();
    let mut on_token = |sequence: usize, token| {
        made += 1;
        let text = &mut continued[sequence];
        let flow = text.push(token);
        // Stops if the reader has disconnected.
        if streams && !print(text.take()) { ControlFlow::Break(()) } else { flow }
    };
    let (tokens, drafts) = match model.predicts_ahead() {
        Some(model) if args.speculative => {
            let (tokens, drafts) = generate_speculative(model, &prompts, &how, &device, &mut on_token)?;
            (tokens, Some(drafts))
        }
        _ => (generate(&*model, &prompts, &how, &device, &mut on_token)?, None),
    };
    let seconds = started.elapsed().as_secs_f64();
    for (sequence, text) in continued.iter_mut().enumerate() {
        text.end();
        let (number, sample, tokens) = (sequence / args.samples, sequence % args.samples + 1, tokens[sequence].len());
        let prompt = &texts[number];
        let finish = match text.stopped {
            true => Finish::Stop,
            false if tokens < args.tokens => Finish::EndOfText,
            false => Finish::Length,
        };
        if streams {
            say(text.take());
        } else if args.json {
            let line = serde_json::to_string(&Text { prompt, sample, text: text.text(), tokens, finish });
            say(&line.expect("a text has a JSON form"));
        } else {
            say(&heading([number + 1, texts.len()], [sample, args.samples]));
            say(&format!("{prompt}{}", text.text()));
        }
    }
    let drafted = drafts.map_or(String::new(), |Drafts { drafted, accepted, .. }| {
        let share = 100.0 * accepted as f64 / drafted.max(1) as f64;
        format!(", {accepted} of {} accepted ({share:.1}%)", count(drafted, "drafted token"))
    });
    let _ = writeln!(io::stderr(), "{}, {:.1} tokens/s{drafted}", count(made, "token"), made as f64 / seconds);
    Ok(())
}

/// The tokens of a prompt. An empty one starts a new text: after an end-of-text token, or if the tokenizer has none,
/// after a line end.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, GenerateCommandError> {
    if !text.is_empty() {
        return Ok(tokenizer.encode(text).map_err(TrainError::from)?);
    }
    let line = || tokenizer.encode("\n").ok().filter(|tokens| !tokens.is_empty());
    tokenizer.eot().map(|end| vec![end]).or_else(line).ok_or(GenerateCommandError::Nothing)
}

/// Reports on stderr which prompts exceed the model's context.
fn say_what_is_cut(prompts: &[Vec<u32>], context: usize) {
    for (prompt, number) in prompts.iter().zip(1..).filter(|(prompt, _)| prompt.len() > context) {
        let which = if prompts.len() == 1 { "the prompt".into() } else { format!("prompt {number}") };
        let (len, cut) = (prompt.len(), count(prompt.len() - context, "token"));
        let _ = writeln!(
            io::stderr(),
            "{which} has {len} tokens, and the model's context is {context}: its first {cut} {} not seen",
            if len - context == 1 { "is" } else { "are" },
        );
    }
}

fn prompts(args: &GenerateArgs) -> Result<Vec<String>, GenerateCommandError> {
    let failed = |what: &str| {
        let what = what.to_string();
        move |source| GenerateCommandError::Prompts { what, source }
    };
    let lines = |name: &str, reader: &mut dyn BufRead| -> Result<Vec<String>, GenerateCommandError> {
        let lines = reader.lines().collect::<Result<Vec<_>, _>>().map_err(failed(name))?;
        let lines: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { Err(GenerateCommandError::NoPrompts(name.into())) } else { Ok(lines) }
    };
    match (&args.prompt, &args.prompts) {
        (Some(prompt), _) => Ok(vec![prompt.clone()]),
        (None, Some(file)) if file.as_os_str() == "-" => lines("stdin", &mut io::stdin().lock()),
        (None, Some(file)) => {
            let name = file.display().to_string();
            lines(&name, &mut io::BufReader::new(std::fs::File::open(file).map_err(failed(&name))?))
        }
        (None, None) => {
            if io::stdin().is_terminal() {
                let _ = writeln!(io::stderr(), "type a text to continue, then Ctrl-D (or give --prompt TEXT)");
            }
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(failed("stdin"))?;
            Ok(vec![text])
        }
    }
}

/// The line above each of several texts, each of which may have several lines.
fn heading([prompt, prompts]: [usize; 2], [sample, samples]: [usize; 2]) -> String {
    let part = |name, number, of| if of > 1 { Some(format!("{name} {number} of {of}")) } else { None };
    let parts = [part("prompt", prompt, prompts), part("sample", sample, samples)];
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    format!("--- {parts} ---")
}

/// Prints text; returns whether the reader is still connected.
fn print(text: &str) -> bool {
    let mut out = io::stdout();
    let text = shown(text, out.is_terminal());
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}
