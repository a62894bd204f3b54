//! The machine, time and command of a run.

use chrono::{SecondsFormat, Utc};
use serde::Serialize;
use std::{env, fs, thread};

/// A computer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub host: String,
    /// Name of the processor if the system reports it, or else its architecture.
    pub cpu: String,
    pub cores: usize,
}

impl Machine {
    /// The machine that this process runs on.
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

/// The command line of this process, quoted for a shell.
pub(crate) fn command() -> String {
    let mut words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    // The program's folder is irrelevant to the run.
    let program = words.next().map(|path| path.rsplit('/').next().unwrap_or(&path).to_owned());
    program.into_iter().chain(words).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The current time, as in 2026-11-21T21:45:07Z.
pub(crate) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_quoted_where_a_shell_needs_it() {
        for word in ["train", "--set", "optim.lr=3e-4", "runs/a@12"] {
            assert_eq!(quoted(word), word);
        }
        assert_eq!(["", "a b", "it's", "$HOME"].map(quoted), ["''", "'a b'", r"'it'\''s'", "'$HOME'"]);
        assert!(!command().is_empty() && !command().starts_with('/'), "{}", command());
    }
}
