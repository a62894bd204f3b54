use crate::config::Config;
use crate::copies;
use crate::error::TrainError;
use crate::run_folder::{RunFolder, run_of};
use checkpoint::Folder;
use std::path::{Path, PathBuf};

/// Where a run comes from and where it goes.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// What it is called.
    pub name: String,
    /// Its folder; None: the first free `runs/NAME-NNN`, or where it goes on from a checkpoint, that one's run.
    pub out: Option<PathBuf>,
    /// Whether the folder is one of a run that ended before its first checkpoint, and that begins anew in it.
    pub again: bool,
    /// The checkpoint, a folder `step-N`, that it goes on from.
    pub resume: Option<PathBuf>,
    /// The newest checkpoint of the run that goes on, when it was looked for.
    pub newest: Option<PathBuf>,
    /// Whether parameters are taken of a checkpoint of another model, those that fit.
    pub partial: bool,
    /// Whether the configuration's tokenizer takes the place of the checkpoint's.
    pub new_tokenizer: bool,
    /// Whether a run is tried for which there is not enough memory.
    pub force: bool,
    /// Whether only warnings and what the run comes to are said of it.
    pub quiet: bool,
    /// Whether a few steps are made to see how long the run would take; nothing of it is kept.
    pub dry_run: bool,
}

impl Place {
    /// The folder of the run that goes on, if it does so in its own folder.
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

    /// A run's folder, which is this process's from here on. To open the data may have taken long: it must be as it was
    /// found, but for what a process that was killed has left.
    fn reopen(&self, run: &Path) -> Result<RunFolder, TrainError> {
        let folder = RunFolder::reopen(run)?;
        Folder::of_run(run).clean(&copies::are_same)?;
        match Folder::of_run(run).latest()? == self.newest {
            true => Ok(folder),
            false => Err(TrainError::WentOn { path: run.into() }),
        }
    }
}
