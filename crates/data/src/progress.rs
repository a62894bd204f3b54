//! Progress of long jobs: a bar on a terminal, otherwise an occasional line.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

const EVERY: Duration = Duration::from_secs(10);

/// Progress in bytes, on stderr.
pub struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    total: u64,
    shown: Instant,
    quiet: bool,
}

/// Prints a line for the user if progress is shown.
pub fn say(line: Option<&String>, progress: bool) {
    if let Some(line) = line.filter(|_| progress) {
        eprintln!("{line}");
    }
}

impl Progress {
    pub fn new(what: &'static str, total: u64, quiet: bool) -> Self {
        let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let bar = (!quiet && stderr().is_terminal()).then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5)).with_message(what);
            bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
            bar
        });
        Self { what, bar, total, shown: Instant::now(), quiet }
    }

    /// Reports that `bytes` are done.
    pub fn set(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        } else if !self.quiet && self.shown.elapsed() >= EVERY {
            eprintln!("{} {} of {}", self.what, HumanBytes(bytes), HumanBytes(self.total));
            self.shown = Instant::now();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
