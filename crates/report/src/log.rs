//! All lines of a run, in order. The steps that a resumed run repeats replace the earlier ones.

use crate::lines::{Layer, Line, Memory, Setup, StageSeconds, StepLine, Traffic};
use std::collections::BTreeMap;

/// Prefix of the event with which a process resumes a run.
pub(crate) const RESUMED: &str = "resumed from ";
/// Prefix of the event of a saved checkpoint.
pub(crate) const SAVED: &str = "saved ";
/// Prefix of the event that says that no more steps follow.
pub(crate) const ENDED_EARLY: &str = "ended early ";

/// The content of the lines of `metrics.jsonl`.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub steps: Vec<StepLine>,
    /// Seconds since the run's start at the end of each step. They continue after a resume.
    pub seconds: Vec<f64>,
    /// Step and loss.
    pub validations: Vec<(u64, f64)>,
    /// The same for each validation set, if there are several.
    pub validations_of_sets: BTreeMap<String, Vec<(u64, f64)>>,
    pub experts: Vec<(u64, Vec<Layer>)>,
    /// For a pipeline, its stages in the order of the model.
    pub stages: Vec<(u64, Vec<StageSeconds>)>,
    pub events: Vec<(u64, String)>,
    /// The run's processes, by the step after which each started.
    pub setups: Vec<Setup>,
    /// Step and text, one sample per step.
    pub samples: Vec<(u64, String)>,
    /// The latest bytes at rest, and the highest of all peaks.
    pub memory: BTreeMap<String, Memory>,
    /// The latest bytes in use and reserved.
    pub device: Option<(f64, f64)>,
    pub parameters: Option<u64>,
    /// Number of steps repeated after a resume.
    again: usize,
    /// Traffic of the processes before the current one.
    traffic_before: BTreeMap<String, Traffic>,
    /// Traffic of the current process, at its last line.
    traffic_now: BTreeMap<String, Traffic>,
    clock: Clock,
}

/// Wall time that continues when a process starts from zero again.
#[derive(Debug, Default)]
struct Clock {
    /// When the process started.
    start: f64,
    /// The latest time.
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
    /// Whether no line says anything about a step.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.validations.is_empty() && self.memory.is_empty()
    }

    /// The last training step, or the last validated one if the run only validated.
    pub fn last_step(&self) -> Option<u64> {
        self.steps.last().map(|step| step.step).or(self.validations.last().map(|(step, _)| *step))
    }

    /// What all processes of the run have received.
    pub fn traffic(&self) -> BTreeMap<String, Traffic> {
        let mut all = self.traffic_before.clone();
        add_traffic(&mut all, &self.traffic_now);
        all
    }

    /// A note for the reader about the steps.
    pub fn note(&self) -> Option<String> {
        let (steps, course) = match self.again {
            0 => return None,
            1 => ("1 step was".into(), "its first course is"),
            many => (format!("{many} steps were"), "their first course is"),
        };
        Some(format!("{steps} done again after a resume; {course} not shown"))
    }

    /// Adds the next line.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Step(step) => {
                let before = self.steps.partition_point(|old| old.step < step.step);
                if before < self.steps.len() {
                    self.forget_from(step.step, before);
                }
                self.seconds.push(self.clock.tick(step.elapsed_seconds, step.step_seconds));
                self.steps.push(*step);
            }
            Line::Validation { step, loss, of_sets } => {
                let put = |validations: &mut Vec<(u64, f64)>, loss| {
                    validations.pop_if(|(of, _)| *of == step); // repeated by a run that had ended
                    validations.push((step, loss));
                };
                put(&mut self.validations, loss);
                for (name, loss) in of_sets {
                    put(self.validations_of_sets.entry(name).or_default(), loss);
                }
            }
            Line::Experts { step, layers } => self.experts.push((step, layers)),
            Line::Stages { step, stages } => self.stages.push((step, stages)),
            Line::Event { step, text } => {
                if text.starts_with(RESUMED) {
                    self.end_process();
                }
                self.events.push((step, text));
            }
            Line::Usage(usage) => {
                for (name, memory) in usage.memory {
                    let kept = self.memory.entry(name).or_insert(memory);
                    // `max` ignores NaN, so a missing peak does not hide others.
                    *kept = Memory { at_rest: memory.at_rest, peak: memory.peak.max(kept.peak) };
                }
                self.device = usage.device.or(self.device);
                self.traffic_now = usage.traffic;
            }
            Line::Sample { step, text } => {
                self.samples.pop_if(|(of, _)| *of == step);
                self.samples.push((step, text));
            }
            Line::Start(setup) => {
                self.end_process();
                self.parameters = setup.parameters.or(self.parameters);
                // A process that started at the same step or later has left no step that is still valid.
                self.setups.retain(|before| before.step < setup.step);
                self.setups.push(*setup);
            }
            Line::Parameters(parameters) => self.parameters = Some(parameters),
        }
    }

    /// A resumed run starts before the end of what was written: the later lines take precedence.
    fn forget_from(&mut self, step: u64, before: usize) {
        self.again += self.steps.len() - before;
        self.steps.truncate(before);
        self.seconds.truncate(before);
        // What was found after an earlier step is still valid.
        self.validations.retain(|(of, _)| *of < step);
        self.validations_of_sets.values_mut().for_each(|of_set| of_set.retain(|(of, _)| *of < step));
        self.experts.retain(|(of, _)| *of < step);
        self.stages.retain(|(of, _)| *of < step);
        self.samples.retain(|(of, _)| *of < step);
    }

    /// The following lines count time and traffic from zero.
    fn end_process(&mut self) {
        self.clock.start = self.clock.now;
        add_traffic(&mut self.traffic_before, &std::mem::take(&mut self.traffic_now));
    }
}

fn add_traffic(all: &mut BTreeMap<String, Traffic>, more: &BTreeMap<String, Traffic>) {
    for (name, more) in more {
        let total = all.entry(name.clone()).or_default();
        total.calls += more.calls;
        total.bytes += more.bytes;
        total.seconds += more.seconds;
    }
}

#[cfg(test)]
impl Log {
    /// A log of lines as they appear in a file.
    pub fn of(lines: &[impl AsRef<str>]) -> Self {
        let mut log = Self::default();
        lines.iter().for_each(|line| log.add(Line::parse(line.as_ref()).unwrap().unwrap()));
        log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: u64, elapsed: f64) -> String {
        format!("{{\"step\":{step},\"loss\":{loss},\"elapsed_seconds\":{elapsed}}}")
    }

    #[test]
    fn a_resume_replaces_the_steps_that_it_does_again() {
        let usage =
            |calls| format!("{{\"step\":1,\"traffic\":{{\"sum\":{{\"calls\":{calls},\"bytes\":8,\"seconds\":1}}}}}}");
        let lines = [
            step(1, 4, 1.0),
            step(2, 3, 2.0),
            usage(10),
            "{\"step\":2,\"val_loss\":9}".into(),
            step(3, 8, 3.0),
            "{\"step\":3,\"val_loss\":7}".into(),
            "{\"step\":2,\"sample\":\"f\"}".into(),
            "{\"step\":2,\"sample\":\"fn\"}".into(),
            "{\"step\":3,\"sample\":\"fn main\"}".into(),
            "{\"step\":2,\"event\":\"resumed from step-2 on 2 ranks\"}".into(),
            // Later than the first process ever got, after more calls.
            step(3, 2, 3.5),
            step(4, 1, 4.5),
            usage(14),
        ];
        let log = Log::of(&lines);
        assert_eq!(log.steps.iter().map(|step| step.loss).collect::<Vec<_>>(), [4.0, 3.0, 2.0, 1.0]);
        assert_eq!(log.seconds, [1.0, 2.0, 6.5, 7.5]);
        assert_eq!(log.validations, [(2, 9.0)]);
        assert_eq!(log.samples, [(2, "fn".to_owned())]);
        assert_eq!(log.traffic()["sum"], Traffic { calls: 24.0, bytes: 16.0, seconds: 2.0 });
        assert_eq!(log.note().unwrap(), "1 step was done again after a resume; its first course is not shown");
    }

    #[test]
    fn the_note_counts_the_steps_done_again() {
        assert_eq!(Log::of(&[step(1, 4, 1.0)]).note(), None);
        let lines = [step(1, 4, 1.0), step(2, 4, 2.0), step(3, 4, 3.0), step(2, 4, 1.0)];
        assert_eq!(
            Log::of(&lines).note().unwrap(),
            "2 steps were done again after a resume; their first course is not shown"
        );
    }

    #[test]
    fn a_process_counts_time_anew_and_replaces_one_that_left_no_step() {
        let start = |step, ranks| format!("{{\"started\":\"x\",\"step\":{step},\"ranks\":{ranks}}}");
        let lines = [start(0, 4), step(1, 4, 1.0), start(1, 3), start(1, 2), step(2, 3, 1.5)];
        let log = Log::of(&lines);
        assert_eq!(log.seconds, [1.0, 2.5]);
        let setups: Vec<_> = log.setups.iter().map(|setup| (setup.step, setup.ranks.unwrap())).collect();
        assert_eq!(setups, [(0, 4), (1, 2)]);
    }

    #[test]
    fn without_elapsed_time_steps_add_up() {
        let step = |step, seconds| format!("{{\"step\":{step},\"loss\":2,\"step_seconds\":{seconds}}}");
        assert_eq!(Log::of(&[step(1, 0.5), step(2, 1.0)]).seconds, [0.5, 1.5]);
    }
}
