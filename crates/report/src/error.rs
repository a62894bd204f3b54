//! Why a report cannot be made.

use std::io;
use std::path::PathBuf;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// No run was named.
    #[error("no run to report: name one run folder or more")]
    NoRuns,
    /// The path of a run is not a folder.
    #[error("{}: no such folder; name a run folder, which holds `metrics.jsonl`", path.display())]
    NotAFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// A folder contains no metrics.
    #[error("{}: no such file; the folder is not that of a run, or the run has not started", path.display())]
    NoMetrics {
        /// The file that was expected.
        path: PathBuf,
    },
    /// The metrics have no line about a step.
    #[error(
        "{}: it has no step yet ({lines} {}); wait for the run's first step, or follow it with `--serve`",
        path.display(),
        if *lines == 1 { "line" } else { "lines" }
    )]
    NothingToShow {
        /// The file.
        path: PathBuf,
        /// How many lines it has.
        lines: usize,
    },
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The page cannot be written.
    #[error("{}: cannot be written: {source}; choose another place with `--out`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The argument of `--serve` is not an address.
    #[error("`{address}` is neither PORT nor HOST:PORT; name the runs before `--serve`")]
    Address {
        /// The argument.
        address: String,
    },
    /// The page cannot be served.
    #[error("{address}: cannot listen: {source}; choose another port, or omit it for a free one on 127.0.0.1")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
}
