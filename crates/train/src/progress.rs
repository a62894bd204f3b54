use crate::metrics::StepMetrics;
use crate::terminal::shown;
use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the bar moves by itself, so that a long step is seen to go on.
const TICK: Duration = Duration::from_millis(200);
/// What takes longer than this says so, in the bar.
const LONG: Duration = Duration::from_secs(2);

/// What the user sees while a run trains: lines, and on a terminal a bar below them.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    silent: bool,
    doing: Arc<Mutex<Doing>>,
    eta: Mutex<Eta>,
}

/// What goes on right now, and since when.
struct Doing(&'static str, Instant);

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
    pub fn new(steps: usize, done: usize) -> Self {
        let mut progress = Self { steps, silent: false, ..Self::silent() };
        progress.bar = io::stderr().is_terminal().then(|| {
            let doing = progress.doing.clone();
            let doing = move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
                let Doing(what, since) = &*doing.lock().unwrap_or_else(PoisonError::into_inner);
                if since.elapsed() > LONG {
                    let _ = write!(text, "  {what} {} s", since.elapsed().as_secs());
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

    /// Of a process that another one speaks for.
    pub fn silent() -> Self {
        let doing = Arc::new(Mutex::new(Doing("starting", Instant::now())));
        Self { bar: None, steps: 0, silent: true, doing, eta: Mutex::default() }
    }

    /// What begins now; the bar shows it if it takes long.
    pub fn doing(&self, what: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = Doing(what, Instant::now());
    }

    /// After a step; `tell`: with a line that stays, not in the bar only. `stopping`: it is the last one, however many there are to be.
    pub fn step(&self, m: &StepMetrics, tell: bool, stopping: bool) {
        let left = match self.eta.lock().unwrap_or_else(PoisonError::into_inner).after(m.step, self.steps) {
            _ if stopping => "  stopping".into(),
            Some(left) => format!("  eta {}", FormattedDuration(left)),
            None => String::new(),
        };
        let text = format!("loss {:.4}  grad {:.2}  {:.0} tokens/s{left}", m.loss, m.grad_norm, m.tokens_per_second);
        if let Some(bar) = &self.bar {
            bar.set_position(m.step as u64);
            bar.set_message(format!("  {text}"));
        }
        if tell {
            self.say(&format!("step {:>5}/{}  {text}", m.step, self.steps));
        }
    }

    /// A line that stays, written whole. A run goes on when nobody reads it any more (`train ... 2>&1 | head`); `eprintln!` would
    /// panic.
    pub fn say(&self, line: &str) {
        if self.silent {
            return;
        }
        let print = || {
            let line = shown(line, io::stderr().is_terminal());
            let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        };
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
    fn the_time_left_counts_the_steps_of_this_process_only_and_is_not_told_before_it_is_known() {
        let mut eta = Eta::default();
        assert_eq!(eta.after(901, 1000), None, "the first step after a resume says nothing");
        eta.0 = Some((901, Instant::now() - Duration::from_secs(10)));
        let left = eta.after(911, 1000).unwrap().as_secs_f64();
        assert!((left - 89.0).abs() < 1.0, "a second a step: {left}");
        assert_eq!(eta.after(1000, 1000), None);
    }
}
