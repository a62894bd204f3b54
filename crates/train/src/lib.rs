//! Trains language models on many ranks: configuration, data, training loop, run folder, command line.
//!
//! ```text
//! cli, commands ─> config ─> plan ─> data ─> one trainer per rank ─> fsdp (units of model) ─> reporting, run
//! ```
//!
//! | Folder | Holds |
//! |---|---|
//! | `host` | the machine, its devices, and how the ranks were started |
//! | `config` | keys, presets, files, checks |
//! | `plan` | what a run will need: units, memory, traffic |
//! | `reporting` | metrics and progress |
//! | `run` | a run on disk: folder, checkpoints, resuming |
//! | `supervisor` | starts a failed run again |
//! | `trainer` | the work of a rank: batches, steps, validation, samples |
//! | `commands` | the subcommands |
//!
//! Models, sharding and kernels are in the crates below this one.
//!
//! The program is this library's [`cli`]. Your own program can add a model to it: see the example `own_model`. The
//! parts are public so that you can drive a run yourself:
//!
//! ```
//! use train::config::{Config, Source};
//!
//! let overrides = ["train.steps=10".to_string(), "parallel.gpus=2".to_string()];
//! let config = Config::load(Source::Preset("deepseek"), &overrides)?;
//! assert_eq!(config.moe.map(|moe| moe.top_k), Some(2));
//! # Ok::<(), train::TrainError>(())
//! ```
//!
//! Your own model, in `tiny.rs`, on this command line, `cargo run --example own_model`:
//!
//! ```ignore
#![doc = include_str!("../examples/own_model/main.rs")]
//! ```

pub mod allocator;
mod atomic_write;
mod cli;
mod commands;
pub mod config;
mod dry_run;
mod ending;
mod error;
mod format;
mod hints;
mod host;
mod output;
mod overview;
mod plan;
mod program;
mod reporting;
mod run;
mod supervisor;
mod terminal;
mod trainer;
mod training;
mod unknown_argument;

pub use cli::{Program, cli};
pub use error::TrainError;
pub use host::device::Devices;
pub use run::options::RunOptions;
pub use trainer::{Outcome, Pace};
pub use training::train;
