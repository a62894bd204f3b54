//! What a rank writes into the run's folder on the way: its log, and on rank 0 metrics and TensorBoard events.

use crate::metrics::{Metrics, StepMetrics};
use crate::trainer::TrainError;
use report::tensorboard::EventWriter;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Writes `logs/rank-N.txt`, and on rank 0 `metrics.jsonl` and events in `tb/`.
pub(crate) struct Recorder {
    run: PathBuf,
    log: File,
    rank_0: Option<(Metrics, EventWriter)>,
    started: Instant,
}

impl Recorder {
    /// In the folder of a run; a run that goes on appends.
    pub fn open(run: &Path, metrics: Option<File>, rank: usize) -> Result<Self, TrainError> {
        let logs = run.join("logs");
        let path = logs.join(format!("rank-{rank}.txt"));
        let open = || -> io::Result<_> {
            fs::create_dir_all(&logs)?;
            let log = OpenOptions::new().create(true).append(true).open(&path)?;
            let board = metrics.is_some().then(|| EventWriter::create(run.join("tb"))).transpose()?;
            Ok((log, metrics.map(Metrics).zip(board)))
        };
        let (log, rank_0) = open().map_err(|source| TrainError::Metrics { path: path.clone(), source })?;
        Ok(Self { run: run.into(), log, rank_0, started: Instant::now() })
    }

    /// Seconds since it was opened.
    pub fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// A line of `metrics.jsonl`.
    pub fn metrics(&mut self, line: &impl Serialize) -> Result<(), TrainError> {
        let path = self.run.join("metrics.jsonl");
        let write = |(metrics, _): &mut (Metrics, _)| metrics.write(line);
        self.rank_0.as_mut().map_or(Ok(()), write).map_err(|source| TrainError::Metrics { path, source })
    }

    /// Values of a step for TensorBoard, under torchtitan's tags where it has them.
    pub fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let path = self.run.join("tb");
        let write = |(_, board): &mut (_, EventWriter)| board.scalars(step as u64, values);
        self.rank_0.as_mut().map_or(Ok(()), write).map_err(|source| TrainError::Metrics { path, source })
    }

    /// A training step, everywhere.
    pub fn step(&mut self, m: &StepMetrics) -> Result<(), TrainError> {
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

    /// A line of the log. A log that cannot be written is no reason to end a run.
    pub fn log(&mut self, line: &str) {
        let elapsed = self.elapsed();
        let _ = self.log.write_all(format!("[{elapsed:9.2} s] {line}\n").as_bytes());
    }
}
