//! `train prepare`.

use super::values::at_least_1;
use crate::error::TrainError;
use crate::format::{count, human, human_count};
use crate::run::remote;
use crate::terminal::say;
use clap::Args;
use data::{PrepareOptions, TokenizerSpec};
use std::path::PathBuf;

/// Tokenize text into a folder, for `--data`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Text, JSONL, CSV, TSV, Parquet (also .gz, .zst), a folder of them, such a file or folder in an object store
    /// (s3://BUCKET/FOLDER), `shakespeare` or `rust-crates`
    source: String,
    /// The folder to create
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// byte, char, gpt2, or the path of a Hugging Face tokenizer.json or its folder
    #[arg(long, value_name = "T", default_value = "byte")]
    tokenizer: TokenizerSpec,
    /// Train a byte-level BPE of at most N tokens on the text first, and use it
    #[arg(long, value_name = "N", conflicts_with = "tokenizer", value_parser = at_least_1)]
    train_bpe: Option<usize>,
    /// The JSONL field, or the CSV, TSV or Parquet column, that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_field: String,
    /// Fraction of the tokens, taken from the end, held out for validation; by default a tenth, but at most 10 million
    /// tokens. No effect if the folder has files for validation
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    val_fraction: Option<f64>,
    /// Tokens per file
    #[arg(long, value_name = "N", default_value_t = 100_000_000, value_parser = at_least_1)]
    shard_tokens: usize,
}

pub fn run(args: &PrepareArgs) -> Result<(), TrainError> {
    let options = PrepareOptions {
        name: store::is_of_store(&args.source).then(|| args.source.clone()),
        train_bpe: args.train_bpe,
        text_field: args.text_field.clone(),
        val_fraction: args.val_fraction,
        shard_tokens: args.shard_tokens as u64,
        progress: true,
    };
    let meta = data::prepare(&remote::data::local(&args.source, false)?, &args.tokenizer, &args.out, &options)?;
    say(&format!(
        "wrote {} ({} for validation) of {} to {}, {} in the vocabulary, {:.3} bytes per token",
        human_count(meta.tokens as usize, "token"),
        human(meta.val_tokens as usize),
        count(meta.documents as usize, "document"),
        args.out.display(),
        count(meta.vocab_size, "token"),
        meta.text_bytes as f64 / meta.tokens as f64,
    ));
    if let Some(asked) = args.train_bpe.filter(|asked| *asked > meta.vocab_size) {
        say(&format!(
            "the tokenizer has {} instead of {asked} (--train-bpe): the text has no more pairs to merge",
            count(meta.vocab_size, "token")
        ));
    }
    if meta.documents > 1 && meta.eot.is_none() {
        say("the documents follow each other without an end-of-text token, as the tokenizer has none");
    }
    Ok(())
}
