//! Starts a failed run again.
//!
//! ```text
//! supervisor ─ attempt 1 ──✗ 1 s ─ attempt 2 ─────────✗ 1 s ─ attempt 3 ─✗ 2 s ─ attempt 4 ── done
//!              steps 1-130         steps 101-370             steps 301-340      steps 301-1000
//! checkpoints      100               200    300                                     ...
//! ```
//!
//! An attempt is a process of its own, because nothing else survives everything: a thread that is stuck cannot be ended,
//! a GPU that has failed stays failed in its process, and the kernel kills whole processes. The supervisor only waits; it
//! holds no data and no device.

mod causes;
mod memory;
mod process;
mod rules;
mod start;

use crate::config::Config;
use crate::error::TrainError;
use crate::host::attempt::{self, Cause, Ended};
use crate::host::machine;
use crate::host::signals::{self, INTERRUPTED};
use crate::plan::memory_check;
use crate::run::folder::{RunFolder, config_in};
use crate::run::options::RunOptions;
use crate::terminal::to_stderr;
use checkpoint::{Checkpoint, CheckpointError, Folder};
use memory::Memory;
pub(crate) use process::Environment;
use process::{Attempt, BEGIN, End, Running};
use rules::{Failure, Next, Rules};
pub(crate) use start::{Start, Threads};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long the ranks of a process that has ended may live on.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Runs the arguments `args` of a run in attempts until one ends well, or until restarting makes no sense. Returns the
/// exit code of the last attempt.
pub(crate) fn supervise(
    config: &Config,
    options: &RunOptions,
    args: Vec<OsString>,
    start: &dyn Start,
) -> Result<ExitCode, TrainError> {
    let run = options.reserve()?;
    let _lock = RunFolder::at(&run).lock_supervisor()?;
    // The attempt of a supervisor that was killed may still be saving.
    if let Some(error) = in_use(&run) {
        return Err(error);
    }
    signals::note_requests();
    signals::note_pauses();
    let in_place = options.same_run().is_some() || options.again;
    let mut memory = Memory::new(config, &run, start)?;
    // What a killed supervisor has left.
    if let Some(memory) = memory.as_mut().filter(|_| in_place) {
        let recovered = memory.recover().map_err(|why| TrainError::NotRecovered { run: run.clone(), why })?;
        recovered.iter().for_each(|line| to_stderr(line));
    }
    let mut supervised = Supervised {
        config: config.clone(),
        memory,
        in_place,
        names_run: options.out.as_ref() == Some(&run),
        resume_command: start.resume_command(&run.display().to_string()),
        run,
        args,
        resumes: options.resume.is_some(),
    };
    attempt::remove(&supervised.folder()); // what a killed supervisor has left
    let stop = (!start.stops_by_signal()).then(|| supervised.folder().join(attempt::STOP));
    let running = Running::new(stop);
    let handler = running.clone();
    if let Err(error) = signals::handle(move || handler.signal()) {
        to_stderr(&format!("warning: Ctrl-C stops the supervisor only: {error}"));
    }
    let code =
        supervised.attempts(Rules::new(config.resilience.restarts, config.resilience.skip_non_finite), start, &running);
    if start.is_on_this_machine() {
        supervised.clean_checkpoints();
    }
    let is_needed = supervised.memory.take().is_some_and(|memory| memory.is_needed());
    if is_needed {
        supervised.say(
            "a newer checkpoint may still be in memory, where it stays: the next start in this folder recovers it",
        );
    }
    supervised.clean(is_needed);
    code
}

/// A supervised run.
struct Supervised<'a> {
    run: PathBuf,
    /// The configuration of the next attempt.
    config: Config,
    memory: Option<Memory<'a>>,
    /// Whether the run is one that existed before.
    in_place: bool,
    /// The command line.
    args: Vec<OsString>,
    /// Whether the command line resumes a checkpoint.
    resumes: bool,
    /// Whether it names the run's folder.
    names_run: bool,
    /// The command, to paste, that resumes the run.
    resume_command: String,
}

impl Supervised<'_> {
    fn attempts(&mut self, mut rules: Rules, start: &dyn Start, running: &Running) -> Result<ExitCode, TrainError> {
        let mut restarted = None;
        for number in 1.. {
            let (before, kills) = (written(&self.run), causes::oom_kills());
            self.make_folder()?;
            let environment = self.environment(number, restarted.as_ref(), rules.skipped());
            let args = self.arguments(restarted.take().is_some());
            let ended = match start.command(&self.config, &self.run, &environment) {
                Ok(_) if running.was_signalled() => {
                    self.say_stopped();
                    return Ok(ExitCode::from(INTERRUPTED));
                }
                Ok(program) => {
                    Attempt { program, args, environment, folder: self.folder(), begins_within: BEGIN }.run(running)?
                }
                Err(error) if number == 1 => return Err(error),
                // A machine may be about to start again.
                Err(error) => {
                    to_stderr(&format!("error: {error}"));
                    End::not_started(&error)
                }
            };
            // The code of mpirun says less than the run itself.
            match ended.result {
                Some(Ended::Well { stopped }) => {
                    self.memory.iter_mut().for_each(Memory::forget);
                    return Ok(if stopped { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS });
                }
                _ if running.was_signalled() => {
                    self.recover();
                    self.say_stopped();
                    return Ok(ExitCode::from(INTERRUPTED));
                }
                _ => {}
            }
            if !self.folder().is_dir() {
                let run = self.run.display();
                to_stderr(&format!("error: the folder {run} is gone, or what the supervisor keeps in it: no restart"));
                return Ok(ExitCode::FAILURE);
            }
            let (begun, cause, of_step, error) = match &ended.result {
                Some(Ended::Failed { begun, cause, step, error }) => (*begun, *cause, *step, error.replace('\n', "; ")),
                _ => {
                    let (cause, error) = causes::of(&ended, causes::oom_kills() > kills);
                    to_stderr(&format!("error: {error}"));
                    (ended.has_lived, cause, ended.without_memory, error)
                }
            };
            self.wait_for_ranks();
            self.recover();
            let set_aside = self.set_aside_if_damaged(&error);
            let newest = newest(&self.run);
            // Rank 0 may not have noted the last step when another rank in its process begins the next one.
            let step = of_step.unwrap_or(0).max(RunFolder::at(&self.run).last_step() + 1);
            self.log(&format!("step {step}: {error}"));
            let change = match self.smaller_batch(cause) {
                Ok(change) => change,
                Err(table) => {
                    self.give_up(&format!(
                        "step {step} does not fit into memory with one sequence at a time:\n{table}"
                    ));
                    return Ok(ExitCode::FAILURE);
                }
            };
            let (saved, non_finite) = (written(&self.run) != before, cause == Cause::NonFinite);
            // Machines may come back after a while.
            let changed = change.is_some() || cause == Cause::TooFewRanks || set_aside;
            let begun = begun || set_aside;
            let planned = change.is_some() && cause == Cause::NearlyFull;
            let failure = Failure { begun, step, saved, non_finite, changed, planned, error };
            match rules.after(&failure) {
                Next::Restart { number, of, wait, skip } => {
                    let skips = skip.map(|step| format!("step {step} will be skipped if it is not finite again"));
                    let from = match newest {
                        Some(path) => format!("from {}", path.display()),
                        None if self.resumes => "from where it began".into(),
                        None => "from the beginning".into(),
                    };
                    let changes: String = change.iter().chain(&skips).map(|change| format!("; {change}")).collect();
                    let which = number.map_or("restart".into(), |number| format!("restart {number} of {of}"));
                    self.say(&format!("{which} in {:.1} s, {from}{changes}", wait.as_secs_f64()));
                    let why = format!("{which}, after step {}: {}{changes}", step - 1, failure.error);
                    restarted = Some(why);
                    if running.sleep(wait) {
                        self.say_stopped();
                        return Ok(ExitCode::from(INTERRUPTED));
                    }
                    self.recover(); // if that was not possible before
                }
                Next::GiveUp(why) => {
                    why.iter().for_each(|why| self.give_up(&format!("{why}{}", self.how_to_resume())));
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        unreachable!("restarts end")
    }

    /// Says that a signal has ended the run, which has not said so itself.
    fn say_stopped(&self) {
        self.say(&format!("stopped by a signal, without another restart{}", self.how_to_resume()));
    }

    fn give_up(&self, why: &str) {
        self.say(&format!("error: {why}"));
    }

    /// Halves the micro-batch if memory ran out and the configuration asks for it, and says so. If it is one sequence,
    /// returns a table of what takes memory.
    fn smaller_batch(&mut self, cause: Cause) -> Result<Option<String>, String> {
        let is_of_memory = [Cause::OutOfMemory, Cause::NearlyFull].contains(&cause);
        if !is_of_memory || !self.config.resilience.dynamic_batch {
            return Ok(None);
        }
        let configured = self.config.micro_batch_size();
        let size = attempt::micro_batch(&self.folder()).unwrap_or(configured);
        if size == 1 {
            // The supervisor has not seen the data, which may tell the vocabulary.
            let known = config_in(&self.run).ok().filter(|config| config.model.vocab_size() > 0);
            let known = known.map(|config| Config { train: self.config.train.clone(), ..config });
            return Err(known.map_or(String::new(), |config| memory_check::table_of(&config)));
        }
        // On all ranks, it may be smaller than on fewer ones anyway.
        let smaller = (size / 2).min(configured);
        self.config.train.micro_batch_size = Some(smaller);
        Ok(Some(format!("train.micro_batch_size is {smaller} instead of {size}, with the same global batch")))
    }

    /// What the next attempt must know.
    fn environment(&mut self, number: usize, restarted: Option<&String>, skipped: &[u64]) -> Environment {
        let mut environment: Environment =
            vec![(attempt::FOLDER, self.folder().into()), (attempt::NUMBER, number.to_string().into())];
        environment.push((attempt::RESUME, self.resume_command.clone().into()));
        environment.extend(restarted.map(|why| (attempt::RESTARTED, why.into())));
        if let Some(memory) = &mut self.memory {
            environment.extend(memory.begin(number).map(|memory| (attempt::MEMORY, memory.into())));
        }
        let skipped: Vec<String> = skipped.iter().map(u64::to_string).collect();
        environment.extend((!skipped.is_empty()).then(|| (attempt::SKIPPED, skipped.join(",").into())));
        environment
    }

    /// The arguments of the next attempt.
    fn arguments(&self, is_restart: bool) -> Vec<OsString> {
        let mut args = self.args.clone();
        // The folder is another run's, or an older course of this one, until an attempt has taken it. A new run that begins
        // from another one does so until it has a checkpoint of its own.
        let is_taken = is_restart && attempt::has_taken_folder(&self.folder());
        let continues = self.in_place || !self.resumes || newest(&self.run).is_some();
        if is_taken && continues {
            args.retain(|arg| arg != "--partial");
            args.extend(["--resume", "auto"].map(OsString::from)); // the last option takes precedence
        } else if is_taken {
            let _ = fs::write(RunFolder::at(&self.run).metrics(), ""); // a run that has not made a step may be replaced
        }
        if let (Some(size), true) = (self.config.train.micro_batch_size, self.config.resilience.dynamic_batch) {
            args.push(format!("--set=train.micro_batch_size={size}").into());
        }
        if !self.names_run {
            args.extend(["--out".into(), self.run.clone().into_os_string()]);
        }
        args
    }

    /// Copies a newer checkpoint in memory to the disk.
    fn recover(&mut self) {
        let is_free = RunFolder::at(&self.run).is_there() && in_use(&self.run).is_none();
        let Some(memory) = self.memory.as_mut().filter(|_| is_free) else { return };
        match memory.recover() {
            Ok(line) => line.iter().for_each(|line| self.say(line)),
            Err(why) => self.say(&format!("warning: no checkpoint is recovered from memory: {why}")),
        }
    }

    /// Sets the newest checkpoint aside if a failure names it and it is damaged, and returns whether it has: processes of
    /// mpirun verify only the parts that they use, and would fail again. The only checkpoint stays.
    fn set_aside_if_damaged(&self, error: &str) -> bool {
        let folder = Folder::of_run(&self.run);
        let all = folder.list().unwrap_or_default();
        let [.., _, (step, path)] = &all[..] else { return false };
        if !error.contains(&*path.to_string_lossy()) {
            return false;
        }
        let verified = Checkpoint::open(path).and_then(|checkpoint| checkpoint.verify_all());
        let is_damaged = |error: &CheckpointError| match error {
            CheckpointError::Read { source, .. } => source.kind() == ErrorKind::NotFound,
            error => matches!(error, CheckpointError::Broken { .. }),
        };
        let Some(error) = verified.err().filter(is_damaged) else { return false };
        self.say(&format!("warning: {} is damaged and is set aside: {}", path.display(), error.problem()));
        let set_aside = folder.set_aside(step - 1).err();
        set_aside.iter().for_each(|error| self.say(&format!("warning: it cannot be set aside: {error}")));
        set_aside.is_none()
    }

    /// Waits until no rank holds the run's folder: those of an mpirun that was killed live a little longer, and may complete a
    /// checkpoint.
    fn wait_for_ranks(&self) {
        let started = Instant::now();
        while in_use(&self.run).is_some() && started.elapsed() < LONGEST_END {
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Where an attempt leaves its files for the supervisor.
    fn folder(&self) -> PathBuf {
        let folder = RunFolder::at(&self.run).supervisor();
        std::path::absolute(&folder).unwrap_or(folder) // a process on another machine may start elsewhere
    }

    /// Makes the folder for the attempt's files, empty but for what outlives an attempt.
    fn make_folder(&self) -> Result<(), TrainError> {
        let path = self.folder();
        fs::create_dir_all(&path).map_err(|source| TrainError::RunFolder { path: path.clone(), source })?;
        attempt::clear(&path);
        Ok(())
    }

    /// Writes a line for the user, and to the log.
    fn say(&self, line: &str) {
        to_stderr(line);
        self.log(line);
    }

    /// Writes a line with the time to `logs/supervisor.txt`. A log that cannot be written must not end a run.
    fn log(&self, line: &str) {
        let path = RunFolder::at(&self.run).logs().join("supervisor.txt");
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{} {}", machine::now(), line));
    }

    fn how_to_resume(&self) -> String {
        newest(&self.run).map_or(String::new(), |_| format!("; resume with `{}`", self.resume_command))
    }

    /// Completes or removes what the last process has left half-written or half-removed, as the next start would.
    fn clean_checkpoints(&self) {
        if !RunFolder::at(&self.run).is_there() {
            return; // no attempt has opened it, which leaves a lock
        }
        // The attempt may have failed because another process trains there.
        let Some(locked) = RunFolder::reopen(&self.run).ok().filter(|folder| folder.warning().is_none()) else {
            return;
        };
        locked.clean_checkpoints().iter().for_each(|(_, line)| self.say(line));
    }

    /// Removes what was needed between the processes, and a folder in which no run has begun. What the next supervisor must
    /// know of memory stays if that `is_needed`.
    fn clean(&self, is_needed: bool) {
        if !is_needed {
            attempt::remove(&self.folder());
        }
        RunFolder::at(&self.run).remove_supervisor_lock();
        let _ = fs::remove_dir(&self.run);
    }
}

/// The error if another process trains in the run's folder.
fn in_use(run: &Path) -> Option<TrainError> {
    let opened = RunFolder::at(run).is_there().then(|| RunFolder::reopen(run));
    opened.and_then(Result::err).filter(|error| matches!(error, TrainError::RunInUse { .. }))
}

/// The newest checkpoint of a run.
fn newest(run: &Path) -> Option<PathBuf> {
    Folder::of_run(run).latest().ok().flatten()
}

/// The newest checkpoint of a run, and when it was written: it may replace one of the same step.
fn written(run: &Path) -> Option<(PathBuf, SystemTime)> {
    let path = newest(run)?;
    let at = fs::metadata(path.join("index.json")).and_then(|index| index.modified());
    Some((path, at.unwrap_or(SystemTime::UNIX_EPOCH)))
}
