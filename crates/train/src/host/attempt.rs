//! What a supervised process tells its supervisor: a heartbeat each second, and how it has ended.
//!
//! An exit code is not enough. With a lost host, `mpirun` of Open MPI 5.0 exits with 0; and a code does not say whether a
//! run had begun.

use crate::allocator::note_failure;
use crate::atomic_write::write_whole;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

/// The environment variable with the folder of the supervisor, where an attempt leaves its files.
pub(crate) const FOLDER: &str = "KILN_SUPERVISOR";
/// The environment variable with the folder of checkpoints in memory, if there are any.
pub(crate) const MEMORY: &str = "KILN_MEMORY";
/// The environment variable with the number of the attempt, from 1.
pub(crate) const NUMBER: &str = "KILN_ATTEMPT";
/// The environment variable with the steps that are skipped if they are not finite, separated by commas.
pub(crate) const SKIPPED: &str = "KILN_SKIP_STEPS";
/// The environment variable with the command that resumes the run.
pub(crate) const RESUME: &str = "KILN_RESUME";
/// The environment variable that says why this attempt was started, unless it is the first.
pub(crate) const RESTARTED: &str = "KILN_RESTARTED";

/// The file with the result.
const RESULT: &str = "result.json";
/// A file of this many bytes, which becomes the result if the disk is full.
const SPARE: &str = "spare";
const SPARE_BYTES: usize = 4096;
/// The file whose contents change while the process lives.
const ALIVE: &str = "alive";
/// The file that is there if an allocation has failed, with the step.
const NO_MEMORY: &str = "no-memory";
/// The file that asks the ranks to stop after a step.
pub(crate) const STOP: &str = "stop";
/// The file that is there once the run's folder is that of this run.
const TAKEN: &str = "taken";
/// The file with the number of devices of the first attempt.
const DEVICES: &str = "devices";
/// The file with the size of the attempt's micro-batches, which may differ from the configured one on fewer ranks.
const MICRO_BATCH: &str = "micro-batch";
/// The file with the attempt's folder in memory. It outlives a supervisor that is killed.
const IN_MEMORY: &str = "memory";
/// Time between heartbeats.
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// Whether the ranks have been started.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// The last step that a rank of this process has begun, from 1; 0 before.
static STEP: AtomicU64 = AtomicU64::new(0);

/// How an attempt has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    /// It has made all of its steps, or was stopped.
    Well {
        /// Whether it was stopped.
        stopped: bool,
    },
    /// It failed.
    Failed {
        /// Whether the ranks had been started: what fails before is an invalid configuration or missing data.
        begun: bool,
        cause: Cause,
        /// The step, if the error is about one.
        step: Option<u64>,
        error: String,
    },
}

/// A cause of a failure about which a supervisor can do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// A step's loss or gradient was not finite.
    NonFinite,
    /// A device had too little memory.
    OutOfMemory,
    /// The ranks have saved the run, to go on with smaller micro-batches.
    NearlyFull,
    /// Devices or machines are missing.
    TooFewRanks,
    /// Anything else.
    Other,
}

/// Whether a supervisor has started this process. A variable that has outlived its supervisor does not count.
pub(crate) fn is_supervised() -> bool {
    folder().is_some_and(|folder| folder.is_dir())
}

/// The number of this attempt, from 1; 1 without a supervisor.
pub(crate) fn number() -> usize {
    env::var(NUMBER).ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// The folder of checkpoints in memory.
pub(crate) fn memory() -> Option<PathBuf> {
    env::var_os(MEMORY).map(PathBuf::from)
}

/// The command, to paste, that resumes the run as the supervisor has started it.
pub(crate) fn resume_command() -> Option<String> {
    env::var(RESUME).ok().filter(|_| is_supervised())
}

/// Why the supervisor has started the run again.
pub(crate) fn why_restarted() -> Option<String> {
    env::var(RESTARTED).ok()
}

/// Starts the heartbeat.
pub(crate) fn start_heartbeat() {
    let Some(folder) = folder() else { return };
    note_failure(&folder.join(NO_MEMORY), &STEP);
    thread::spawn(move || {
        for beat in 0_u64.. {
            let _ = fs::write(folder.join(ALIVE), beat.to_string());
            thread::sleep(BEAT);
        }
    });
}

/// Notes that the ranks are started, with micro-batches of this size. From now on, the supervisor may stop the run after a
/// step.
pub(crate) fn begin(stop: &Arc<AtomicBool>, micro_batch: usize) {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    let (Some(folder), stop) = (folder(), stop.clone()) else { return };
    let _ = fs::write(folder.join(MICRO_BATCH), micro_batch.to_string());
    thread::spawn(move || {
        while !folder.join(STOP).exists() {
            thread::sleep(BEAT / 5);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Notes that a rank begins a step, from 1.
pub(crate) fn begin_step(step: usize) {
    STEP.fetch_max(step as u64, Ordering::Relaxed);
}

/// Notes that the run's folder is that of this run: before, a restart must begin as the first attempt did. Without a
/// supervisor, what the last one has left in memory belongs to a course of the run that has ended; `of_run` is its folder.
pub(crate) fn take_folder(of_run: &Path) {
    let _ = match folder() {
        Some(folder) => fs::write(folder.join(TAKEN), ""),
        None => fs::remove_file(of_run.join(IN_MEMORY)),
    };
}

/// Whether an attempt has taken the run's folder.
pub(crate) fn has_taken_folder(folder: &Path) -> bool {
    folder.join(TAKEN).exists()
}

/// Returns how many devices the first attempt had, given how many this one has; `here` without a supervisor.
pub(crate) fn devices_at_first(here: usize) -> usize {
    let Some(path) = folder().map(|folder| folder.join(DEVICES)) else { return here };
    let before = fs::read_to_string(&path).ok().and_then(|text| text.parse().ok());
    before.unwrap_or_else(|| {
        let _ = fs::write(path, here.to_string());
        here
    })
}

/// Notes that the run has made all of its steps, or was stopped.
pub(crate) fn ended_well(stopped: bool) {
    write(&Ended::Well { stopped });
}

/// Notes that the run has failed: in the last step that was begun, if the error is not about another one.
pub(crate) fn failed(error: &str, cause: Cause, step: Option<u64>) {
    let step = step.or(Some(STEP.load(Ordering::Relaxed)).filter(|step| *step > 0));
    write(&Ended::Failed { begun: HAS_BEGUN.load(Ordering::Relaxed), cause, step, error: error.into() });
}

/// Whether a step is skipped if its loss or gradient is not finite.
pub(crate) fn skips(step: usize) -> bool {
    let steps = env::var(SKIPPED).unwrap_or_default();
    steps.split(',').any(|skipped| skipped.parse() == Ok(step))
}

/// The step in which an allocation has failed, 0 before the first one; `None` if none has.
pub(crate) fn step_without_memory(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join(NO_MEMORY)).ok()?;
    Some(text.parse().unwrap_or(0)) // a full disk takes no number
}

/// The first process to fail says why.
fn write(ended: &Ended) {
    if let Some(folder) = folder().filter(|folder| !folder.join(RESULT).exists()) {
        write_to(&folder, ended, |path, text| write_whole(path, |file| fs::write(file, text)));
    }
}

/// Writes the result by `write`; if the disk is full, over the bytes of the spare file.
fn write_to(folder: &Path, ended: &Ended, write: impl FnOnce(&Path, &[u8]) -> io::Result<()>) {
    let text_of = |ended: &Ended| serde_json::to_vec(ended).expect("it has plain fields");
    let (mut text, path) = (text_of(ended), folder.join(RESULT));
    if write(&path, &text).is_ok() {
        return;
    }
    let mut ended = ended.clone();
    if let Ended::Failed { error, .. } = &mut ended
        && text.len() > SPARE_BYTES
    {
        *error = error.chars().take(SPARE_BYTES / 8).collect(); // JSON has at most 6 bytes of each
        text = text_of(&ended);
    }
    let spare = folder.join(SPARE);
    let written = OpenOptions::new().write(true).open(&spare).and_then(|mut file| {
        file.write_all(&text)?;
        file.set_len(text.len() as u64)
    });
    let _ = written.and_then(|()| fs::rename(&spare, &path));
}

fn folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

/// Reads how an attempt has ended; `None` if it was killed.
pub(crate) fn ended(folder: &Path) -> Option<Ended> {
    serde_json::from_slice(&fs::read(folder.join(RESULT)).ok()?).ok()
}

/// A heartbeat, which differs from the one before: a number, and the time of the write, because a full disk takes no
/// number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heartbeat(SystemTime, Vec<u8>);

/// The last heartbeat; `None` before the first.
pub(crate) fn heartbeat(folder: &Path) -> Option<Heartbeat> {
    let path = folder.join(ALIVE);
    Some(Heartbeat(fs::metadata(&path).and_then(|found| found.modified()).ok()?, fs::read(path).ok()?))
}

/// Removes what an attempt has said, and keeps room for what the next one will say.
pub(crate) fn clear(folder: &Path) {
    [RESULT, ALIVE, NO_MEMORY, STOP, MICRO_BATCH].iter().for_each(|name| drop(fs::remove_file(folder.join(name))));
    let spare = folder.join(SPARE);
    if !fs::metadata(&spare).is_ok_and(|found| found.len() == SPARE_BYTES as u64) {
        let _ = fs::write(&spare, [b' '; SPARE_BYTES]);
    }
}

/// The size of the attempt's micro-batches; `None` if its ranks have not been started.
pub(crate) fn micro_batch(folder: &Path) -> Option<usize> {
    fs::read_to_string(folder.join(MICRO_BATCH)).ok()?.parse().ok()
}

/// Notes which folder in memory the attempt uses.
pub(crate) fn note_memory(folder: &Path, memory: &Path) -> io::Result<()> {
    write_whole(&folder.join(IN_MEMORY), |file| fs::write(file, memory.as_os_str().as_encoded_bytes()))
}

/// The folder in memory of the last attempt, if it had one.
pub(crate) fn last_memory(folder: &Path) -> Option<PathBuf> {
    fs::read(folder.join(IN_MEMORY)).ok().map(|path| PathBuf::from(OsString::from_vec(path)))
}

/// Removes the folder of a supervisor.
pub(crate) fn remove(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_has_room_for_why_a_run_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let full = |_: &Path, _: &[u8]| Err(io::ErrorKind::StorageFull.into());
        for length in [3, 10_000] {
            clear(folder.path());
            let error = "\n".repeat(length);
            let failed = Ended::Failed { begun: true, cause: Cause::Other, step: Some(5), error };
            write_to(folder.path(), &failed, full);
            let Some(Ended::Failed { step: Some(5), error, .. }) = ended(folder.path()) else { panic!("{length}") };
            assert_eq!(error.len(), length.min(SPARE_BYTES / 8));
        }
    }
}
