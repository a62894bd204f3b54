//! Where and when a run runs.

use chrono::{SecondsFormat, Utc};
use serde::Serialize;
use std::{env, fs, thread};

/// A computer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub host: String,
    /// Its processor's name, where the system tells it, or else its architecture.
    pub cpu: String,
    pub cores: usize,
}

impl Machine {
    /// The one that this process runs on.
    pub fn this() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| env::var("HOSTNAME"));
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            host: host.map_or_else(|_| "unknown".into(), |host| host.trim().into()),
            cpu: cpu.map_or(env::consts::ARCH, |(_, name)| name.trim()).into(),
            cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// The time, as in 2026-11-21T21:45:07Z.
pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}
