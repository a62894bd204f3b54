//! The progress display of a training run.

use crate::format::duration;
use crate::reporting::metrics::StepMetrics;
use crate::reporting::step_line::{Then, step_line};
use crate::terminal;
use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};
use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the bar moves on its own, so that a long step shows activity.
const TICK: Duration = Duration::from_millis(200);
/// The bar names an activity that takes longer than this.
const LONG: Duration = Duration::from_secs(2);
/// Without a bar, a first step that takes longer than this prints a line, and another each time the duration doubles.
const VERY_LONG: Duration = Duration::from_secs(5);

/// Lines, and on a terminal a bar below them.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    says: Says,
    doing: Arc<Mutex<Doing>>,
    eta: Mutex<Eta>,
}

/// How much is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    All,
    /// For a quiet run: warnings only.
    Warnings,
    /// Nothing, because another process prints for this one.
    Nothing,
}

/// The current activity.
struct Doing {
    what: &'static str,
    since: Instant,
    /// Fraction done, if known.
    share: Option<f64>,
    /// When the next line is due, without a bar.
    told_after: Duration,
}

impl Doing {
    fn new(what: &'static str) -> Self {
        Self { what, since: Instant::now(), share: None, told_after: VERY_LONG }
    }

    /// The time left at the current rate.
    fn left(&self) -> Option<Duration> {
        let share = self.share.filter(|share| *share > 0.0)?;
        Some(self.since.elapsed().mul_f64((1.0 - share) / share))
    }

    /// `31 s, 25%, 1 min 33 s left`.
    fn so_far(&self) -> String {
        let since = duration(Duration::from_secs(self.since.elapsed().as_secs()));
        let share = self.share.map(|share| format!(", {:.0}%", 100.0 * share)).unwrap_or_default();
        let left = self.left().map(|left| format!(", {} left", duration(left))).unwrap_or_default();
        format!("{since}{share}{left}")
    }
}

/// Estimates the time left from this process's steps, without the first, which is slow.
#[derive(Default)]
struct Eta(Option<(usize, Instant)>);

impl Eta {
    /// The time left after `step` of `steps` steps; `None` if it is not known yet, and at the end.
    fn after(&mut self, step: usize, steps: usize) -> Option<Duration> {
        let (first, started) = *self.0.get_or_insert_with(|| (step, Instant::now()));
        let (made, left) = (step - first, steps.saturating_sub(step));
        (made > 0 && left > 0).then(|| started.elapsed().mul_f64(left as f64 / made as f64))
    }
}

impl Progress {
    /// The progress of a run of `steps` steps, `done` of which are made.
    pub fn new(steps: usize, done: usize, says: Says) -> Self {
        let doing = Arc::new(Mutex::new(Doing::new("starting")));
        let mut progress = Self { bar: None, steps, says, doing, eta: Mutex::default() };
        progress.bar = (says == Says::All && io::stderr().is_terminal()).then(|| {
            let doing = progress.doing.clone();
            let doing = move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
                let doing = doing.lock().unwrap_or_else(PoisonError::into_inner);
                if doing.since.elapsed() > LONG {
                    let _ = write!(text, "  {} {}", doing.what, doing.so_far());
                }
            };
            let style = ProgressStyle::with_template("{spinner} step {pos}/{len}{msg}{doing} {wide_bar}");
            let bar =
                ProgressBar::new(steps as u64).with_style(style.expect("a valid template").with_key("doing", doing));
            bar.set_position(done as u64);
            bar.enable_steady_tick(TICK);
            bar
        });
        progress
    }

    /// Names the activity that begins now; the bar shows it if it takes long.
    pub fn doing(&self, what: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = Doing::new(what);
    }

    /// Returns a callback for the progress within a step: work done and total work. `first` is the run's first step,
    /// and each step has `micro_batches` micro-batches. The bar shows the progress if the step takes long; without a
    /// bar, a few lines report it for the first step.
    pub fn watch(&self, first: usize, micro_batches: usize) -> impl Fn(usize, usize) + Send + 'static {
        let (doing, has_lines) = (self.doing.clone(), self.bar.is_none() && self.says == Says::All);
        let is_first = Cell::new(true);
        move |done, all| {
            let mut doing = doing.lock().unwrap_or_else(PoisonError::into_inner);
            doing.share = Some(done as f64 / all as f64);
            if done == all {
                is_first.set(false);
            }
            if has_lines && is_first.get() && doing.since.elapsed() > doing.told_after {
                doing.told_after = 2 * doing.since.elapsed();
                let of = match micro_batches {
                    1 => String::new(),
                    _ => format!(" (micro-batch {} of {micro_batches})", 1 + done * micro_batches / all),
                };
                terminal::detail_to_stderr(&format!("step {first}{of}: {}", doing.so_far()));
            }
        }
    }

    /// Reports a step; with `tell` as a permanent line, otherwise only in the bar. `stopping` marks it as the last one,
    /// however many were planned.
    pub fn step(&self, m: &StepMetrics, tell: bool, stopping: bool) {
        let then = match self.eta.lock().unwrap_or_else(PoisonError::into_inner).after(m.step, self.steps) {
            _ if stopping => Then::Stopping,
            Some(left) => Then::Left(left),
            None => Then::Unknown,
        };
        if let Some(bar) = &self.bar {
            bar.set_position(m.step as u64);
            bar.set_message(match then {
                Then::Left(left) => format!("  loss {:.4}  eta {}", m.loss, FormattedDuration(left)),
                _ => format!("  loss {:.4}", m.loss),
            });
        }
        if tell {
            self.say(&step_line(m, self.steps, then, terminal::width()));
        }
    }

    /// Prints a permanent line.
    pub fn say(&self, line: &str) {
        if self.says == Says::All || self.says == Says::Warnings && terminal::is_warning(line) {
            self.above_the_bar(|| terminal::to_stderr(line));
        }
    }

    /// Prints a permanent box.
    pub fn show(&self, text: &str) {
        if self.says == Says::All {
            self.above_the_bar(|| terminal::box_to_stderr(text));
        }
    }

    /// Prints a permanent line in a dimmed style.
    pub fn detail(&self, line: &str) {
        if self.says == Says::All {
            self.above_the_bar(|| terminal::detail_to_stderr(line));
        }
    }

    fn above_the_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar; the lines remain.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_how_far_it_is_and_what_is_left_of_it() {
        let mut doing = Doing { since: Instant::now() - Duration::from_secs(31), ..Doing::new("in this step") };
        assert_eq!(doing.so_far(), "31 s");
        doing.share = Some(0.25);
        assert_eq!(doing.so_far(), "31 s, 25%, 1 min 33 s left");
        let progress = Progress::new(300, 0, Says::Warnings);
        let watch = progress.watch(1, 4);
        watch(3, 12);
        assert_eq!(progress.doing.lock().unwrap().share, Some(0.25));
        progress.doing("validating");
        assert_eq!(progress.doing.lock().unwrap().share, None);
    }

    #[test]
    fn the_time_left_counts_the_steps_of_this_process_only_and_is_not_told_before_it_is_known() {
        let mut eta = Eta::default();
        assert_eq!(eta.after(901, 1000), None, "the first step after a resume says nothing");
        eta.0 = Some((901, Instant::now() - Duration::from_secs(10)));
        let left = eta.after(911, 1000).unwrap().as_secs_f64();
        assert!((left - 89.0).abs() < 1.0, "a second a step: {left}");
        assert_eq!(eta.after(1000, 1000), None);
    }
}
