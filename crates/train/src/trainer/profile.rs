//! The times of a rank's operations in a few steps, as `train profile` reads them.

use super::Trainer;
use crate::error::TrainError;
use fsdp::Op;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Steps at the start that are not timed: they initialize and warm up.
const WARM_UP: usize = 2;

/// A rank's operations in some steps.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankProfile {
    pub rank: usize,
    pub stage: usize,
    pub steps: Vec<StepProfile>,
}

/// The operations of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepProfile {
    /// The step, from 1.
    pub step: usize,
    /// Seconds since 1970, by the clock of this rank's machine.
    pub started: f64,
    pub operations: Vec<OpProfile>,
}

/// An operation, with seconds since the start of the step.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OpProfile {
    pub op: Op,
    pub start: f64,
    pub end: f64,
}

impl RankProfile {
    /// The folder of a run's profiles.
    pub fn folder(run: &Path) -> PathBuf {
        run.join("profile")
    }

    /// Writes the profile to the run's folder.
    fn write(&self, run: &Path) -> io::Result<()> {
        let folder = Self::folder(run);
        fs::create_dir_all(&folder)?;
        let mut file = BufWriter::new(File::create(folder.join(format!("rank-{}.json", self.rank)))?);
        serde_json::to_writer(&mut file, self)?;
        file.flush()
    }
}

impl Trainer<'_> {
    /// Starts to time the operations of a step, counted from the start of this process, if they are wanted.
    pub(super) fn begin_profile(&mut self, steps_made: usize) {
        if self.is_profiled(steps_made) {
            self.fsdp.time_operations();
        }
    }

    /// Keeps the times of the step, and writes all of them after the last step that is timed.
    pub(super) fn end_profile(&mut self, steps_made: usize, step: usize, started: Instant) -> Result<(), TrainError> {
        if !self.is_profiled(steps_made) {
            return Ok(());
        }
        let since = |at: Instant| at.saturating_duration_since(started).as_secs_f64();
        let operations = self.fsdp.timed_operations().into_iter();
        let operations =
            operations.map(|timed| OpProfile { op: timed.op, start: since(timed.start), end: since(timed.end) });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let profile =
            StepProfile { step, started: now - started.elapsed().as_secs_f64(), operations: operations.collect() };
        self.profile.push(profile);
        if self.is_profiled(steps_made + 1) && step < self.job.config.train.steps {
            return Ok(());
        }
        let profile =
            RankProfile { rank: self.rank, stage: self.fsdp.stage().0, steps: std::mem::take(&mut self.profile) };
        let run = self.folder.path();
        let written = profile.write(run);
        written.map_err(|source| TrainError::RunFolder { path: RankProfile::folder(run), source })?;
        if self.rank == 0 {
            self.recorder.event(step, &format!("profiled {} steps: see `train profile`", profile.steps.len()))?;
        }
        Ok(())
    }

    fn is_profiled(&self, steps_made: usize) -> bool {
        (WARM_UP..WARM_UP + self.job.config.metrics.profile_steps).contains(&steps_made)
    }
}
