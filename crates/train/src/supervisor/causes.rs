//! Why a process ended that has not said so itself.

use super::process::{End, Killed};
use crate::host::attempt::Cause;
use std::fs;

/// Returns the cause of the end and a description; `oom_kill` if the kernel killed a process for want of memory in the
/// meantime.
pub(super) fn of(end: &End, oom_kill: bool) -> (Cause, String) {
    let kernel = oom_kill && end.was_killed();
    let cause = if end.without_memory.is_some() || kernel { Cause::OutOfMemory } else { Cause::Other };
    (cause, describe(end, kernel))
}

/// Describes the end; `kernel` if the kernel killed the process for want of memory.
fn describe(end: &End, kernel: bool) -> String {
    match end.killed {
        Some(Killed::NotBegun(within)) => {
            return format!(
                "no rank has begun within {} s: the program or mpirun hangs at its start, for example because a \
                 machine does not answer",
                within.as_secs()
            );
        }
        Some(Killed::Silent) => {
            return "the process gave no sign of life for a minute (stopped, or its machine has no memory left)".into();
        }
        None => {}
    }
    if let Some(step) = end.without_memory {
        let step = if step > 0 { format!(" in step {step}") } else { String::new() };
        return format!("the process could not allocate memory{step}: there is none, or a limit is reached");
    }
    match end.signal {
        _ if kernel => "the kernel killed the process because there was not enough memory (SIGKILL)".into(),
        Some(signal) => format!("the process was killed by {}", name(signal)),
        // A launcher says in this way which signal has ended a process of its own.
        None if end.code.is_some_and(|code| (129..160).contains(&code)) => {
            format!("a process was ended by {}", name(i32::from(end.code.unwrap_or(0)) - 128))
        }
        None => {
            format!("the process exited with code {} and no result: its last lines may say why", end.code.unwrap_or(0))
        }
    }
}

/// The name of a signal that ends processes.
fn name(signal: i32) -> String {
    let names = [
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV, a fault of the program or of the memory"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS, a fault of the memory or a file that was cut off"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    let known = names.into_iter().find(|(number, _)| *number == signal);
    known.map_or(format!("signal {signal}"), |(_, name)| name.into())
}

/// How many processes the kernel has killed so far for want of memory, on this machine; 0 where it does not say.
pub(super) fn oom_kills() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
