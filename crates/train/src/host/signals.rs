//! Signals that end a run: Ctrl-C, SIGTERM (sent by Slurm, Kubernetes, `kill`) and SIGHUP (sent by a closing terminal);
//! and SIGUSR1, which asks what the ranks are doing.

use crate::host::attempt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Exit status after a signal; by convention 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a run that a signal has stopped.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// Who stops a job often sends a signal to the supervisor and to the process itself, which then gets two. Signals within
/// this time count as one.
pub(crate) const SAME: Duration = Duration::from_secs(2);

/// What a signal leads to, for the user who has sent it.
pub(crate) const STOPPING: &str = "stopping after this step; a second Ctrl-C or signal stops at once";

/// Installs a handler: a signal sets the flag and says `what` happens, and a second one ends the process.
pub(crate) fn stop_after_a_step(what: Option<&'static str>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let (handler, mut first) = (stop.clone(), None::<Instant>);
    let set = handle(move || {
        if handler.swap(true, Ordering::Relaxed) {
            if attempt::is_supervised() && first.is_none_or(|first| first.elapsed() < SAME) {
                first.get_or_insert_with(Instant::now);
                return;
            }
            std::process::exit(INTERRUPTED.into());
        }
        first = Some(Instant::now());
        if let Some(what) = what {
            let _ = writeln!(io::stderr(), "\n{what}");
        }
    });
    if let Err(error) = set {
        let _ = writeln!(io::stderr(), "Ctrl-C will stop at once: {error}");
    }
    stop
}

/// Installs a handler: a signal ends the process after `clean`, because nothing is kept and a step may take minutes.
pub(crate) fn stop_at_once(clean: impl Fn() + Send + 'static) -> Arc<AtomicBool> {
    let set = handle(move || {
        clean();
        std::process::exit(INTERRUPTED.into());
    });
    if let Err(error) = set {
        let _ = writeln!(io::stderr(), "Ctrl-C will leave a folder behind: {error}");
    }
    Arc::default()
}

/// Calls `handler` for each signal, on a thread of its own. An ignored SIGHUP stays ignored: with `nohup` the run must
/// survive a closing terminal.
pub(crate) fn handle(handler: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    // SAFETY: SIG_IGN runs no code of this process, and the previous handler is restored.
    let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    unsafe { libc::signal(libc::SIGHUP, before) };
    let set = ctrlc::set_handler(handler);
    if before == libc::SIG_IGN {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
    set
}

/// Whether SIGUSR1 has come since it was last asked.
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether Ctrl-Z (SIGTSTP) has come since it was last asked.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Notes SIGUSR1 from now on, which otherwise ends the process.
pub(crate) fn note_requests() {
    extern "C" fn note(_: i32) {
        REQUESTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only writes an atomic, which is allowed in a handler.
    unsafe { libc::signal(libc::SIGUSR1, note as *const () as libc::sighandler_t) };
}

/// Notes Ctrl-Z from now on, which otherwise stops this process and not those that it has started.
pub(crate) fn note_pauses() {
    extern "C" fn note(_: i32) {
        PAUSED.store(true, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGTSTP, note as *const () as libc::sighandler_t) };
}

/// Whether SIGUSR1 has come since the last call.
pub(crate) fn take_request() -> bool {
    REQUESTED.swap(false, Ordering::Relaxed)
}

/// Stops this process if Ctrl-Z has come, between `before` and `after`. It continues with `fg`, `bg` or SIGCONT.
pub(crate) fn pause_if_asked(before: impl FnOnce(), after: impl FnOnce()) {
    if PAUSED.swap(false, Ordering::Relaxed) {
        before();
        // SAFETY: a system call without memory.
        unsafe { libc::raise(libc::SIGSTOP) };
        after();
    }
}
