//! Resuming from a store: the checkpoint is downloaded into the folder of a run, which then continues there.

use super::{MARK, folder, reporting, steps};
use crate::error::TrainError;
use crate::format::{bytes, duration};
use crate::host::launch::number_among_several;
use crate::run::folder::{RunFolder, is_left_by_download};
use crate::terminal::to_stderr;
use checkpoint::{Checkpoint, CheckpointError, Folder, Index};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use store::{Bucket, StoreError};

/// Time between looks for a checkpoint that another process downloads.
const LOOK: Duration = Duration::from_millis(100);

/// The checkpoint that a URL names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Newest,
    Best,
    Step(u64),
}

/// The URL in the value of `--resume`, if it is one.
pub(crate) fn url(resume: &Path) -> Option<&str> {
    resume.to_str().filter(|text| store::is_url(text))
}

/// Downloads the checkpoint that `URL`, `URL@latest`, `URL@best` or `URL@STEP` names into the run folder `out`, or a new
/// one, and returns its folder `step-N` there. If the folder has it, downloads nothing. Of several processes the first
/// one downloads, and the others wait.
///
/// # Errors
/// If there is no such checkpoint, if it is not what was uploaded, or if the folder holds another run.
pub(crate) fn fetch(url: &str, out: Option<&Path>, dry_run: bool, quiet: bool) -> Result<PathBuf, TrainError> {
    if dry_run {
        let why = "--dry-run leaves nothing behind, and --resume URL downloads a checkpoint: leave one of them out";
        return Err(TrainError::Config(why.into()));
    }
    let (base, which) = split(url);
    let bucket = Bucket::open(base)?;
    let (text, index) = index(&bucket, which)?;
    let there = out.map(|run| Folder::of_run(run).step(index.step));
    let is_there = |path: &PathBuf| fs::read_to_string(path.join(MARK)).is_ok_and(|here| here == text);
    match (there, number_among_several()) {
        (Some(path), _) if is_there(&path) => return Ok(path),
        (None, Some(_)) => {
            return Err(TrainError::Config(format!(
                "--resume {url}: the ranks are processes, and one of them downloads the checkpoint for all: name a \
                 folder that they share with --out"
            )));
        }
        // If the first process fails, it ends this one too.
        (Some(path), Some(1..)) => {
            while !is_there(&path) {
                thread::sleep(LOOK);
            }
            return Ok(path);
        }
        _ => {}
    }
    let run = match out {
        Some(run) if is_left_by_download(run) => run.to_path_buf(),
        Some(run) => {
            RunFolder::expect_new(run)?;
            run.to_path_buf()
        }
        None => RunFolder::reserve(None, bucket.url().rsplit('/').next().unwrap_or("resumed"))?,
    };
    fs::create_dir_all(&run).map_err(|source| TrainError::RunFolder { path: run.clone(), source })?;
    let _lock = RunFolder::reopen(&run)?;
    let folder = Folder::of_run(&run);
    let partial = folder.partial(index.step);
    let downloaded = download(&bucket, &index, &text, &folder, quiet);
    downloaded.inspect_err(|_| {
        let leftover = if out.is_some() { &partial } else { &run }; // that folder is new, and nobody has named it
        let _ = fs::remove_dir_all(leftover);
    })
}

/// The URL of a run, and which of its checkpoints is meant.
fn split(url: &str) -> (&str, Which) {
    let which = |which: &str| match which {
        "latest" => Some(Which::Newest),
        "best" => Some(Which::Best),
        step => step.parse().ok().map(Which::Step),
    };
    let at = url.rsplit_once('@').and_then(|(base, at)| Some((base, which(at)?)));
    at.unwrap_or((url, Which::Newest))
}

/// The index of a checkpoint, as text and parsed.
fn index(bucket: &Bucket, which: Which) -> Result<(String, Index), TrainError> {
    let steps = steps(bucket)?;
    let not_there = |problem: String| TrainError::NotInStore { url: bucket.url().into(), problem };
    let Some(newest) = steps.last().copied() else {
        return Err(not_there("there is no complete checkpoint: give the URL of checkpoint.upload".into()));
    };
    let read = |step: u64| -> Result<(String, Index), TrainError> {
        let there = steps.iter().map(|step| format!("@{step}")).collect::<Vec<_>>().join(", ");
        let problem = |problem: String| not_there(format!("{problem}; there are {there}"));
        let name = format!("{}/{MARK}", folder(step));
        let text = bucket.read(&name)?.ok_or_else(|| problem(format!("there is no checkpoint of step {step}")))?;
        let broken = |why: &str| problem(format!("the checkpoint of step {step} cannot be used: {name} {why}"));
        let text = String::from_utf8(text).map_err(|_| broken("is no text"))?;
        let index = Index::from_json(&text, Path::new(&name)).map_err(|error| match error {
            CheckpointError::Broken { reason, .. } => broken(&reason),
            error => broken(&error.to_string()),
        })?;
        match index.step == step {
            true => Ok((text, index)),
            false => Err(broken(&format!("is of step {}", index.step))),
        }
    };
    match which {
        Which::Newest => read(newest),
        Which::Step(step) => read(step),
        Which::Best => match read(newest)?.1.best {
            Some(best) => read(best.step),
            None => {
                Err(not_there(format!("the checkpoint of step {newest} knows no best validation: leave @best out")))
            }
        },
    }
}

/// Downloads a checkpoint into `to`, verifies every byte, and gives it its name.
fn download(bucket: &Bucket, index: &Index, text: &str, to: &Folder, quiet: bool) -> Result<PathBuf, TrainError> {
    let (step, from, began) = (index.step, folder(index.step), Instant::now());
    let say = |line: String| {
        if !quiet {
            to_stderr(&line)
        }
    };
    let size = index.files.iter().map(|file| file.bytes).sum::<u64>() + index.table.bytes;
    let partial = to.partial(step);
    let write = |source| CheckpointError::Write { path: partial.clone(), source };
    let _ = fs::remove_dir_all(&partial); // left by an interrupted download
    fs::create_dir_all(&partial).map_err(write)?;
    say(format!("downloading {}/{from}, {}", bucket.url(), bytes(size as usize)));
    let again = |error: &StoreError, wait| {
        to_stderr(&format!("warning: the download failed and is tried again in {}: {error}", duration(wait)))
    };
    let names = index.file_names().filter(|name| *name != MARK);
    reporting(size, |line| say(line.into()), |got| bucket.download(&from, names, &partial, got, again))?;
    // Last, as in a store.
    let file = File::create_new(partial.join(MARK));
    file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all())).map_err(write)?;
    let verified = Checkpoint::open(&partial).and_then(|checkpoint| checkpoint.verify_all());
    verified.map_err(|error| match error {
        CheckpointError::Broken { path, reason } => TrainError::NotInStore {
            url: format!("{}/{from}", bucket.url()),
            problem: format!(
                "{} {reason}: take the checkpoint of another step, with @STEP",
                path.file_name().unwrap_or_default().display()
            ),
        },
        error => error.into(),
    })?;
    let path = to.complete(step)?;
    say(format!("downloaded {} in {}", path.display(), duration(began.elapsed())));
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_last_at_sign_names_a_checkpoint_only_if_it_can() {
        assert_eq!(split("s3://b/run"), ("s3://b/run", Which::Newest));
        assert_eq!(split("s3://b/run@latest"), ("s3://b/run", Which::Newest));
        assert_eq!(split("s3://b/run@best"), ("s3://b/run", Which::Best));
        assert_eq!(split("s3://b/run@12"), ("s3://b/run", Which::Step(12)));
        assert_eq!(split("s3://b/me@home/run"), ("s3://b/me@home/run", Which::Newest));
    }
}
