//! The data of a run: from a text to the batches that ranks train on.
//!
//! ```text
//! corpus::load("rust-crates" | FILE)   -> Corpus     name, text
//! Tokenizer::new(kind, &corpus.text)   -> Tokenizer  bytes or characters <-> token ids
//! Dataset::new(tokens, seq_len)        -> Dataset    first 90% train, last 10% validation
//! dataset.train_batch(seed, step, ..)  -> Batch      inputs and targets, [sequences, seq_len]
//! ```
//!
//! Nothing here keeps a position or knows a rank. A training batch is a function of (seed, step, sequence), so a rank
//! asks for its slice of the global batch, a resumed run asks for the step it stopped at, and both see the tokens that
//! one undisturbed rank would have seen.

mod corpus;
mod loader;
mod tokenizer;

use std::io;
use std::path::PathBuf;

pub use corpus::{Corpus, DEFAULT_SOURCE, MAX_BYTES, load};
pub use loader::{Batch, Dataset};
pub use tokenizer::Tokenizer;

/// Why a run has no data: each message names the file, crate or value, and says what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum DataError {
    #[error(
        "data file {} does not exist: check the path given with --data, or leave it out to train on rust-crates",
        path.display()
    )]
    Missing { path: PathBuf },

    #[error(
        "{} is a folder, but --data takes one text file: join its files into one (cat FOLDER/*.txt > FILE)",
        path.display()
    )]
    Directory { path: PathBuf },

    #[error("cannot read {}: {source}; check its permissions, or give another text with --data FILE", path.display())]
    Unreadable { path: PathBuf, source: io::Error },

    #[error("data file {} is empty: give a text with --data FILE", path.display())]
    Empty { path: PathBuf },

    #[error(
        "data file {} is not UTF-8 text (first bad byte at offset {offset}): convert it (iconv -f ENCODING -t UTF-8), \
         or give another text with --data FILE",
        path.display()
    )]
    NotUtf8 { path: PathBuf, offset: usize },

    #[error(
        "crate {name} {version} of the corpus rust-crates is not in {}: run cargo fetch, or give a text \
         with --data FILE",
        folder.display()
    )]
    MissingCrate { name: String, version: String, folder: PathBuf },

    #[error("crate {name} of the corpus rust-crates is not in Cargo.lock: give a text with --data FILE")]
    NotLocked { name: String },

    #[error(
        "character {char:?} at byte {offset} is not one of the {vocab_size} characters of the training text: leave it \
         out, or train with the byte tokenizer"
    )]
    UnknownChar { char: char, offset: usize, vocab_size: usize },

    #[error(
        "the {split} split has {found} tokens and needs at least seq_len + 1 = {needed} (of {total} tokens the first \
         90% train, the rest validate): give a longer text with --data FILE, or lower seq_len"
    )]
    TooShort { split: &'static str, found: usize, needed: usize, total: usize },
}
