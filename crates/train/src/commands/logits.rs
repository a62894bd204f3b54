//! `train logits`.

use crate::atomic_write::write_safetensors;
use crate::commands::{HfFolderError, NotNew, check_new_file, open_hf};
use crate::terminal::say;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Args;
use model::ModelError;
use model::hf::Pretrained;
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Write the logits of a Hugging Face model for given tokens.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// Folder with config.json and model.safetensors (or its shards and index); model_type gpt2, llama, mistral, qwen2,
    /// qwen3, mixtral, qwen3_moe, deepseek_v2 or deepseek_v3
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// Token ids: commas within a sequence, semicolons between sequences of equal length
    #[arg(long, value_name = "1,2,3;4,5,6")]
    tokens: String,
    /// File for the tensor `logits`, [batch, time, vocab], fp32
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
}

/// Why no logits were written.
#[derive(Debug, thiserror::Error)]
pub enum LogitsError {
    #[error(transparent)]
    NotNew(#[from] NotNew),
    #[error(transparent)]
    Folder(#[from] HfFolderError),
    #[error(transparent)]
    Hf(#[from] ModelError),
    #[error("--tokens: {0}")]
    Tokens(String),
    #[error("cannot write {}: {source}: check its folder, or choose another file with --out", path.display())]
    Write { path: PathBuf, source: io::Error },
}

pub fn run(args: &LogitsArgs) -> Result<(), LogitsError> {
    let device = Device::flex();
    let sequences = parse(&args.tokens)?;
    check_new_file(&args.out, "--out")?;
    check_out(&args.out).map_err(|source| LogitsError::Write { path: args.out.clone(), source })?;
    let model = Pretrained::load(&open_hf(&args.hf)?, &device)?;
    let (b, t, vocab) = (sequences.len(), sequences[0].len(), model.config.vocab_size());
    if t > model.context() {
        return Err(LogitsError::Tokens(format!(
            "{t} tokens are more than the model's context of {}",
            model.context()
        )));
    }
    let tokens = sequences.concat();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
        return Err(LogitsError::Tokens(format!("{token} is not in the model's vocabulary of {vocab} tokens")));
    }
    let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
    let logits = model.logits(Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t]), &device));
    write(&args.out, logits).map_err(|source| LogitsError::Write { path: args.out.clone(), source })?;
    say(&format!("wrote logits [{b}, {t}, {vocab}] to {}", args.out.display()));
    Ok(())
}

/// Parses `1,2,3;4,5,6`: sequences of equal length with at least one token.
fn parse(text: &str) -> Result<Vec<Vec<u32>>, LogitsError> {
    let token = |token: &str| {
        let bad = |_| LogitsError::Tokens(format!("`{token}` is not a token id, as in 1,2,3;4,5,6"));
        token.trim().parse::<u32>().map_err(bad)
    };
    let sequence = |sequence: &str| sequence.split(',').map(token).collect::<Result<Vec<_>, _>>();
    let sequences = text.split(';').map(sequence).collect::<Result<Vec<_>, _>>()?;
    match sequences.iter().find(|sequence| sequence.len() != sequences[0].len()) {
        Some(other) => Err(LogitsError::Tokens(format!(
            "sequences have {} and {} tokens; give them all the same length",
            sequences[0].len(),
            other.len()
        ))),
        None => Ok(sequences),
    }
}

/// Checks in advance that the file's folder exists.
fn check_out(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::metadata(folder).map(drop)
}

fn write(path: &Path, logits_btv: Tensor<3>) -> io::Result<()> {
    let shape = logits_btv.dims().to_vec();
    let bytes: Vec<u8> = logits_btv.into_data().iter::<f32>().flat_map(f32::to_le_bytes).collect();
    let view = TensorView::new(Dtype::F32, shape, &bytes).map_err(io::Error::other)?;
    write_safetensors(path, [("logits", view)], None)
}
