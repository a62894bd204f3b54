//! The flight recorders of a run: each rank's last calls, written to `logs/flight/` when something is wrong.
//!
//! ```text
//! logs/flight/attempt-2-after-step-120/rank-0.json     of the second attempt, which resumed after step 120
//!                                      rank-1.json
//! ```

use crate::atomic_write::{read_regular, write_whole};
use crate::error::TrainError;
use crate::host::attempt::{self, Cause};
use crate::host::signals;
use crate::program;
use crate::run::folder::RunFolder;
use crate::terminal::to_stderr;
use comm::flight::{Finding, FlightRecord, FlightRecorder, diagnose};
use comm::{CommError, RankFailure};
use fsdp::FsdpError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between looks at the recorders.
const LOOK: Duration = Duration::from_millis(100);
/// Time between records of a rank that stays silent: its process may be killed at any moment.
const AGAIN: Duration = Duration::from_secs(1);
/// A supervised process whose ranks are silent for this many timeouts of a call, and [`MORE`], is ended. Ranks that wait
/// in a call give up after one timeout, and are told of the failure of another one after two.
const DEAD: u32 = 3;
const MORE: Duration = Duration::from_secs(10);
/// Before the first step, ranks may be silent for this many times as long: they read a checkpoint.
const AT_START: u32 = 10;

/// The flight recorders of this process's ranks.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    recorders: Vec<Arc<FlightRecorder>>,
    /// Where the records are written; known once a rank has the run's folder.
    folder: Option<PathBuf>,
    /// Whether a rank has begun a step.
    in_steps: bool,
    /// Whether a rank has returned: what the others do then may take long.
    has_returned: bool,
}

/// Looks after the recorders until it is dropped.
pub(crate) struct Watch(Arc<AtomicBool>);

impl Flights {
    /// Adds the recorder of a rank. The run has made `done` steps.
    pub fn add(&self, rank: usize, recorder: Arc<FlightRecorder>, folder: &RunFolder, done: usize) {
        let mut state = self.state();
        let path = folder.flights(attempt::number(), done);
        if rank == 0 {
            let _ = fs::remove_dir_all(&path); // of an earlier start from the same step
        }
        state.recorders.push(recorder);
        state.folder = Some(path);
    }

    /// Notes that a rank begins a step.
    pub fn begin_step(&self) {
        self.state().in_steps = true;
    }

    /// Notes that a rank has made all of its steps, or failed.
    pub fn end(&self) {
        self.state().has_returned = true;
    }

    /// Writes what the recorders know, and returns the folder and the records; nothing before a rank has begun, and
    /// nothing in a run's folder that is gone.
    pub fn write(&self) -> Option<(PathBuf, Vec<FlightRecord>)> {
        let state = self.state();
        let (folder, recorders) = (state.folder.clone()?, state.recorders.clone());
        if !RunFolder::at(run_of(&folder)).is_there() {
            return None;
        }
        drop(state); // ranks need not wait for the disk
        let records: Vec<FlightRecord> = recorders.iter().map(|recorder| recorder.record()).collect();
        let write = |record: &FlightRecord| {
            let text = serde_json::to_string(record).map_err(io::Error::other)?;
            write_whole(&folder.join(format!("rank-{}.json", record.rank)), |file| fs::write(file, text))
        };
        // Where not even this can be written, the error of the run says why.
        let _ = fs::create_dir_all(&folder).and_then(|()| records.iter().try_for_each(write));
        Some((folder, records))
    }

    /// Writes the records after a failure, and says what they tell of it; only ranks that wait for others have something
    /// to tell.
    pub fn explain(&self, failure: &RankFailure<TrainError>) -> Option<String> {
        let (folder, records) = self.write()?;
        if !is_wait(failure) {
            return None;
        }
        let whole = records.first().is_some_and(|record| record.world_size == records.len());
        let is_cause = |finding: &&Finding| !matches!(finding, Finding::Failed { .. } | Finding::Healthy);
        let findings = diagnose(&records).findings;
        if let Some(cause) = findings.iter().find(is_cause).filter(|_| whole) {
            return Some(format!("likely cause: {cause}"));
        }
        let doctor = program::command(&["doctor", &run_of(&folder).display().to_string()]);
        Some(format!("the last calls of each rank are recorded: `{doctor}` compares them"))
    }

    /// Writes the records when SIGUSR1 asks for them. Once a rank has been silent for half the timeout of a call, it
    /// writes them every second, since the others wait for that rank and will end this process. Ends a supervised process
    /// that is stuck outside of any call.
    pub fn watch(self: &Arc<Self>, call: Duration, rank_0: bool) -> Watch {
        let (flights, done) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let watch = Watch(done.clone());
        thread::spawn(move || {
            let mut last_written = None::<Instant>;
            while !done.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                if signals::take_request()
                    && let Some((folder, _)) = flights.write()
                    && rank_0
                {
                    to_stderr(&format!("the ranks' last calls are in {}", folder.display()));
                }
                let Some((longest, shortest, in_steps)) = flights.silence() else { continue };
                if longest > call / 2 && last_written.is_none_or(|last| last.elapsed() > AGAIN) {
                    flights.write();
                    last_written = Some(Instant::now());
                }
                let dead = call.saturating_mul(if in_steps { DEAD } else { DEAD * AT_START }).saturating_add(MORE);
                if shortest > dead && !done.load(Ordering::Relaxed) && attempt::is_supervised() {
                    end_process(&flights, &TrainError::Silent { seconds: shortest.as_secs() });
                }
            }
        });
        watch
    }

    /// The longest and the shortest time since the last heartbeat of a rank of this process, and whether steps are made;
    /// `None` before the first rank has begun.
    fn silence(&self) -> Option<(Duration, Duration, bool)> {
        let state = self.state();
        if state.has_returned {
            return None;
        }
        let silence = || state.recorders.iter().map(|recorder| recorder.silence());
        Some((silence().max()?, silence().min()?, state.in_steps))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a process that is stuck. Whatever it is stuck in, such as the disk or the terminal, must not hold this up.
fn end_process(flights: &Arc<Flights>, error: &TrainError) -> ! {
    let (flights, error) = (flights.clone(), error.to_string());
    let last_words = thread::spawn(move || {
        attempt::failed(&error, Cause::Other, None);
        flights.write();
        to_stderr(&format!("error: {error}"));
    });
    let began = Instant::now();
    while !last_words.is_finished() && began.elapsed() < MORE {
        thread::sleep(LOOK);
    }
    // SAFETY: it ends the process without running anything more of it.
    unsafe { libc::_exit(1) }
}

/// The run of a folder `RUN/logs/flight/attempt-A-after-step-N`.
fn run_of(folder: &Path) -> &Path {
    folder.ancestors().nth(3).unwrap_or(folder)
}

/// Whether a rank has failed because it waited for others in vain.
fn is_wait(failure: &RankFailure<TrainError>) -> bool {
    match failure {
        RankFailure::Failed { source: TrainError::Fsdp(FsdpError::Comm(error)), .. } => {
            matches!(error, CommError::Timeout { .. } | CommError::Mismatch { .. })
        }
        RankFailure::Stuck { .. } => true,
        _ => false,
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The records of the last failure or request in a run's folder, in the order of ranks, and the errors of files that
/// cannot be read.
pub(crate) fn last_records(run: &RunFolder) -> (Vec<FlightRecord>, Vec<TrainError>) {
    let files = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let (mut newest, mut errors) = (vec![], vec![]);
    for folder in files(&run.all_flights()) {
        let mut records = vec![];
        for path in files(&folder).into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "json")) {
            let read = read_regular(&path);
            let record =
                read.and_then(|bytes| serde_json::from_slice::<FlightRecord>(&bytes).map_err(io::Error::other));
            match record {
                Ok(record) => records.push(record),
                Err(source) => errors.push(TrainError::FlightRecord { path, source }),
            }
        }
        if written(&records) > written(&newest) {
            newest = records;
        }
    }
    newest.sort_by_key(|record| record.rank);
    (newest, errors)
}

/// When the last of the records was taken.
pub(crate) fn written(records: &[FlightRecord]) -> f64 {
    records.iter().map(|record| record.written).fold(f64::NEG_INFINITY, f64::max)
}
