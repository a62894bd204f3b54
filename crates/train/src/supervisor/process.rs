//! The process of an attempt.

use crate::error::TrainError;
use crate::host::attempt::{self, Ended, Heartbeat};
use crate::host::signals;
use crate::terminal::to_stderr;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between looks at the process; its files are looked at once per heartbeat.
const LOOK: Duration = Duration::from_millis(20);
/// A process without a heartbeat for this long is stopped, or its machine swaps.
const DEAD: Duration = Duration::from_secs(60);
/// A process that has had no heartbeat this long after its start will have none. mpirun may have to reach hundreds of
/// machines first, and a program may lie on a slow disk.
pub(super) const BEGIN: Duration = Duration::from_secs(300);
/// A longer time between two looks at its files counts as this long: the supervisor itself may have been stopped, or have
/// waited for the disk.
const LONG_LOOK: Duration = Duration::from_secs(2);
/// A process that has said how it ended, and has not ended after this time, is stuck in its exit; mpirun waits a minute
/// for a machine that is cut off.
const EXIT: Duration = Duration::from_secs(20);

/// The process to start.
pub(super) struct Attempt {
    /// The program, and what precedes the arguments.
    pub program: Vec<OsString>,
    pub args: Vec<OsString>,
    /// What it must know.
    pub environment: Environment,
    /// Where it leaves its files for the supervisor.
    pub folder: PathBuf,
    /// Time until its first heartbeat.
    pub begins_within: Duration,
}

/// The environment variables of an attempt.
pub(crate) type Environment = Vec<(&'static str, OsString)>;

/// How the process has ended.
pub(super) struct End {
    /// Its exit code; `None` if a signal has ended it.
    pub code: Option<u8>,
    pub signal: Option<i32>,
    /// Why the supervisor has killed it, if it has not said how it ended.
    pub killed: Option<Killed>,
    /// The step of a failed allocation after which it has aborted, 0 before the first step. An allocation that fails where
    /// the program can do without leaves its note too.
    pub without_memory: Option<u64>,
    /// Whether it has had a heartbeat, or was alive to be killed; mpirun may have refused its options.
    pub has_lived: bool,
    /// What it says itself.
    pub result: Option<Ended>,
}

/// Why a supervisor kills a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Killed {
    /// It had no first heartbeat within this time.
    NotBegun(Duration),
    /// It had no heartbeat any more.
    Silent,
}

impl End {
    /// Whether SIGKILL has ended it, or a process of its own, and the supervisor has not sent it.
    pub fn was_killed(&self) -> bool {
        self.killed.is_none() && (self.signal == Some(libc::SIGKILL) || self.code == Some(128 + libc::SIGKILL as u8))
    }

    /// Of a process that could not be started.
    pub fn not_started(error: &TrainError) -> Self {
        let (cause, step) = error.cause();
        let result = Some(Ended::Failed { begun: false, cause, step, error: error.to_string() });
        Self { code: None, signal: None, killed: None, without_memory: None, has_lived: false, result }
    }
}

/// The process that runs now, and the signals so far.
#[derive(Clone)]
pub(super) struct Running(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The process group.
    group: Option<i32>,
    signals: usize,
    /// When the last one came.
    last: Option<Instant>,
    /// The file that asks the process to stop after its step, if a signal would not let it.
    stop: Option<PathBuf>,
}

impl Running {
    /// `stop` is the file that asks a process to stop if a signal would end it at once, as with mpirun.
    pub fn new(stop: Option<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new(State { stop, ..State::default() })))
    }

    /// Passes on a signal: the process stops after its step, at the second one at once, and at the third one it is killed.
    pub fn signal(&self) {
        let mut state = self.state();
        if state.last.is_some_and(|last| last.elapsed() < signals::SAME) {
            return;
        }
        state.last = Some(Instant::now());
        state.signals += 1;
        state.pass_on();
    }

    pub fn was_signalled(&self) -> bool {
        self.state().signals > 0
    }

    /// Sleeps; returns early, and true, after a signal.
    pub fn sleep(&self, duration: Duration) -> bool {
        let started = Instant::now();
        while !self.was_signalled() && started.elapsed() < duration {
            signals::pause_if_asked(|| {}, || {});
            thread::sleep(LOOK);
        }
        self.was_signalled()
    }

    /// Sets the process group, which also gets a signal that came before.
    fn set(&self, group: Option<i32>) {
        let mut state = self.state();
        state.group = group;
        if state.signals > 0 {
            state.pass_on();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pass_on(&self) {
        let Some(group) = self.group else { return };
        match (self.signals, &self.stop) {
            (1, Some(file)) => {
                to_stderr(&format!("\n{}", signals::STOPPING));
                let _ = fs::write(file, "");
            }
            (1 | 2, _) => send(group, libc::SIGTERM),
            _ => send(group, libc::SIGKILL),
        }
    }
}

impl Attempt {
    /// Starts the process and waits for its end.
    pub fn run(self, running: &Running) -> Result<End, TrainError> {
        let failed = |source| TrainError::Supervisor { what: "start the program", source };
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).args(&self.args).envs(self.environment);
        // In a process group of its own, so that the supervisor passes each signal on once.
        command.process_group(0);
        if self.program.len() == 1 {
            command.arg0(env::args_os().next().unwrap_or_default()); // for the commands in messages
        }
        end_with_parent(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let group = child.id() as i32;
        running.set(Some(group));
        let (mut vitals, mut killed) = (Vitals::new(), None);
        while !has_ended(&child).map_err(failed)? {
            if signals::take_request() {
                send(group, libc::SIGUSR1);
            }
            signals::pause_if_asked(|| send(group, libc::SIGTSTP), || send(group, libc::SIGCONT));
            if vitals.looked.elapsed() >= attempt::BEAT {
                vitals.look(&self.folder);
                killed = killed.or(vitals.failing(self.begins_within));
                if killed.is_some() || vitals.exiting > EXIT {
                    send(group, libc::SIGKILL);
                }
            }
            thread::sleep(LOOK);
        }
        running.set(None); // before its number may be another group's
        let status = child.wait().map_err(failed)?;
        let code = status.code().map(|code| u8::try_from(code).unwrap_or(1));
        let has_aborted = [status.signal(), code.map(|code| i32::from(code) - 128)].contains(&Some(libc::SIGABRT));
        let without_memory = attempt::step_without_memory(&self.folder).filter(|_| has_aborted);
        let (signal, result) = (status.signal(), attempt::ended(&self.folder));
        let has_lived = signal.is_some() || attempt::heartbeat(&self.folder).is_some();
        Ok(End { code, signal, killed, without_memory, has_lived, result })
    }
}

/// What a process has last said in its files, which may be far away.
struct Vitals {
    looked: Instant,
    heartbeat: Option<Heartbeat>,
    /// How long there has been no first heartbeat; `None` after it.
    beginning: Option<Duration>,
    /// How long the heartbeat has not changed.
    silent: Duration,
    /// How long ago the process has said how it ended.
    exiting: Duration,
}

impl Vitals {
    fn new() -> Self {
        let (beginning, silent, exiting) = (Some(Duration::ZERO), Duration::ZERO, Duration::ZERO);
        Self { looked: Instant::now(), heartbeat: None, beginning, silent, exiting }
    }

    fn look(&mut self, folder: &Path) {
        let took = self.looked.elapsed().min(LONG_LOOK);
        self.looked = Instant::now();
        let heartbeat = attempt::heartbeat(folder);
        self.beginning = self.beginning.map(|so_far| so_far + took).filter(|_| heartbeat.is_none());
        let is_silent = heartbeat.is_some() && heartbeat == self.heartbeat;
        self.silent = if is_silent { self.silent + took } else { Duration::ZERO };
        self.heartbeat = heartbeat;
        if attempt::ended(folder).is_some() {
            self.exiting += took;
        }
    }

    /// Why the process, which must begin within a time, has to be killed.
    fn failing(&self, begins_within: Duration) -> Option<Killed> {
        match self.beginning {
            Some(so_far) if so_far > begins_within && self.exiting.is_zero() => Some(Killed::NotBegun(begins_within)),
            _ => (self.silent > DEAD).then_some(Killed::Silent),
        }
    }
}

/// Whether a process has ended. Its number stays its own until the process is waited for.
fn has_ended(child: &Child) -> io::Result<bool> {
    // SAFETY: a system call that writes to `info`, all of whose bits may be 0.
    let (ended, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        (libc::waitid(libc::P_PID, child.id(), &raw mut info, how), info)
    };
    match ended {
        // SAFETY: waitid has written it.
        0 => Ok(unsafe { info.si_pid() } != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to a process group.
fn send(group: i32, signal: i32) {
    // SAFETY: a system call without memory; a group that no longer exists is an error that does not matter.
    unsafe { libc::killpg(group, signal) };
}

/// If the supervisor is killed, the process stops after its step. Linux only: elsewhere it goes on.
fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: prctl and getppid are system calls without memory, which may be made between fork and exec.
    unsafe {
        let parent = std::process::id() as i32;
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // It may have died before.
            if libc::getppid() == parent { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

#[cfg(test)]
mod tests {
    use super::super::causes;
    use super::*;

    #[test]
    fn a_process_that_never_begins_is_killed_and_one_that_has_begun_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let run = |script: &str, seconds: u64| {
            let program = ["sh", "-c", script].map(OsString::from).to_vec();
            let (args, begins_within) = (vec![folder.path().join("alive").into()], Duration::from_secs(seconds));
            let attempt = Attempt { program, args, environment: vec![], folder: folder.path().into(), begins_within };
            attempt.run(&Running::new(None)).unwrap()
        };
        let end = run("sleep 60", 1);
        assert_eq!((end.killed, end.signal), (Some(Killed::NotBegun(Duration::from_secs(1))), Some(libc::SIGKILL)));
        let (cause, why) = causes::of(&end, false);
        assert!(end.has_lived && cause == attempt::Cause::Other, "it is started again");
        assert!(why.starts_with("no rank has begun within 1 s: "), "{why}");
        let end = run("echo 1 > $0; sleep 3", 2);
        assert_eq!((end.killed, end.code), (None, Some(0)));
    }
}
