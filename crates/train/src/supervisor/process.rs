//! The process of an attempt.

use crate::error::TrainError;
use crate::host::attempt::{self, Ended};
use std::env;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between looks at the process.
const LOOK: Duration = Duration::from_millis(20);
/// A process that gives no sign of life for this long is stopped, or its machine swaps.
const DEAD: Duration = Duration::from_secs(60);

/// The process to start.
pub(super) struct Attempt {
    /// The program, and what precedes the arguments.
    pub program: Vec<OsString>,
    pub args: Vec<OsString>,
    /// What it must know.
    pub environment: Environment,
    /// Where it leaves its files for the supervisor.
    pub folder: PathBuf,
}

/// The environment variables of an attempt.
pub(crate) type Environment = Vec<(&'static str, OsString)>;

/// How the process has ended.
pub(super) struct End {
    /// Its exit code; `None` if a signal has ended it.
    pub code: Option<u8>,
    pub signal: Option<i32>,
    /// Whether the supervisor has killed it, because it gave no sign of life.
    pub was_dead: bool,
    /// Whether an allocation of it has failed.
    pub had_no_memory: bool,
    /// What it says itself.
    pub result: Option<Ended>,
}

/// The process that runs now, and the signals so far.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Mutex<(Option<i32>, usize)>>);

impl Running {
    /// Passes on a signal: the process stops after its step, at the second one at once, and at the third one it is killed.
    pub fn signal(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        let signal = if state.1 < 3 { libc::SIGTERM } else { libc::SIGKILL };
        if let Some(group) = state.0 {
            send(group, signal);
        }
    }

    pub fn was_signalled(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 > 0
    }

    /// Sleeps; returns early, and true, after a signal.
    pub fn sleep(&self, duration: Duration) -> bool {
        let started = Instant::now();
        while !self.was_signalled() && started.elapsed() < duration {
            thread::sleep(LOOK);
        }
        self.was_signalled()
    }

    fn set(&self, group: Option<i32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = group;
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
        let (mut sign, mut seen, mut was_dead) = (None, Instant::now(), false);
        let status = loop {
            let status = child.try_wait().map_err(failed)?;
            if let Some(status) = status {
                break status;
            }
            let now = attempt::sign_of_life(&self.folder);
            if now != sign || now.is_none() {
                (sign, seen) = (now, Instant::now());
            }
            if seen.elapsed() > DEAD {
                was_dead = true;
                send(group, libc::SIGKILL);
            }
            thread::sleep(LOOK);
        };
        running.set(None);
        let code = status.code().map(|code| u8::try_from(code).unwrap_or(1));
        let (had_no_memory, result) = (attempt::had_no_memory(&self.folder), attempt::ended(&self.folder));
        Ok(End { code, signal: status.signal(), was_dead, had_no_memory, result })
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
    // SAFETY: prctl is a system call without memory, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}
