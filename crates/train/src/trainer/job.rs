//! What all ranks of a run share.

use crate::config::Config;
use crate::format::count;
use crate::host::faults::Faults;
use crate::reporting::progress::Progress;
use crate::run::flight::Flights;
use crate::run::folder::RunFolder;
use crate::run::remote::upload::Uploads;
use crate::run::resume::Resume;
use crate::trainer::validation::ValidationSet;
use data::{Buckets, Dataset, Prepared, Windows};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What all ranks share.
pub(crate) struct Job {
    pub config: Config,
    /// The configuration to write to the run's folder. It differs from `config` if some of its ranks have no device.
    pub whole: Config,
    pub faults: Faults,
    pub dataset: Arc<Dataset>,
    /// The validation sets, each part of a dataset.
    pub validation: Vec<ValidationSet>,
    /// The documents packed into rows, if there are several lengths.
    pub buckets: Option<Arc<Buckets>>,
    /// The sequences left to train on; only without buckets.
    pub windows: Option<Arc<Windows>>,
    /// Where the dataset comes from, and its tokenizer if known.
    pub data: Prepared,
    /// The run's folder; `None` in a process without rank 0, which receives it from rank 0.
    pub folder: Option<RunFolder>,
    /// What the run resumes from.
    pub resume: Option<Resume>,
    /// Copies checkpoints to a store, in rank 0's process.
    pub uploads: Option<Arc<Uploads>>,
    pub progress: Progress,
    /// The flight recorders of this process's ranks.
    pub flights: Arc<Flights>,
    /// Distinct devices of all ranks.
    pub devices: usize,
    /// Whether the run ends after [`MEASURED`] steps and keeps nothing.
    pub dry_run: bool,
    pub stop: Arc<AtomicBool>,
}

impl Job {
    /// A line about the ranks that are missing, if some are.
    pub fn degraded(&self) -> Option<String> {
        let (now, whole) = (&self.config.parallel, &self.whole.parallel);
        let layouts = match (now.describe(), whole.describe()) {
            (now, whole) if now == whole => String::new(),
            (now, whole) => format!(", {now} instead of {whole}"),
        };
        (now.gpus < whole.gpus).then(|| {
            format!(
                "degraded: {} instead of {}{layouts}, with the same global batch",
                count(now.gpus, "rank"),
                whole.gpus
            )
        })
    }
}

/// Number of steps of a dry run.
pub(crate) const MEASURED: usize = 3;
