//! Training data: text becomes tokens, and tokens become the batches that ranks train on.
//!
//! ```text
//!  rust-crates, shakespeare       prepare                    Dataset                   Loader
//!  FILE.txt, .jsonl, .parquet  ──────────────>  FOLDER      ─────────>  train, val   ─────────>  micro-batches
//!  .gz, .zst, a folder of them    Tokenizer     meta.json    (in place)  or Buckets    (thread)   of a step, read ahead
//!                                               train-*.bin     │
//!  .bin of llm.c or nanoGPT  ───────────────────────────────────┘
//! ```
//!
//! [`open`] takes whatever `--data` takes: it prepares text once, into a cache folder, and reads tokens in place.
//! [`prepare`] does the same into a folder of your choice, which you can copy to other machines.
//!
//! [`Buckets`] packs the documents of a dataset by length into rows of several lengths, without padding, so that few
//! documents are cut and short ones do not end up in long rows. [`Batch::document_starts`] says where documents begin
//! in a row.
//!
//! ```
//! # fn main() -> Result<(), data::DataError> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let file = folder.path().join("text.txt");
//! # std::fs::write(&file, "To be, or not to be, that is the question. ".repeat(20)).unwrap();
//! let options = data::OpenOptions { cache: Some(folder.path().join("cache")), ..Default::default() };
//! let prepared = data::open(file.to_str().unwrap(), &options)?;
//! prepared.dataset.check(16)?;
//! let batch = prepared.dataset.train_batch(1337, 0..4, 16)?; // of the run with seed 1337, the first four sequences
//! assert_eq!((batch.sequences, batch.inputs.len()), (4, 64));
//! # Ok(()) }
//! ```
//! This crate keeps no position and knows no ranks. A training sequence is a function of (seed, its number since the
//! start of the run), and the rows of buckets in a step are a function of (seed, step). So a rank asks for its part of
//! the global batch, a resumed run asks for the step it stopped at, and both see the tokens that a single uninterrupted
//! rank would have seen.

mod buckets;
mod cache;
mod checked;
mod dataset;
mod documents;
mod error;
mod loader;
mod meta;
mod open;
mod order;
mod packing;
mod prepare;
mod progress;
mod quiet;
mod source;
mod tokenizer;
mod tokens;
mod windows;

pub use buckets::{Buckets, Step};
pub use dataset::{Batch, Dataset, Split};
pub use error::DataError;
pub use loader::Loader;
pub use meta::{Meta, Shard};
pub use open::{OpenOptions, Prepared, open};
pub use prepare::{PrepareOptions, prepare};
pub use source::{DEFAULT_SOURCE, how_to_get, is_name};
pub use tokenizer::{Decoder, Tokenizer, TokenizerSpec};
pub use windows::{Trained, Windows};
