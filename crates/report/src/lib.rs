//! A run's metrics as one HTML page, and as TensorBoard events.
//!
//! [`write()`] reads run folders and writes a page that holds everything it needs: style, script and numbers. It loads
//! nothing from anywhere, so it can be mailed, archived, or opened years later. Several runs are laid over each other,
//! a colour each. [`serve()`] shows the same page of runs that go on, and follows them.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! let run = folder.path().join("gpt2-001");
//! std::fs::create_dir(&run)?;
//! std::fs::write(run.join("metrics.jsonl"), "{\"step\":1,\"loss\":5.5}\n{\"step\":2,\"loss\":5.1}\n")?;
//!
//! let page = folder.path().join("report.html");
//! let summary = report::write(&[run], &page)?;
//! assert_eq!(summary.runs, 1);
//! assert_eq!(summary.notes, ["gpt2-001: config.yaml: No such file or directory (os error 2)"]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! What a run folder may hold, and what becomes of it:
//!
//! | file | on the page |
//! |---|---|
//! | `metrics.jsonl` | head, plots and tables; a run without a line of a step, a validation or a usage is left out, with a note |
//! | `config.yaml` | the model's name, the steps planned, a pipeline's time line, the folded list of keys; without it, a note |
//! | `checkpoints/step-N` | the names of the checkpoints |
//!
//! Lines of `metrics.jsonl` are told apart by their keys. Keys that a run lacks leave their plots out, null values are
//! gaps, lines of other kinds are passed over, and a last line without an end is one that is still being written. A
//! resumed run may do steps again: the later lines hold, and wall time goes on.
//!
//! However long the run, a plot has at most some 2000 points of it. They keep the least and the greatest value of each
//! stretch, so that spikes stay visible; the smoothed line runs through the means of the stretches.
//!
//! [`tensorboard`] writes the event files that TensorBoard reads.

mod config;
mod error;
mod file;
mod follow;
mod http;
mod lines;
mod loads;
mod log;
mod marks;
mod page;
mod pipeline;
mod run;
mod series;
mod serve;
mod setup;
mod source;
pub mod tensorboard;
mod verdict;
mod write;

pub use error::ReportError;
pub use serve::serve;
pub use write::{Summary, write};
