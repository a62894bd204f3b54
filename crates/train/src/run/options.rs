//! What a run needs beyond its configuration: where it starts from and where it writes.

use crate::config::Config;
use crate::error::TrainError;
use crate::run::copies;
use crate::run::folder::{RunFolder, run_of};
use checkpoint::Folder;
use std::path::{Path, PathBuf};

/// What a run needs beyond its configuration.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Name of the run.
    pub name: String,
    /// The run folder. `None` takes the folder of the resumed checkpoint's run, or the first free `runs/NAME-NNN`.
    pub out: Option<PathBuf>,
    /// Whether to restart in the folder of a run that ended before its first checkpoint.
    pub again: bool,
    /// The checkpoint to resume from, a folder `step-N`.
    pub resume: Option<PathBuf>,
    /// Lines about newer checkpoints than that, which are damaged.
    pub passed_over: Vec<String>,
    /// The newest checkpoint of the resumed run at the time it was looked up.
    pub newest: Option<PathBuf>,
    /// Whether to load only the matching parameters, from a checkpoint of a different model.
    pub partial: bool,
    /// Whether the configuration's tokenizer replaces the checkpoint's.
    pub new_tokenizer: bool,
    /// Whether `checkpoint.upload` is given anew, and not only the checkpoint's.
    pub new_upload: bool,
    /// Whether to start a run that exceeds the available memory.
    pub force: bool,
    /// Whether to print only warnings and the final result.
    pub quiet: bool,
    /// Whether to make only a few steps to measure the time, and keep nothing.
    pub dry_run: bool,
}

impl RunOptions {
    /// The folder of the resumed run, if the new run continues in it.
    pub(crate) fn same_run(&self) -> Option<&Path> {
        let run = run_of(self.resume.as_deref()?)?;
        let same = |out: &PathBuf| out.canonicalize().ok().is_some_and(|out| run.canonicalize().ok() == Some(out));
        self.out.as_ref().is_none_or(same).then_some(run)
    }

    pub(crate) fn folder(&self, config: &Config) -> Result<RunFolder, TrainError> {
        let folder = match (self.same_run(), &self.out) {
            (Some(run), _) => self.reopen(run)?,
            (None, Some(run)) if self.again => {
                let folder = self.reopen(run)?;
                folder.go_on_after(0, config)?;
                folder
            }
            (None, out) => RunFolder::create(out.as_deref(), &self.name, config)?,
        };
        Ok(folder)
    }

    /// The run's folder, before the run begins.
    pub(crate) fn reserve(&self) -> Result<PathBuf, TrainError> {
        match (self.same_run(), &self.out) {
            (Some(run), _) => Ok(run.into()),
            (None, Some(run)) if self.again => Ok(run.clone()),
            (None, out) => RunFolder::reserve(out.as_deref(), &self.name),
        }
    }

    /// Opens and locks a run's folder for this process. Opening the data may have taken long, so the folder must be
    /// unchanged since it was looked up, except for leftovers of a killed process.
    fn reopen(&self, run: &Path) -> Result<RunFolder, TrainError> {
        let folder = RunFolder::reopen(run)?;
        Folder::of_run(run).clean(&copies::are_same)?;
        match Folder::of_run(run).latest()? == self.newest {
            true => Ok(folder),
            false => Err(TrainError::WentOn { path: run.into() }),
        }
    }
}
