//! A verdict on a run in a few words, from a few thresholds on its numbers; docs/report.md explains the rules.

use crate::lines::StepLine;
use crate::log::{ENDED_EARLY, Log};
use crate::marks::SPIKE;
use crate::series::median;
use serde::Serialize;

/// Minimum number of steps for a verdict.
const ENOUGH: usize = 20;
/// The loss is judged in segments of steps ("stretches"): about a hundred of them, each of at least ten steps.
const STRETCHES: usize = 100;
const STRETCH: usize = 10;
/// A loss counts as worse than another if it exceeds it by more than this fraction.
const WORSE: f64 = 0.01;
/// The smallest relative rise of the loss that means divergence.
const RISE: f64 = 0.1;
/// The run has diverged if this many last steps were all skipped.
const SKIPPED: usize = 10;
/// Spikes are counted in the last fifth of the steps, but in at least the last `OF_LATE`. They matter if there are at
/// least `SPIKES` of them, and at least one per `ONE_IN` steps.
const OF_LATE: usize = 500;
const SPIKES: usize = 3;
const ONE_IN: usize = 200;
/// Seconds, and multiples of the mean step time, without a new line after which a run counts as stopped.
const SILENT_SECONDS: f64 = 60.0;
const SILENT_STEPS: f64 = 20.0;

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub kind: Kind,
    /// The headline.
    pub title: String,
    /// The numbers that it is based on.
    pub why: String,
    pub state: State,
}

/// From worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Diverged,
    Overfitting,
    Spiking,
    Stopped,
    Early,
    Healthy,
}

/// Whether more steps may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It has made no step.
    Waiting,
    Running,
    Stopped,
    Finished,
}

impl State {
    /// The state of a run of `planned` steps that has written nothing for `silent` seconds.
    pub fn new(log: &Log, planned: Option<u64>, silent: Option<f64>) -> Self {
        let Some(step) = log.last_step() else { return Self::Waiting };
        let ended_early = log.events.iter().any(|(of, text)| *of == step && text.starts_with(ENDED_EARLY));
        if ended_early || planned.is_some_and(|planned| step >= planned) {
            return Self::Finished;
        }
        // Some steps may take longer, and saves and validations come between steps.
        let per_step = log.seconds.last().map_or(0.0, |seconds| seconds / log.seconds.len() as f64);
        match silent.is_some_and(|silent| silent > SILENT_SECONDS.max(SILENT_STEPS * per_step)) {
            true => Self::Stopped,
            false => Self::Running,
        }
    }
}

impl Verdict {
    pub fn new(log: &Log, planned: Option<u64>, state: State) -> Self {
        let step = log.last_step().unwrap_or(0);
        let (mut kind, mut title, mut why) = diverged(log)
            .or_else(|| early(log))
            .or_else(|| overfitting(log))
            .or_else(|| spiking(&log.steps))
            .unwrap_or_else(|| healthy(log));
        if state == State::Stopped && matches!(kind, Kind::Healthy | Kind::Early) {
            let of = planned.map(|planned| format!(" of {planned}")).unwrap_or_default();
            why = format!("{} until then: {why}", if kind == Kind::Early { "few steps" } else { "healthy" });
            (kind, title) = (Kind::Stopped, format!("Stopped after step {step}{of}"));
        }
        Self { kind, title, why, state }
    }
}

type Found = (Kind, String, String);

/// The loss is not a number, or has lost half of its gain.
fn diverged(log: &Log) -> Option<Found> {
    let steps = &log.steps;
    let found = |since, why| Some((Kind::Diverged, format!("Diverged since step {since}"), why));
    let from = steps.iter().rposition(|step| step.loss.is_finite()).map_or(0, |last| last + 1);
    if let Some(first) = steps.get(from) {
        return found(first.step, "the loss is not a finite number from there on".to_owned());
    }
    if let Some((step, _)) = log.validations.last().filter(|(_, loss)| !loss.is_finite()) {
        return found(*step, "the validation loss is not a finite number".to_owned());
    }
    if steps.len() < ENOUGH {
        return None;
    }
    if let Some(last) = steps.len().checked_sub(SKIPPED).filter(|&at| steps[at..].iter().all(|step| step.skipped)) {
        let from = steps[..last].iter().rposition(|step| !step.skipped).map_or(0, |made| made + 1);
        return found(steps[from].step, "all steps from there on were skipped".to_owned());
    }
    let stretches = Stretches::new(steps);
    let (first, best, now) = (stretches.first()?, stretches.best()?, stretches.last()?);
    let most = best + (0.5 * (first - best)).max(RISE * best);
    if now <= most {
        return None;
    }
    let since = stretches.0.iter().rposition(|(_, loss)| *loss <= most).map_or(0, |last| last + 1);
    let why = format!(
        "the loss is {} now, after {} at best and {} at the start ({})",
        text(now),
        text(best),
        text(first),
        stretches.medians()
    );
    found(stretches.0[since].0, why)
}

fn early(log: &Log) -> Option<Found> {
    let steps = log.steps.len();
    let why = format!("{steps} steps are too few; a verdict needs {ENOUGH}");
    (steps < ENOUGH).then(|| (Kind::Early, "Too early to tell".to_owned(), why))
}

/// The validation loss rises while the training loss falls.
fn overfitting(log: &Log) -> Option<Found> {
    let known: Vec<_> = log.validations.iter().filter(|(_, loss)| loss.is_finite()).collect();
    let (at, (step, best)) = known.iter().enumerate().min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1))?;
    let after = &known[at + 1..];
    let [.., (_, before), (_, last)] = after else { return None };
    let worse = |loss: f64| loss > best * (1.0 + WORSE);
    let stretches = Stretches::new(&log.steps);
    let (then, now) = (stretches.at(*step)?, stretches.last()?);
    let overfits = worse(*before) && worse(*last) && now < then * (1.0 - WORSE);
    let why = format!(
        "the validation loss was {} then and is {} now, while the training loss fell from {} to {} ({})",
        text(*best),
        text(*last),
        text(then),
        text(now),
        stretches.medians()
    );
    overfits.then(|| (Kind::Overfitting, format!("Overfitting since step {step}"), why))
}

/// The loss spikes repeatedly.
fn spiking(steps: &[StepLine]) -> Option<Found> {
    let late = &steps[steps.len() - (steps.len() / 5).max(OF_LATE).min(steps.len())..];
    let spikes = late.iter().filter(|step| step.loss_z >= SPIKE || !step.loss.is_finite()).count();
    let why = format!("the loss jumped {spikes} times in the last {} steps", late.len());
    (spikes >= SPIKES.max(late.len() / ONE_IN)).then(|| (Kind::Spiking, "Spiking".to_owned(), why))
}

fn healthy(log: &Log) -> Found {
    let stretches = Stretches::new(&log.steps);
    let (first, now) = (stretches.first().unwrap_or(f64::NAN), stretches.last().unwrap_or(f64::NAN));
    let course = if now < first * (1.0 - WORSE) { "fell" } else { "went" };
    let why = format!("the loss {course} from {} to {} ({})", text(first), text(now), stretches.medians());
    (Kind::Healthy, "Healthy".to_owned(), why)
}

/// The first step and the median loss of each stretch, and the number of steps per stretch.
struct Stretches(Vec<(u64, f64)>, usize);

impl Stretches {
    fn new(steps: &[StepLine]) -> Self {
        let len = (steps.len() / STRETCHES).max(STRETCH);
        // The last stretch is complete, so it is as significant as the others.
        let stretches = steps.rchunks(len).rev().filter(|steps| 2 * steps.len() >= len);
        let middle = |steps: &[StepLine]| Some((steps[0].step, median(steps.iter().map(|step| step.loss))?));
        Self(stretches.filter_map(middle).collect(), len)
    }

    fn first(&self) -> Option<f64> {
        self.0.first().map(|(_, loss)| *loss)
    }

    fn last(&self) -> Option<f64> {
        self.0.last().map(|(_, loss)| *loss)
    }

    /// Describes the values of the stretches.
    fn medians(&self) -> String {
        format!("medians of {} steps", self.1)
    }

    fn best(&self) -> Option<f64> {
        self.0.iter().map(|(_, loss)| *loss).min_by(f64::total_cmp)
    }

    /// The loss of the stretch that contains a step.
    fn at(&self, step: u64) -> Option<f64> {
        let after = self.0.partition_point(|(first, _)| *first <= step);
        self.0.get(after.saturating_sub(1)).map(|(_, loss)| *loss)
    }
}

/// Three digits, as in 1.87, 0.0123 and 11.3.
fn text(loss: f64) -> String {
    let decimals = if loss > 0.0 { (2.0 - loss.log10().floor()).clamp(0.0, 6.0) } else { 2.0 };
    format!("{loss:.0$}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Line;
    use std::collections::BTreeMap;

    /// A log of steps with the given losses and, if `every` is positive, a validation every so often.
    fn run(steps: usize, loss: impl Fn(usize) -> f64, every: usize, val_loss: impl Fn(usize) -> f64) -> Log {
        let mut log = Log::default();
        for step in 1..=steps {
            // Noise that is the same in each test.
            let noise = ((step * 7919) % 101) as f64 / 101.0 - 0.5;
            let line = match loss(step) {
                loss if loss.is_finite() => format!("{{\"step\":{step},\"loss\":{}}}", loss + 0.1 * noise),
                _ => format!("{{\"step\":{step},\"loss\":null,\"skipped\":true}}"),
            };
            log.add(Line::parse(&line).unwrap().unwrap());
            if every > 0 && step % every == 0 {
                log.add(Line::Validation { step: step as u64, loss: val_loss(step), of_sets: BTreeMap::new() });
            }
        }
        log
    }

    fn falling(step: usize) -> f64 {
        1.5 + 4.0 * (-(step as f64) / 60.0).exp()
    }

    fn verdict(log: &Log) -> (Kind, String, String) {
        let Verdict { kind, title, why, .. } = Verdict::new(log, Some(1000), State::Running);
        (kind, title, why)
    }

    #[test]
    fn a_loss_that_falls_is_healthy() {
        let (kind, title, why) = verdict(&run(400, falling, 50, |step| falling(step) + 0.1));
        assert_eq!(
            (kind, &title[..], &why[..]),
            (Kind::Healthy, "Healthy", "the loss fell from 5.12 to 1.51 (medians of 10 steps)")
        );
        let (kind, _, why) = verdict(&run(400, |_| 5.5, 0, falling));
        assert_eq!((kind, &why[..]), (Kind::Healthy, "the loss went from 5.49 to 5.50 (medians of 10 steps)"));
        // A validation slightly worse than the best does not mean overfitting.
        let noisy = run(400, falling, 50, |step| 2.0 + if step == 200 { -0.015 } else { 0.0 });
        assert_eq!(verdict(&noisy).0, Kind::Healthy);
    }

    #[test]
    fn a_few_steps_say_little() {
        assert_eq!(verdict(&run(19, falling, 0, falling)).0, Kind::Early);
        assert_eq!(verdict(&run(20, falling, 0, falling)).0, Kind::Healthy);
        assert_eq!(verdict(&Log::default()).0, Kind::Early);
    }

    #[test]
    fn a_validation_loss_that_rises_while_the_loss_falls_is_overfitting() {
        let val_loss = |step: usize| 2.0 + (step as f64 - 200.0).abs() / 400.0;
        let (kind, title, why) = verdict(&run(400, falling, 50, val_loss));
        assert_eq!((kind, &title[..]), (Kind::Overfitting, "Overfitting since step 200"));
        assert_eq!(
            why,
            "the validation loss was 2.00 then and is 2.50 now, while the training loss fell from 1.66 to 1.51 (medians of 10 steps)"
        );
        assert_eq!(verdict(&run(250, falling, 50, val_loss)).0, Kind::Healthy, "one validation may be chance");
        let level = run(400, |step| falling(step.min(200)), 50, val_loss);
        assert_eq!(verdict(&level).0, Kind::Healthy, "what rises there is not what the model learns by heart");
    }

    #[test]
    fn a_loss_that_lost_half_of_its_gain_has_diverged() {
        let (kind, title, why) = verdict(&run(400, |step| if step > 300 { 4.5 } else { falling(step) }, 0, falling));
        assert_eq!((kind, &title[..]), (Kind::Diverged, "Diverged since step 301"));
        assert_eq!(why, "the loss is 4.50 now, after 1.53 at best and 5.12 at the start (medians of 10 steps)");
        let some = run(400, |step| if step > 300 { 2.5 } else { falling(step) }, 0, falling);
        assert_eq!(verdict(&some).0, Kind::Healthy);
        let back = run(400, |step| if step > 200 && step < 300 { 4.5 } else { falling(step) }, 0, falling);
        assert_eq!(verdict(&back).0, Kind::Healthy, "it came back");
        assert_eq!(
            verdict(&run(100, |step| 3.0 + step as f64 / 100.0, 0, falling)).0,
            Kind::Diverged,
            "only ever worse"
        );
    }

    #[test]
    fn a_loss_that_is_no_number_has_diverged_however_few_the_steps() {
        let (kind, title, _) = verdict(&run(12, |step| if step > 3 { f64::NAN } else { 5.0 }, 0, falling));
        assert_eq!((kind, &title[..]), (Kind::Diverged, "Diverged since step 4"));
        assert_eq!(verdict(&run(5, |_| f64::NAN, 0, falling)).1, "Diverged since step 1");
        assert_eq!(verdict(&run(40, falling, 40, |_| f64::NAN)).1, "Diverged since step 40");
        let mut skipped = run(40, falling, 0, falling);
        skipped.steps[30..].iter_mut().for_each(|step| step.skipped = true);
        assert_eq!(verdict(&skipped).1, "Diverged since step 31");
        skipped.steps[39].skipped = false;
        assert_eq!(verdict(&skipped).0, Kind::Healthy);
    }

    #[test]
    fn spikes_count_where_they_are_many_and_late() {
        let spiking = |steps: usize, spikes: &[usize]| {
            let mut log = run(steps, falling, 0, falling);
            spikes.iter().for_each(|&at| log.steps[at].loss_z = 6.0);
            verdict(&log)
        };
        let (kind, title, why) = spiking(400, &[100, 200, 300]);
        assert_eq!((kind, &title[..]), (Kind::Spiking, "Spiking"));
        assert_eq!(why, "the loss jumped 3 times in the last 400 steps");
        assert_eq!(spiking(400, &[100, 200]).0, Kind::Healthy);
        assert_eq!(spiking(4000, &[100, 200, 300]).0, Kind::Healthy, "long ago");
        assert_eq!(spiking(10_000, &[9000, 9300, 9600]).0, Kind::Healthy, "rare");
    }

    #[test]
    fn a_run_without_new_lines_has_stopped() {
        let mut log = run(100, falling, 0, falling);
        log.seconds = (1..=100).map(|step| f64::from(step) * 0.1).collect();
        let state = |log: &Log, planned, silent| State::new(log, planned, Some(silent));
        assert_eq!(state(&log, Some(100), 1e6), State::Finished);
        assert_eq!(state(&log, Some(101), 59.0), State::Running);
        assert_eq!(state(&log, Some(101), 61.0), State::Stopped);
        log.seconds.iter_mut().for_each(|seconds| *seconds *= 100.0);
        assert_eq!(state(&log, None, 199.0), State::Running, "its steps are long");
        assert_eq!(state(&Log::default(), Some(9), 1e6), State::Waiting);

        let told = |log| {
            let verdict = Verdict::new(log, Some(600), State::Stopped);
            (verdict.kind, verdict.title, verdict.why)
        };
        let (kind, title, why) = told(&log);
        assert_eq!((kind, &title[..]), (Kind::Stopped, "Stopped after step 100 of 600"));
        assert_eq!(why, "healthy until then: the loss fell from 5.12 to 2.32 (medians of 10 steps)");
        let bad = run(40, |step| if step > 20 { f64::NAN } else { 5.0 }, 0, falling);
        assert_eq!(told(&bad).0, Kind::Diverged, "which says more");

        log.events.push((90, "ended early after step 90: 3 validations without a lower loss".into()));
        assert_eq!(state(&log, Some(600), 1e6), State::Stopped, "it went on since");
        log.events.push((100, "ended early after step 100: 3 validations without a lower loss".into()));
        assert_eq!(state(&log, Some(600), 1e6), State::Finished);
    }
}
