//! The records of a run: logs, metrics and TensorBoard events.

use crate::atomic_write::open_own;
use crate::error::TrainError;
use crate::reporting::metrics::{EventMetrics, ExpertMetrics, StageMetrics, StepMetrics, UsageMetrics, ValMetrics};
use crate::reporting::progress::Progress;
use crate::run::folder::RunFolder;
use crate::terminal::to_stderr;
use report::Appender;
use report::tensorboard::EventWriter;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// All records of a rank: its log, `logs/rank-N.txt`, and on rank 0 the output for the user, `metrics.jsonl`, and
/// TensorBoard events in `tb/`, with torchtitan's tags where it has them.
pub(crate) struct Recorder<'a> {
    log: Log,
    rank_0: Option<Rank0<'a>>,
    started: Instant,
}

/// A rank's log.
struct Log {
    path: PathBuf,
    file: Option<File>,
    /// Creates the file only once there is a warning.
    warnings_only: bool,
}

struct Rank0<'a> {
    progress: &'a Progress,
    folder: RunFolder,
    metrics: (PathBuf, Appender),
    board: (PathBuf, EventWriter),
}

impl<'a> Recorder<'a> {
    /// Opens the records in the folder of a run that has made `done` steps; a resumed run appends. `warnings_only`
    /// restricts the log to warnings.
    pub fn open(
        folder: &RunFolder,
        rank: usize,
        done: usize,
        warnings_only: bool,
        progress: &'a Progress,
    ) -> Result<Self, TrainError> {
        let mut log = Log { path: folder.logs().join(format!("rank-{rank}.txt")), file: None, warnings_only };
        if !warnings_only {
            let path = log.path.clone();
            log.open().map_err(|source| TrainError::Metrics { path, source })?;
        }
        let rank_0 = if rank == 0 { Some(Rank0::open(folder, done, progress)?) } else { None };
        Ok(Self { log, rank_0, started: Instant::now() })
    }

    /// Seconds since the records were opened.
    pub fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Writes a line for the user, on rank 0, and to this rank's log.
    pub fn say(&mut self, line: &str) {
        if let Some(rank_0) = &self.rank_0 {
            rank_0.progress.say(line);
        }
        self.log(line);
    }

    /// Writes lines to this rank's log and, with `tell`, on rank 0 as details for the user.
    pub fn detail(&mut self, lines: &str, tell: bool) {
        if let Some(rank_0) = self.rank_0.as_ref().filter(|_| tell) {
            rank_0.progress.detail(lines);
        }
        self.log(lines);
    }

    /// Writes a line to the log.
    pub fn log(&mut self, line: &str) {
        if !self.log.warnings_only {
            self.warn(line);
        }
    }

    /// Writes a line to the log on every rank, even with `warnings_only`.
    pub fn warn(&mut self, line: &str) {
        let elapsed = self.elapsed();
        self.log.write(&line.lines().map(|line| format!("[{elapsed:9.2} s] {line}\n")).collect::<String>());
    }

    /// Writes a whole line of `metrics.jsonl`, so that a stopped run leaves no partial lines.
    pub fn metrics(&mut self, line: &impl Serialize) -> Result<(), TrainError> {
        let Some(rank_0) = &mut self.rank_0 else { return Ok(()) };
        let text = serde_json::to_string(line).expect("metrics are plain data") + "\n";
        let (path, file) = &mut rank_0.metrics;
        let is_told = file.refused() > 0;
        match file.append(text.as_bytes()).map_err(|source| TrainError::Metrics { path: path.clone(), source }) {
            Err(error) if file.refused() > MOST_REFUSED => return Err(error),
            Err(error) if !is_told => self.say(&format!("warning: {error}: the next steps try again; make room")),
            _ => {}
        }
        Ok(())
    }

    /// Whether metrics wait for room on a disk that is full.
    pub fn is_refused(&self) -> bool {
        self.rank_0.as_ref().is_some_and(|rank_0| rank_0.metrics.1.refused() > 0)
    }

    /// Writes values of a step for TensorBoard. On a disk that is full, they wait as the metrics do, whose warning tells the
    /// user.
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let Some(Rank0 { board: (path, board), .. }) = &mut self.rank_0 else { return Ok(()) };
        match board.scalars(step as u64, values) {
            Err(source) if board.refused() > MOST_REFUSED => Err(TrainError::Metrics { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    /// Records an event in the log and in `metrics.jsonl`.
    pub fn event(&mut self, step: usize, event: &str) -> Result<(), TrainError> {
        self.log(event);
        self.metrics(&EventMetrics { step, event })
    }

    /// Records a skipped step and the reason.
    pub fn skipped(&mut self, step: usize, why: &str) -> Result<(), TrainError> {
        self.say(&format!("warning: step {step}: skipped: {why}"));
        self.metrics(&EventMetrics { step, event: &format!("skipped: {why}") })
    }

    /// Records a training step; with `tell` as a permanent line for the user. `stopping` marks it as the last one.
    pub fn step(&mut self, m: &StepMetrics, tell: bool, stopping: bool) -> Result<(), TrainError> {
        let mended = self.rank_0.as_mut().map(|rank_0| rank_0.mend(m.step)).transpose()?.flatten();
        if let Some(event) = mended {
            self.say(&format!("warning: {event}"));
            self.metrics(&EventMetrics { step: m.step, event: &event })?;
        }
        if let Some(rank_0) = &self.rank_0 {
            rank_0.progress.step(m, tell, stopping);
        }
        self.log(&format!(
            "step {} loss {:.6} grad {:.4} lr {:.3e} {:.3} s, waited {:.4} s for data, {:.4} s for a checkpoint",
            m.step, m.loss, m.grad_norm, m.lr, m.step_seconds, m.data_wait_seconds, m.checkpoint_seconds
        ));
        self.metrics(m)?;
        let mut values = vec![
            ("loss_metrics/global_avg_loss", m.loss),
            ("loss_metrics/aux_loss", m.aux_loss),
            ("grad_norm", m.grad_norm),
            ("lr", m.lr),
            ("throughput(tps)", m.tokens_per_second),
            ("tflops", m.tflops),
            ("time_metrics/end_to_end(s)", m.step_seconds),
            ("time_metrics/data_loading(s)", m.data_wait_seconds),
            ("time_metrics/data_loading(%)", 100.0 * m.data_wait_seconds / m.step_seconds),
        ];
        values.extend(m.mfu.map(|mfu| ("mfu(%)", 100.0 * mfu)));
        self.scalars(m.step, &values)
    }

    /// Records a validation.
    pub fn validation(&mut self, m: &ValMetrics) -> Result<(), TrainError> {
        let ValMetrics { step, val_loss, val_losses } = m;
        let named: Vec<_> = val_losses.iter().map(|(name, loss)| format!("{name} {loss:.4}")).collect();
        let of = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
        self.say(&format!("step {step}: validation loss {val_loss:.4} nats per token{of}"));
        self.metrics(m)?;
        let tags: Vec<_> = val_losses.keys().map(|name| format!("validation_metrics/loss/{name}")).collect();
        let mut values = vec![("validation_metrics/loss", *val_loss)];
        values.extend(tags.iter().map(String::as_str).zip(val_losses.values().copied()));
        self.scalars(*step, &values)
    }

    /// Records memory and communication; with `tell`, also shows the memory to the user.
    pub fn usage(&mut self, m: &UsageMetrics, tell: bool) -> Result<(), TrainError> {
        self.detail(&m.memory_line(), tell);
        m.traffic_line().iter().for_each(|line| self.log(line));
        self.metrics(m)?;
        let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
        let peak: usize = m.memory.values().map(|bytes| bytes.peak).sum();
        let mut values = vec![("memory/max_active(GiB)", gib(peak as f64))];
        values.extend(m.device.map(|device| ("memory/max_reserved(GiB)", gib(device.reserved as f64))));
        self.scalars(m.step, &values)
    }

    /// Records the times of a step's stages; with `tell`, also shows them to the user.
    pub fn stages(&mut self, m: &StageMetrics, tell: bool) -> Result<(), TrainError> {
        self.detail(&m.to_string(), tell);
        self.metrics(m)
    }

    /// Records the expert loads of a step; with `tell`, also shows them to the user.
    pub fn experts(&mut self, m: &ExpertMetrics, tell: bool) -> Result<(), TrainError> {
        self.detail(&m.to_string(), tell);
        self.metrics(m)?;
        for layer in &m.experts {
            let tag = |name: &str| format!("moe/layer_{}/{name}", layer.layer);
            let values = [(tag("cv"), layer.cv), (tag("max_ratio"), layer.max_ratio), (tag("dropped"), layer.dropped)];
            self.scalars(m.step, &values.each_ref().map(|(tag, value)| (tag.as_str(), *value)))?;
        }
        Ok(())
    }
}

/// Records an event in `metrics.jsonl` after the ranks have ended, and their records with them. A file that cannot be
/// written is a warning.
pub(crate) fn late_event(folder: &RunFolder, step: u64, event: &str) {
    let line = serde_json::to_string(&EventMetrics { step: step as usize, event }).expect("metrics are plain data");
    let path = folder.metrics();
    if let Err(source) = append(&path).and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
        to_stderr(&format!("warning: {}", TrainError::Metrics { path, source }));
    }
}

impl Log {
    fn open(&mut self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        self.file = Some(append(&self.path)?);
        Ok(())
    }

    /// A log that cannot be written must not end a run.
    fn write(&mut self, text: &str) {
        if self.file.is_none() {
            let _ = self.open();
        }
        if let Some(file) = &mut self.file {
            let _ = file.write_all(text.as_bytes());
        }
    }
}

/// Bytes of a file that are kept while the disk refuses them.
const MOST_REFUSED: usize = 1 << 20;

impl<'a> Rank0<'a> {
    fn open(folder: &RunFolder, done: usize, progress: &'a Progress) -> Result<Self, TrainError> {
        let (metrics, board) = (folder.metrics(), folder.tensorboard());
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            |source| TrainError::Metrics { path, source }
        };
        let file = append(&metrics).map_err(failed(&metrics))?;
        // The file may contain steps after `done`, written by a killed process.
        let writer = if board.exists() {
            EventWriter::create_from(&board, done as u64 + 1)
        } else {
            EventWriter::create(&board)
        };
        let writer = writer.map_err(failed(&board))?;
        let folder = RunFolder::at(folder.path());
        Ok(Self { progress, folder, metrics: (metrics, Appender::new(file)), board: (board, writer) })
    }

    /// Recreates `metrics.jsonl` if it was deleted, and returns a message about it: whatever is written to a deleted
    /// file is lost.
    fn mend(&mut self, step: usize) -> Result<Option<String>, TrainError> {
        let (path, file) = &mut self.metrics;
        match fs::symlink_metadata(&*path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return Ok(None),
        }
        if !self.folder.is_there() {
            return Err(TrainError::FolderGone { path: self.folder.path().into(), step });
        }
        file.continue_in(append(path).map_err(|source| TrainError::Metrics { path: path.clone(), source })?);
        Ok(Some(format!("{} was deleted during the run: a new one begins with step {step}", path.display())))
    }
}

fn append(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().create(true).append(true))
}
