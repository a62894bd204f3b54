use crate::metrics::StepMetrics;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};

/// What the user sees while a run trains: a bar on a terminal, twenty lines or so elsewhere.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    silent: bool,
}

impl Progress {
    pub fn new(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{bar:30} step {pos}/{len}  {msg}  eta {eta}";
            ProgressBar::new(steps as u64).with_style(ProgressStyle::with_template(style).expect("a valid template"))
        });
        Self { bar, steps, silent: false }
    }

    /// Of a process that another one speaks for.
    pub fn silent() -> Self {
        Self { bar: None, steps: 0, silent: true }
    }

    pub fn step(&self, m: &StepMetrics) {
        let text = format!("loss {:.4}  grad {:.2}  {:.0} tokens/s", m.loss, m.grad_norm, m.tokens_per_second);
        match &self.bar {
            Some(bar) => {
                bar.set_position(m.step as u64);
                bar.set_message(text);
            }
            None if m.step == 1 || m.step.is_multiple_of(self.steps.div_ceil(20)) || m.step == self.steps => {
                self.say(&format!("step {:>5}/{}  {text}", m.step, self.steps));
            }
            None => {}
        }
    }

    /// A line that stays, written whole. A run goes on when nobody reads it any more (`train ... 2>&1 | head`); `eprintln!` would
    /// panic.
    pub fn say(&self, line: &str) {
        if self.silent {
            return;
        }
        let print = || {
            let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon(); // the bar stays, with the last step's figures
        }
    }
}
