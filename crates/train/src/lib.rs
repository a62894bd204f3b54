//! Trains language models on many ranks: configuration, data, training loop, run folder, command line.
//!
//! ```text
//! cli ─> config ─> data ─> run ─> one trainer per rank ─> fsdp (units of model) ─> metrics ─> validation, sample
//! ```
//!
//! It has no models, no sharding and no kernels of its own: those are crates below it.
//!
//! The program is this library's [`cli`], to which a program of your own can add a model: see the example `own_model`.
//! The parts are public so that you can drive a run yourself:
//!
//! ```
//! use train::config::{Config, Source};
//!
//! let overrides = ["train.steps=10".to_string(), "parallel.gpus=2".to_string()];
//! let config = Config::load(Source::Preset("deepseek"), &overrides)?;
//! assert_eq!(config.moe.map(|moe| moe.top_k), Some(2));
//! # Ok::<(), train::config::ConfigError>(())
//! ```

pub mod allocator;
mod atomic_write;
mod batch;
mod batches;
mod cli;
mod commands;
pub mod config;
mod copies;
mod data_mark;
mod device;
mod dry_run;
mod end_of_text;
mod ending;
mod epochs;
mod error;
mod format;
mod hints;
mod job;
mod launch;
mod layout;
mod machine;
mod memory_check;
mod metrics;
mod overview;
mod program;
mod progress;
mod recorder;
mod resume;
mod run;
mod run_folder;
mod run_options;
mod saved;
mod saver;
mod step_line;
mod terminal;
mod trained;
mod trainer;
mod units;
mod unknown_argument;
mod validation;
mod vocabulary;
mod workload;
mod z_score;

pub use cli::{Program, cli};
pub use device::Devices;
pub use error::TrainError;
pub use run::train;
pub use run_options::RunOptions;
pub use trainer::{Outcome, Pace};
