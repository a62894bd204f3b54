//! Tokenizes text into a folder.
//!
//! ```text
//! reader thread           all threads              this thread
//! files ─> pieces ─batch─> encode each piece ─────> shards, one stream
//! ```
//!
//! A batch is a few megabytes, and one is read while another is encoded, so memory does not grow with the source.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use rayon::prelude::*;

use crate::cache::NewFolder;
use crate::dataset::val_tokens;
use crate::error::count;
use crate::meta::VERSION;
use crate::progress::{Progress, say};
use crate::source::{self, Piece, Source, TextSource};
use crate::tokenizer::{CharSet, check_bpe};
use crate::tokens::ShardWriter;
use crate::{DataError, Meta, Tokenizer, TokenizerSpec};

/// Bytes of text that all threads together encode at once.
const BATCH_BYTES: usize = 16 << 20;

/// How text is read and tokens are written.
#[derive(Debug, Clone)]
pub struct PrepareOptions {
    /// What messages and the metadata call the source. None for its path.
    pub name: Option<String>,
    /// Number of tokens of a byte-level BPE to learn from the text, instead of using the given tokenizer.
    pub train_bpe: Option<usize>,
    /// The field of JSON lines, or the column of CSV, TSV and Parquet, that holds the text.
    pub text_field: String,
    /// Fraction of the tokens, at the end, held out for validation, unless the source has validation files. None for
    /// 10%, at most 10 million tokens.
    pub val_fraction: Option<f64>,
    /// Tokens per shard.
    pub shard_tokens: u64,
    /// Whether to report progress, and skipped files of a folder, on stderr.
    pub progress: bool,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            name: None,
            train_bpe: None,
            text_field: "text".into(),
            val_fraction: None,
            shard_tokens: 100_000_000,
            progress: false,
        }
    }
}

/// Tokenizes text: writes a folder `out` with `train-000000.bin`... (llm.c's layout), `meta.json` and the tokenizer's
/// files. The folder appears once it is complete.
///
/// # Errors
/// If the source or the tokenizer is missing or broken, if the source is not text, if the vocabulary to learn is too
/// small or too large, or if the folder `out` is not empty.
pub fn prepare(
    source: &str,
    tokenizer: &TokenizerSpec,
    out: &Path,
    options: &PrepareOptions,
) -> Result<Meta, DataError> {
    check_fraction(options.val_fraction)?;
    let exists = || DataError::Exists { path: out.into() };
    let empty = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if out.exists() && !empty {
        return Err(exists());
    }
    options.train_bpe.map_or(Ok(()), check_bpe)?;
    let Source::Text(mut text) = source::find(source)? else {
        return Err(DataError::AlreadyTokens { path: source.into() });
    };
    options.name.iter().for_each(|name| text.name.clone_from(name));
    // Everything that can fail immediately does so before the folder is begun.
    let given = if options.train_bpe.is_none() { tokenizer.open()? } else { None };
    if empty {
        fs::remove_dir(out).map_err(|error| DataError::write(out, error))?;
    }
    say(text.note.as_ref(), options.progress);
    let folder = NewFolder::create(out, options.progress)?.ok_or_else(exists)?;
    let (name, opened) = match options.train_bpe {
        None => (tokenizer.to_string(), given),
        Some(vocab_size) => {
            let learned = learn_bpe(&text, &options.text_field, vocab_size)?;
            (format!("bpe of {} tokens, learned from the text", learned.vocab_size()), Some(learned))
        }
    };
    let meta = write(&text, &name, opened, folder.path(), options)?;
    if folder.publish()? { Ok(meta) } else { Err(exists()) }
}

/// Learns a byte-level BPE of at most `vocab_size` tokens from all of `source` except its validation files.
fn learn_bpe(source: &TextSource, field: &str, vocab_size: usize) -> Result<Tokenizer, DataError> {
    thread::scope(|scope| {
        let (sender, pieces) = sync_channel(64);
        let reader = scope.spawn(move || {
            source.read(field, &mut |piece| match piece.validates {
                true => Ok(()),
                false => sender.send(piece.text).map_err(|_| stopped()),
            })
        });
        let tokenizer = Tokenizer::train_bpe(pieces.into_iter(), vocab_size)?;
        join(reader)?;
        Ok(tokenizer)
    })
}

pub(crate) fn check_fraction(fraction: Option<f64>) -> Result<(), DataError> {
    match fraction {
        Some(value) if !(value > 0.0 && value <= 1.0) => Err(DataError::ValFraction { value }),
        _ => Ok(()),
    }
}

/// Encodes all of `source` into `folder`, by the source's own characters if there is no tokenizer. `name` is the
/// tokenizer's name in `meta.json`.
pub(crate) fn write(
    source: &TextSource,
    name: &str,
    tokenizer: Option<Tokenizer>,
    folder: &Path,
    options: &PrepareOptions,
) -> Result<Meta, DataError> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => tokenizer,
        None => characters(source, options)?,
    };
    let vocab_size = tokenizer.vocab_size();
    let eot = tokenizer.eot().filter(|_| source.many);
    let mut shards = ShardWriter::new(folder, vocab_size, options.shard_tokens);
    let (mut documents, mut text_bytes, mut document_start, mut validating) = (0, 0, 0, 0);
    let mut progress = Progress::new("encoding", source.bytes(), !options.progress);
    in_batches(source, &options.text_field, |batch| {
        let encoded: Vec<_> = batch.par_iter().map(|piece| tokenizer.encode(&piece.text)).collect();
        for (piece, tokens) in batch.iter().zip(encoded) {
            let before = (text_bytes - document_start) as usize;
            let mut tokens = tokens.map_err(|error| in_document(&source.name, documents + 1, before, error))?;
            text_bytes += piece.text.len() as u64;
            if piece.end {
                documents += 1;
                document_start = text_bytes;
                tokens.extend(eot);
            }
            shards.write(&tokens)?;
            validating += if piece.validates { tokens.len() as u64 } else { 0 };
        }
        progress.set(source.counts.read.load(Ordering::Relaxed));
        Ok(())
    })?;
    let nulls = source.counts.nulls.load(Ordering::Relaxed);
    let note = format!("{}: {} with null in {:?} skipped", source.name, count(nulls, "row"), options.text_field);
    say((nulls > 0).then_some(&note), options.progress);
    let shards = shards.finish()?;
    let tokens = shards.iter().map(|shard| shard.tokens).sum();
    if tokens == 0 {
        return Err(DataError::Empty { path: (&source.name).into() });
    }
    let meta = Meta {
        version: VERSION,
        source: source.name.clone(),
        tokenizer: name.into(),
        vocab_size,
        eot,
        documents,
        text_bytes,
        tokens,
        val_tokens: if source.has_split() { validating } else { val_tokens(tokens, options.val_fraction) },
        shards,
    };
    tokenizer.save(folder)?;
    meta.save(folder)?;
    Ok(meta)
}

/// The error of encoding a piece that begins `before` bytes into its document.
fn in_document(source: &str, number: u64, before: usize, error: DataError) -> DataError {
    let error = match error {
        DataError::UnknownChar { char, offset, vocab_size } => {
            DataError::UnknownChar { char, offset: before + offset, vocab_size }
        }
        other => other,
    };
    DataError::Document { source_name: source.into(), number, problem: error.to_string() }
}

/// The tokenizer of the source's own characters.
fn characters(source: &TextSource, options: &PrepareOptions) -> Result<Tokenizer, DataError> {
    let mut seen = CharSet::default();
    let mut progress = Progress::new("finding characters in", source.bytes(), !options.progress);
    source.read(&options.text_field, &mut |piece| {
        seen.add(&piece.text);
        progress.set(source.counts.read.load(Ordering::Relaxed));
        Ok(())
    })?;
    if source.many {
        seen.add("\0"); // ends a document
    }
    Ok(seen.into_tokenizer())
}

/// Calls `take` with batches of pieces, in order, while a thread reads the next batch.
fn in_batches(
    source: &TextSource,
    field: &str,
    mut take: impl FnMut(Vec<Piece>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        let reader = scope.spawn(move || read_batches(source, field, &sender));
        for batch in &batches {
            if let Err(error) = take(batch) {
                drop(batches); // stops the reader at its next batch
                return Err(error);
            }
        }
        join(reader)
    })
}

fn read_batches(source: &TextSource, field: &str, sender: &SyncSender<Vec<Piece>>) -> Result<(), DataError> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    source.read(field, &mut |piece| {
        // Includes the overhead of a piece, as documents may be short.
        bytes += piece.text.len() + 64;
        batch.push(piece);
        if bytes < BATCH_BYTES {
            return Ok(());
        }
        bytes = 0;
        sender.send(std::mem::take(&mut batch)).map_err(|_| stopped())
    })?;
    sender.send(batch).map_err(|_| stopped())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The reader's error when its text is no longer wanted. The actual cause is another error, which is reported instead.
fn stopped() -> DataError {
    DataError::Encode { problem: "stopped".into() }
}
