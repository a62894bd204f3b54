use crate::cli::say;
use crate::saved::Saved;
use crate::trainer::TrainError;
use crate::units::check_tokens;
use burn::tensor::Device;
use clap::Args;
use data::Decoder;
use model::{GenerateError, Generation, Sampling, generate};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

/// Continues texts with a trained model.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A run's folder, or one of its checkpoints (checkpoints/step-N)
    run: PathBuf,
    /// The text to continue; read from stdin if not given
    #[arg(long, value_name = "TEXT", conflicts_with = "prompts")]
    prompt: Option<String>,
    /// A file with a prompt a line, all continued at once; `-` is stdin
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Tokens to add to each prompt
    #[arg(long, value_name = "N", default_value_t = 200)]
    tokens: usize,
    /// Divides the logits; 0 takes the most likely token each time
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    temperature: f64,
    /// Draw from the K most likely tokens only
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw from the most likely tokens that have this probability together
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1337)]
    seed: u64,
}

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum GenerateCommandError {
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error("cannot read {what}: {source}")]
    Prompts { what: String, source: io::Error },
    #[error("{0} has no prompts: give at least one line")]
    NoPrompts(String),
}

pub fn run(args: &GenerateArgs) -> Result<(), GenerateCommandError> {
    let saved = Saved::open(&args.run)?;
    let (device, tokenizer) = (Device::flex(), saved.tokenizer()?);
    let texts = prompts(args)?;
    let encode = |text: &String| tokenizer.encode(text).map_err(TrainError::from);
    let prompts = texts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let model = saved.model(&device)?;
    check_tokens(prompts.iter().flatten().copied(), saved.config.model.vocab_size())?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let how = Generation { max_new_tokens: args.tokens, window: model.context(), stop: tokenizer.eot(), sampling };

    let mut stream = (texts.len() == 1).then(|| {
        print(&texts[0]);
        Stream(tokenizer.decoder())
    });
    let mut count = 0;
    let started = Instant::now();
    let tokens = generate(&*model, &prompts, &how, &device, &mut |_, token| {
        count += 1;
        stream.as_mut().map_or(ControlFlow::Continue(()), |stream| stream.push(token))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    match stream {
        Some(Stream(decoder)) => say(&decoder.finish()),
        None => texts.iter().zip(&tokens).for_each(|(text, tokens)| say(&(text.clone() + &tokenizer.decode(tokens)))),
    }
    let _ = writeln!(io::stderr(), "{count} tokens, {:.1} tokens/s", f64::from(count) / seconds);
    Ok(())
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

/// Prints a text as it grows, whole characters only.
struct Stream(Decoder);

impl Stream {
    /// Breaks off where nobody reads any more.
    fn push(&mut self, token: u32) -> ControlFlow<()> {
        if print(&self.0.push(token)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Whether somebody still reads.
fn print(text: &str) -> bool {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}
