//! How the process of an attempt is started, and how its machines are asked.

use super::Environment;
use crate::config::Config;
use crate::error::TrainError;
use crate::program;
use crate::run::memory::held::{Answer, Request, answer_here};
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// How the process of an attempt is started.
pub(crate) trait Start {
    /// The program and what precedes the run's own arguments. Called before each attempt; `run` is the run's folder, and
    /// `environment` what the processes must get.
    fn command(&self, config: &Config, run: &Path, environment: &Environment) -> Result<Vec<OsString>, TrainError>;

    /// Whether a signal lets the processes finish their step; otherwise a file asks them to stop.
    fn stops_by_signal(&self) -> bool;

    /// Whether all processes are on this machine, so that none of them writes any more once the attempt has ended.
    fn is_on_this_machine(&self) -> bool;

    /// The command, to paste, that resumes a run in this way.
    fn resume_command(&self, run: &str) -> String {
        program::command(&["--resume", run])
    }

    /// The number of machines.
    fn machines(&self) -> usize {
        1
    }

    /// Asks machines, given by number, at the same time; returns the answers, or why there is none within `limit`.
    fn ask(&self, requests: &[(usize, Request)], _limit: Duration) -> Vec<Result<Answer, String>> {
        answer_here(requests)
    }
}

/// This program, whose threads are the ranks.
pub(crate) struct Threads;

impl Start for Threads {
    fn command(&self, _: &Config, _: &Path, _: &Environment) -> Result<Vec<OsString>, TrainError> {
        let program = env::current_exe();
        let program = program.map_err(|source| TrainError::Supervisor { what: "find the program", source })?;
        Ok(vec![program.into_os_string()])
    }

    fn stops_by_signal(&self) -> bool {
        true
    }

    fn is_on_this_machine(&self) -> bool {
        true
    }
}
