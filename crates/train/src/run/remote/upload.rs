//! Copies each complete checkpoint to a store while training continues. No failure to do so ends a run.

use super::{MARK, folder, steps};
use crate::config::Config;
use crate::error::TrainError;
use crate::format::{bytes, duration};
use crate::host::attempt;
use crate::run::folder::{RunFolder, config_in, run_of};
use crate::run::resume::Resume;
use crate::terminal::to_stderr;
use checkpoint::{Checkpoint, CheckpointError};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::{Bucket, Event, StoreError, Transfer, Uploader};

/// Interval of looks at uploads at the end of a run.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait before reporting a wait, and the longest interval between reports.
const TELL: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Opens the place of `checkpoint.upload`, if there is one, and tries to write there. A restart does not try: the place
/// could be written when the run began, and may be again.
///
/// # Errors
/// If the place cannot be written.
pub(crate) fn open(config: &Config) -> Result<Option<Bucket>, TrainError> {
    let Some(url) = &config.checkpoint.upload else { return Ok(None) };
    let bucket = Bucket::open(url).map_err(TrainError::Upload)?;
    if !is_restart() {
        bucket.probe().map_err(TrainError::Upload)?;
    }
    Ok(Some(bucket))
}

/// Whether this process continues a run that has begun under the same supervisor.
fn is_restart() -> bool {
    attempt::is_supervised() && attempt::number() > 1
}

/// The uploads of a run.
pub(crate) struct Uploads {
    uploader: Uploader,
    /// The checkpoint that the run continues from, if the place does not have it.
    first: Option<PathBuf>,
}

impl Uploads {
    /// Uploads to a place, which `is_given` anew or is the checkpoint's. Nothing is uploaded yet.
    ///
    /// # Errors
    /// If the place has checkpoints of another run, or later ones that may not be removed or are not this folder's, or if
    /// it does not answer.
    pub fn new(bucket: Bucket, resume: Option<&Resume>, config: &Config, is_given: bool) -> Result<Self, TrainError> {
        let there = match steps(&bucket) {
            Err(error) if is_restart() => {
                to_stderr(&format!("warning: {error}; uploads are tried nevertheless"));
                vec![]
            }
            there => there.map_err(TrainError::Upload)?,
        };
        let resume = resume.filter(|resume| resume.in_place);
        if let Some(newest) = there.last()
            && !is_restart()
            && !resume.is_some_and(|resume| is_of_run(&bucket, resume, config))
        {
            return Err(TrainError::UploadInUse { url: bucket.url().into(), newest: *newest });
        }
        // Of an earlier course of this run: it must not be taken for the newest.
        let done = resume.map_or(0, |resume| resume.index.step);
        let later: Vec<String> = there.iter().filter(|step| **step > done).map(|step| folder(*step)).collect();
        if let (Some(newest), Some(resume)) = (there.last().filter(|_| !later.is_empty() && !is_restart()), resume) {
            if !is_given && !has_trained(resume) {
                return Err(TrainError::UploadInUseLater { url: bucket.url().into(), step: done, newest: *newest });
            }
            bucket.probe_removal().map_err(|source| TrainError::UploadKept { step: done, source })?;
        }
        let first = resume.filter(|_| !there.contains(&done)).map(|resume| resume.path.clone());
        Ok(Self { uploader: Uploader::new(bucket, later), first })
    }

    /// Uploads the checkpoint that the run continues from, if it is missing, once the run's folder is this process's.
    pub fn begin(&self) {
        self.first.iter().for_each(|path| self.start(path));
    }

    /// Uploads a complete checkpoint, a folder `step-N`, which must stay while it is [`pending`](Self::pending).
    pub fn start(&self, path: &Path) {
        match transfer(path) {
            Ok(transfer) => self.uploader.start(transfer),
            Err(error) => to_stderr(&format!("warning: {} is not uploaded: {error}", path.display())),
        }
    }

    /// Steps of the checkpoints that are not uploaded yet.
    pub fn pending(&self) -> Vec<u64> {
        self.uploader.pending()
    }

    /// What has happened since the last call: steps, and lines for the user.
    pub fn lines(&self) -> Vec<(u64, String)> {
        self.uploader.events().into_iter().filter_map(line).collect()
    }

    /// Waits until all is uploaded or given up. `say` receives the lines; `was_stopped` says whether Ctrl-C was pressed
    /// before.
    pub fn finish(&self, say: impl Fn(&str), was_stopped: bool) {
        let (began, mut next) = (Instant::now(), TELL[0]);
        loop {
            let is_done = self.uploader.wait(LOOK);
            self.lines().iter().for_each(|(_, line)| say(line));
            if is_done {
                return;
            }
            if began.elapsed() > next
                && let Some((step, sent, of)) = self.uploader.under_way()
            {
                next = began.elapsed() + TELL[1].min(next);
                let (sent, of) = (bytes(sent as usize), bytes(of as usize));
                let leave = if was_stopped { "another Ctrl-C" } else { "Ctrl-C twice" };
                say(&format!(
                    "waiting for the upload of the checkpoint of step {step} to {}: {sent} of {of} sent; {leave} ends \
                     without it",
                    self.uploader.url()
                ));
            }
        }
    }
}

/// Whether a place has the checkpoints of the resumed run: it has uploaded there before, or it was downloaded from there.
fn is_of_run(bucket: &Bucket, resume: &Resume, config: &Config) -> bool {
    let before = config_in(&resume.path).ok().and_then(|config| config.checkpoint.upload);
    let is_the_same = || {
        let there = bucket.read(&format!("{}/{MARK}", folder(resume.index.step))).ok().flatten();
        there.is_some_and(|there| fs::read(resume.path.join(MARK)).is_ok_and(|here| here == there))
    };
    before == config.checkpoint.upload || is_the_same()
}

/// Whether steps have been made in the folder of a run. If not, its checkpoint was downloaded, or copied there.
fn has_trained(resume: &Resume) -> bool {
    run_of(&resume.path).is_some_and(|run| RunFolder::at(run).last_step() > 0)
}

/// What is to be copied of a checkpoint.
fn transfer(path: &Path) -> Result<Transfer, CheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    let index = checkpoint.index();
    let names = index.file_names().map(String::from).collect();
    Ok(Transfer { number: index.step, folder: path.into(), names, to: folder(index.step) })
}

/// An event as a line.
fn line(event: Event) -> Option<(u64, String)> {
    Some(match event {
        Event::Uploaded { bytes: 0, .. } => return None, // it was there
        Event::Uploaded { number, url, bytes: sent, took } => {
            (number, format!("uploaded {url}, {} in {}", bytes(sent as usize), duration(took)))
        }
        Event::Failed { number, error, wait } => (
            number,
            format!(
                "warning: the upload of the checkpoint of step {number} failed and is tried again in {}: {error}",
                duration(wait)
            ),
        ),
        Event::GivenUp { number, url, error } => {
            // A file that cannot be read is not tried again.
            let after = if matches!(error, StoreError::File { .. }) { "" } else { ", after several attempts" };
            (number, format!("warning: the checkpoint of step {number} is not uploaded to {url}{after}: {error}"))
        }
        Event::Overtaken { number, url } => (
            number,
            format!(
                "warning: the checkpoint of step {number} is not uploaded to {url}, because uploads take longer than the \
                 time between checkpoints: save less often (checkpoint.every)"
            ),
        ),
        Event::SetAside { url } => (0, format!("a checkpoint of later steps no longer counts: {url}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn an_upload_that_was_not_tried_again_does_not_say_so() {
        let given_up = |error| line(Event::GivenUp { number: 7, url: "s3://b/x".into(), error }).unwrap().1;
        let missing = StoreError::Missing { url: "s3://b/x/a".into() };
        let begin = "warning: the checkpoint of step 7 is not uploaded to s3://b/x";
        assert!(given_up(missing).starts_with(&format!("{begin}, after several attempts: s3://b/x/a is not there")));
        let file = StoreError::File { what: "read", path: "a".into(), source: io::ErrorKind::NotFound.into() };
        assert!(given_up(file).starts_with(&format!("{begin}: cannot read a: ")));
    }
}
