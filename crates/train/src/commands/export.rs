//! `train export`.

use super::values::at_least_1;
use super::{NotNew, check_new, check_new_file};
use crate::atomic_write::write_safetensors;
use crate::commands::saved::{Saved, SavedError};
use crate::error::TrainError;
use crate::format::{count, human, human_count};
use crate::run::end_of_text;
use crate::terminal::say;
use checkpoint::Kind;
use clap::{Args, ValueEnum};
use model::ModelError;
use model::hf::{self, Dtype, ExportOptions};
use safetensors::tensor::{Dtype as SafeDtype, View};
use serde_json::Value;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

/// Export a trained model as a folder that Hugging Face transformers can load.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A run's folder (its newest checkpoint), RUN@best, RUN@12 (that step), or a folder step-N
    run: PathBuf,
    /// The folder to create
    #[arg(long, value_name = "DIR", required_unless_present = "full_state")]
    out: Option<PathBuf>,
    /// Type of the weights
    #[arg(long, value_enum, default_value = "fp32")]
    dtype: DtypeArg,
    /// Maximum bytes of weights per file
    #[arg(long, value_name = "BYTES", default_value_t = 5_000_000_000, value_parser = at_least_1)]
    max_shard_bytes: usize,
    /// Write one safetensors file instead, with all parameters and optimizer moments under Kiln's names
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "out")]
    full_state: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeArg {
    #[value(alias = "f32")]
    Fp32,
    Bf16,
    #[value(alias = "f16")]
    Fp16,
}

/// Why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    NotNew(#[from] NotNew),
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Hf(#[from] ModelError),
    #[error(
        "transformers has no model of type {kind}: give --full-state FILE.safetensors in place of --out, which writes all \
         parameters under Kiln's names"
    )]
    NoFormat { kind: &'static str },
    #[error("cannot write {}: {source}: check its folder, or choose another file", path.display())]
    Write { path: PathBuf, source: io::Error },
}

pub fn run(args: &ExportArgs) -> Result<(), ExportError> {
    args.out.as_deref().map_or(Ok(()), check_new)?;
    args.full_state.as_deref().map_or(Ok(()), |file| check_new_file(file, "--full-state"))?;
    let saved = Saved::open(&args.run)?;
    if args.out.is_some() && saved.config.family().hugging_face().is_none() {
        return Err(ExportError::NoFormat { kind: saved.config.model.type_name() });
    }
    saved.expect_finite().map_err(TrainError::from)?;
    match (&args.full_state, &args.out) {
        (Some(file), _) => {
            full_state(&saved, file).map_err(|source| ExportError::Write { path: file.clone(), source })?;
            say(&format!("wrote {}", file.display()));
            Ok(())
        }
        (None, Some(folder)) => huggingface(args, &saved, folder),
        (None, None) => unreachable!("clap asks for one of them"),
    }
}

fn huggingface(args: &ExportArgs, saved: &Saved, folder: &Path) -> Result<(), ExportError> {
    let dtype = match args.dtype {
        DtypeArg::Fp32 => Dtype::F32,
        DtypeArg::Bf16 => Dtype::BF16,
        DtypeArg::Fp16 => Dtype::F16,
    };
    let mut tokenizer = saved.tokenizer_files()?;
    tokenizer.retain(|(name, _)| name != end_of_text::FILE);
    let (begin_of_text, end_of_text) = ends_of_text(saved, &tokenizer)?;
    let (max_shard_bytes, end_of_text) = (args.max_shard_bytes as u64, &end_of_text[..]);
    let options = ExportOptions { dtype, max_shard_bytes, end_of_text, begin_of_text, tokenizer: &tokenizer };
    let summary = hf::export(folder, &*saved.config.family(), &options, |path| saved.parameter(path))?;
    let own = saved.checkpoint.index().parameters.iter().map(|one| one.shape.iter().product::<usize>()).sum();
    let more = match summary.parameters.saturating_sub(own) {
        0 => String::new(),
        more => format!(", {} of them copies or zeros that the format asks for", human(more)),
    };
    say(&format!(
        "wrote {} in {} to {} ({}){more}",
        human_count(summary.parameters, "parameter"),
        count(summary.tensors, "tensor"),
        folder.display(),
        summary.weight_files.join(", "),
    ));
    Ok(())
}

/// The token that begins a text and those that end it, if the tokenizer exists, can be opened, and has them.
fn ends_of_text(saved: &Saved, files: &[(String, Vec<u8>)]) -> Result<(Option<u32>, Vec<u32>), TrainError> {
    let Ok(tokenizer) = saved.tokenizer(None) else { return Ok((None, vec![])) };
    let config = files.iter().find(|(name, _)| name == "tokenizer_config.json");
    let config: Value = config.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    let name = config["bos_token"].as_str().or(config["bos_token"]["content"].as_str());
    let begin = name.and_then(|name| tokenizer.encode(name).ok()).filter(|tokens| tokens.len() == 1);
    Ok((begin.map(|tokens| tokens[0]), saved.end_of_text(&tokenizer)?))
}

/// A tensor that is read only when it is written.
struct Lazy<'a> {
    saved: &'a Saved,
    name: &'a str,
    shape: &'a [usize],
    kind: Kind,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> SafeDtype {
        SafeDtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let len = self.shape.iter().product();
        let values = self.saved.checkpoint.read(self.name, self.kind, 0..len).expect("the checkpoint was verified");
        values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>().into()
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

fn full_state(saved: &Saved, path: &Path) -> io::Result<()> {
    let index = saved.checkpoint.index();
    let tensors = index.parameters.iter().flat_map(|parameter| {
        let (name, shape) = (parameter.name.as_str(), &parameter.shape[..]);
        index.kinds().iter().map(move |kind| (kind.tensor(name), Lazy { saved, name, shape, kind: *kind }))
    });
    let metadata = [("step", index.step.to_string()), ("optimizer_steps", index.optimizer_steps.to_string())];
    let metadata = metadata.map(|(key, value)| (key.to_string(), value)).into();
    write_safetensors(path, tensors, Some(metadata))
}
