//! A run's metrics as one HTML page, and as TensorBoard events.
//!
//! [`write()`] reads run folders and writes a page that contains everything it needs: style, script and numbers. The
//! page loads nothing, so you can mail it, archive it, or open it years later. Several runs are overlaid, each in its
//! own color. [`serve()`] serves the same page for live runs and follows them. This crate reads files and knows nothing
//! of models or configurations.
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
//! The files of a run folder and how the page uses them:
//!
//! | file | on the page |
//! |---|---|
//! | `metrics.jsonl` | head, plots and tables; a run without a line about a step, validation or usage is left out, with a note |
//! | `config.yaml` | the model's name, the planned steps, a pipeline's timeline, the folded list of keys; without it, a note |
//! | `checkpoints/step-N` | the names of the checkpoints |
//! | `planned.json` | planned figures beside measured ones ([`Planned`]) |
//!
//! The lines of `metrics.jsonl` are distinguished by their keys. The page omits plots whose keys a run lacks, shows
//! null values as gaps, and ignores lines of other kinds. An unterminated last line is still being written. A resumed
//! run may repeat steps: the later lines take precedence, and wall time continues.
//!
//! However long a run is, each of its curves has at most about 2000 points. They keep the minimum and maximum of each
//! segment, so spikes stay visible. The smoothed line connects the means of the segments.
//!
//! [`tensorboard`] writes the event files that TensorBoard reads. [`Appender`] writes them and the metrics, also on a disk
//! that is full for a while.

mod appender;
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
mod planned;
mod run;
mod series;
mod serve;
mod setup;
mod source;
pub mod tensorboard;
mod verdict;
mod write;

pub use appender::Appender;
pub use error::ReportError;
pub use page::STYLE;
pub use planned::{PLANNED, Planned, Unit};
pub use serve::serve;
pub use write::{Summary, replace, write};
