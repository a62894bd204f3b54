//! What the user sees while a run trains.

use crate::metrics::StepMetrics;
use crate::step_line::{Then, step_line};
use crate::terminal;
use crate::words::duration;
use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};
use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the bar moves by itself, so that a long step is seen to go on.
const TICK: Duration = Duration::from_millis(200);
/// What takes longer than this says so, in the bar.
const LONG: Duration = Duration::from_secs(2);
/// Where there is no bar, a first step that takes longer says so in a line, and again after twice the time.
const VERY_LONG: Duration = Duration::from_secs(5);

/// Lines, and on a terminal a bar below them.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    says: Says,
    doing: Arc<Mutex<Doing>>,
    eta: Mutex<Eta>,
}

/// What is said of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    All,
    /// To whom a run is quiet, warnings are said.
    Warnings,
    /// Another process speaks for this one.
    Nothing,
}

/// What goes on right now.
struct Doing {
    what: &'static str,
    since: Instant,
    /// The share of it that is done, where it is known.
    share: Option<f64>,
    /// When a line says it next, where there is no bar.
    told_after: Duration,
}

impl Doing {
    fn new(what: &'static str) -> Self {
        Self { what, since: Instant::now(), share: None, told_after: VERY_LONG }
    }

    /// How long it takes yet, if it goes on as it has begun.
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

/// The time left: as many seconds a step as the steps took of this process, but for its first, which is slow.
#[derive(Default)]
struct Eta(Option<(usize, Instant)>);

impl Eta {
    /// After `step` steps of `steps`; none when it cannot be told yet, and at the end.
    fn after(&mut self, step: usize, steps: usize) -> Option<Duration> {
        let (first, started) = *self.0.get_or_insert_with(|| (step, Instant::now()));
        let (made, left) = (step - first, steps.saturating_sub(step));
        (made > 0 && left > 0).then(|| started.elapsed().mul_f64(left as f64 / made as f64))
    }
}

impl Progress {
    /// Of a run of `steps` steps, of which `done` are made.
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

    /// What begins now; the bar shows it if it takes long.
    pub fn doing(&self, what: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = Doing::new(what);
    }

    /// What is to be told how much of a step's work is done and how much there is, of steps of so many micro-batches,
    /// the first of which is `first`. The bar shows it if the step takes long, and where there is none a few lines do
    /// so of the first step.
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

    /// After a step; `tell`: with a line that stays, not in the bar only. `stopping`: it is the last one, however many
    /// there are to be.
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

    /// A line that stays.
    pub fn say(&self, line: &str) {
        if self.says == Says::All || self.says == Says::Warnings && terminal::is_warning(line) {
            self.above_the_bar(|| terminal::to_stderr(line));
        }
    }

    /// A box that stays.
    pub fn show(&self, text: &str) {
        if self.says == Says::All {
            self.above_the_bar(|| terminal::box_to_stderr(text));
        }
    }

    /// A line that stays, and that one need not read.
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

    /// Takes the bar away; the lines have said all that stays.
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
