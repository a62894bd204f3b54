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
//! [`open`] takes text or tokens: it prepares text once, into a cache folder, and reads tokens in place.
//! [`prepare`] does the same into a folder of your choice, which you can copy to other machines.
//!
//! [`Buckets`] packs the documents of a dataset by length into rows of several lengths, without padding. Few documents
//! are cut, and short documents do not end up in long rows. [`Batch::first_keys`] tells where documents begin in a row.
//!
//! [`Dataset::sequences`] lists the sequences of a split for loaders that choose their own order. With the feature
//! `burn` the list is a Burn `Dataset`, and `TensorBatcher` is the `Batcher` for Burn's `DataLoaderBuilder`. The
//! feature adds Burn with its own feature `dataset`, but none of the data sources that Burn can add to it (SQLite,
//! images, audio).
//!
//! An example, `examples/batches.rs`:
//!
//! ```
#![doc = include_str!("../examples/batches.rs")]
//! ```
//!
//! This crate stores no position and knows nothing of ranks. A training sequence is a function of the seed and its
//! number since the start of the run, and the rows of buckets in a step are a function of the seed and the step. So a
//! rank asks for its part of the global batch, a resumed run asks for the step it stopped at, and both see the tokens
//! that a single uninterrupted rank would have seen.

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
mod sequences;
mod source;
#[cfg(feature = "burn")]
mod tensors;
mod tokenizer;
mod tokens;
mod windows;

pub use buckets::{BucketStep, Buckets};
#[doc(hidden)]
pub use cache::{fill_once, root as cache_root};
pub use dataset::{Batch, Dataset, Split};
pub use error::DataError;
pub use loader::Loader;
pub use meta::{Meta, Shard};
pub use open::{OpenOptions, Prepared, open};
pub use prepare::{PrepareOptions, prepare};
pub use sequences::{Sequence, Sequences};
#[doc(hidden)]
pub use source::{DEFAULT_SOURCE, how_to_get, is_name};
#[cfg(feature = "burn")]
pub use tensors::{TensorBatch, TensorBatcher};
pub use tokenizer::{Decoder, Tokenizer, TokenizerSpec};
#[doc(hidden)]
pub use windows::Trained;
pub use windows::Windows;
