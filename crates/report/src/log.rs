//! All lines of a run, in order: what a resumed run did again replaces what it had done.

use crate::ReportError;
use crate::lines::{Layer, Line, Memory, Step, Traffic};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// How the event begins that is the first line of a process that goes on with a run.
const RESUMED: &str = "resumed from ";

/// What the lines of `metrics.jsonl` say.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub steps: Vec<Step>,
    /// Seconds since the run's start at the end of each step; they go on after a resume.
    pub seconds: Vec<f64>,
    /// Step and loss.
    pub validations: Vec<(u64, f64)>,
    pub experts: Vec<(u64, Vec<Layer>)>,
    pub events: Vec<(u64, String)>,
    /// The last bytes at rest, and the highest peak of all.
    pub memory: BTreeMap<String, Memory>,
    /// The last bytes in use and reserved.
    pub device: Option<(f64, f64)>,
    /// Of all processes that the run had.
    pub traffic: BTreeMap<String, Traffic>,
    pub parameters: Option<u64>,
    /// What a reader of the page should know about the file.
    pub notes: Vec<String>,
    /// Steps that were done, and then done again after a resume.
    again: usize,
    /// Of the current process, at its last line.
    traffic_now: BTreeMap<String, Traffic>,
    clock: Clock,
}

/// Wall time that goes on where a process starts from zero again.
#[derive(Debug, Default)]
struct Clock {
    /// When the process started.
    start: f64,
    /// The last time.
    now: f64,
}

impl Clock {
    fn tick(&mut self, elapsed: f64, step_seconds: f64) -> f64 {
        if elapsed.is_finite() {
            self.now = self.now.max(self.start + elapsed);
        } else if step_seconds.is_finite() {
            self.now += step_seconds.max(0.0);
        }
        self.now
    }
}

impl Log {
    /// Reads `metrics.jsonl`.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let bytes = fs::read(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ReportError::NoMetrics { path: path.to_owned() },
            _ => ReportError::Read { path: path.to_owned(), source },
        })?;
        let (mut log, mut whole, mut torn) = (Self::default(), 0, vec![]);
        let mut lines = bytes.split(|&byte| byte == b'\n').enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            // The last line has no end yet: the run is writing it, or was stopped in it.
            let ended = lines.peek().is_some();
            if line.trim_ascii().is_empty() {
                continue;
            }
            match Line::parse(&String::from_utf8_lossy(line)) {
                Ok(line) => {
                    whole += 1;
                    line.into_iter().for_each(|line| log.add(line));
                }
                Err(_) if ended => torn.push(index + 1),
                Err(_) => {}
            }
        }
        log.finish(&torn);
        if log.steps.is_empty() && log.validations.is_empty() && log.memory.is_empty() {
            return Err(ReportError::NothingToShow { path: path.to_owned(), lines: whole });
        }
        Ok(log)
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Step(step) => {
                let before = self.steps.partition_point(|old| old.step < step.step);
                if before < self.steps.len() {
                    self.forget_from(step.step, before);
                }
                self.seconds.push(self.clock.tick(step.elapsed_seconds, step.step_seconds));
                self.steps.push(*step);
            }
            Line::Validation { step, loss } => {
                self.validations.pop_if(|(of, _)| *of == step); // done again by a run that had ended
                self.validations.push((step, loss));
            }
            Line::Experts { step, layers } => self.experts.push((step, layers)),
            Line::Event { step, text } => {
                if text.starts_with(RESUMED) {
                    self.end_process();
                }
                self.events.push((step, text));
            }
            Line::Usage(usage) => {
                for (name, memory) in usage.memory {
                    let kept = self.memory.entry(name).or_insert(memory);
                    // `max` ignores NaN, so a missing peak hides none.
                    *kept = Memory { at_rest: memory.at_rest, peak: memory.peak.max(kept.peak) };
                }
                self.device = usage.device.or(self.device);
                self.traffic_now = usage.traffic;
            }
            Line::Parameters(parameters) => self.parameters = Some(parameters),
        }
    }

    /// A resumed run starts before the end of what was written: the later lines hold.
    fn forget_from(&mut self, step: u64, before: usize) {
        self.again += self.steps.len() - before;
        self.steps.truncate(before);
        self.seconds.truncate(before);
        // What was found after the step before this one still holds.
        self.validations.retain(|(of, _)| *of < step);
        self.experts.retain(|(of, _)| *of < step);
    }

    /// What follows counts time and traffic from zero.
    fn end_process(&mut self) {
        self.clock.start = self.clock.now;
        for (name, now) in std::mem::take(&mut self.traffic_now) {
            let total = self.traffic.entry(name).or_default();
            total.calls += now.calls;
            total.bytes += now.bytes;
            total.seconds += now.seconds;
        }
    }

    fn finish(&mut self, torn: &[usize]) {
        self.end_process();
        if self.again > 0 {
            self.notes
                .push(format!("{} steps were done again after a resume; their first course is not shown", self.again));
        }
        if let Some(first) = torn.first() {
            let others = if torn.len() > 1 { format!(" and {} others", torn.len() - 1) } else { String::new() };
            self.notes.push(format!("metrics.jsonl: line {first}{others} is not JSON and is left out"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Log, ReportError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, text).unwrap();
        Log::read(&path)
    }

    #[test]
    fn a_torn_end_is_silent_and_a_torn_middle_is_a_note() {
        let log = read("{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo").unwrap();
        assert_eq!((log.steps.len(), log.notes.len()), (1, 0));
        let log = read("{\"step\":1,\"loss\":2}\n{\"st\n\n{\"step\":2,\"loss\":1}").unwrap();
        assert_eq!(
            (log.steps.len(), &log.notes[..]),
            (2, &["metrics.jsonl: line 2 is not JSON and is left out".into()][..])
        );
    }

    #[test]
    fn a_resume_replaces_the_steps_that_it_does_again() {
        let step = |step, loss, elapsed| format!("{{\"step\":{step},\"loss\":{loss},\"elapsed_seconds\":{elapsed}}}\n");
        let usage =
            |calls| format!("{{\"step\":1,\"traffic\":{{\"sum\":{{\"calls\":{calls},\"bytes\":8,\"seconds\":1}}}}}}\n");
        let text = [
            step(1, 4, 1.0),
            step(2, 3, 2.0),
            usage(10),
            "{\"step\":2,\"val_loss\":9}\n".into(),
            step(3, 8, 3.0),
            "{\"step\":3,\"val_loss\":7}\n".into(),
            "{\"step\":2,\"event\":\"resumed from step-2 on 2 ranks\"}\n".into(),
            // Later than the first process ever came, after more calls.
            step(3, 2, 3.5),
            step(4, 1, 4.5),
            usage(14),
        ];
        let log = read(&text.concat()).unwrap();
        assert_eq!(log.steps.iter().map(|step| step.loss).collect::<Vec<_>>(), [4.0, 3.0, 2.0, 1.0]);
        assert_eq!(log.seconds, [1.0, 2.0, 6.5, 7.5]);
        assert_eq!(log.validations, [(2, 9.0)]);
        assert_eq!(log.traffic["sum"], Traffic { calls: 24.0, bytes: 16.0, seconds: 2.0 });
        assert!(log.notes[0].starts_with("1 steps were done again"), "{:?}", log.notes);
    }

    #[test]
    fn without_elapsed_time_steps_add_up() {
        let log =
            read("{\"step\":1,\"loss\":2,\"step_seconds\":0.5}\n{\"step\":2,\"loss\":2,\"step_seconds\":1}\n").unwrap();
        assert_eq!(log.seconds, [0.5, 1.5]);
    }

    #[test]
    fn nothing_to_show_is_an_error_that_names_the_file() {
        for text in ["", "{\"step\":1,\"lo", "{\"hello\":1}\n"] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains("metrics.jsonl") && message.contains("first step"), "{message}");
        }
    }
}
