//! Marks in the plots: events of the run, and values far above the preceding ones.

use crate::lines::StepLine;
use crate::log::{Log, RESUMED, SAVED};
use crate::series::Rounded;
use serde::Serialize;
use std::collections::BTreeSet;

/// Standard deviations above recent steps at which a loss or gradient norm is marked.
pub(crate) const SPIKE: f64 = 4.0;
/// Maximum number of spikes of a run in a plot: more would hide the curve.
const SPIKES: usize = 100;
/// Maximum number of marks of a kind.
const MARKS: usize = 500;

/// An event after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mark {
    pub step: u64,
    pub kind: Kind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Save,
    Resume,
    Skip,
    Other,
}

/// A value far above those before it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spike {
    pub step: u64,
    pub value: Rounded,
    pub z: Rounded,
}

/// The run's events and skipped steps, by step. If a kind has too many, only the last ones.
pub(crate) fn marks(log: &Log) -> Vec<Mark> {
    let told = log.events.iter().map(|(step, text)| {
        let (kind, text) = match text {
            text if text.starts_with(SAVED) => (Kind::Save, without_folders(text)),
            text if text.starts_with(RESUMED) => (Kind::Resume, without_folders(text)),
            text if text.starts_with("skipped: ") => (Kind::Skip, text.clone()),
            text => (Kind::Other, text.clone()),
        };
        Mark { step: *step, kind, text }
    });
    let mut marks: Vec<_> = told.collect();
    let told_skips: BTreeSet<_> = marks.iter().filter(|mark| mark.kind == Kind::Skip).map(|mark| mark.step).collect();
    let skipped = log.steps.iter().filter(|step| step.skipped && !told_skips.contains(&step.step));
    let text = "skipped: the parameters are unchanged";
    marks.extend(skipped.map(|step| Mark { step: step.step, kind: Kind::Skip, text: text.into() }));
    marks.sort_by_key(|mark| (mark.kind, mark.step));
    let of_kind = marks.chunk_by(|a, b| a.kind == b.kind).map(|marks| &marks[marks.len().saturating_sub(MARKS)..]);
    let mut marks = of_kind.collect::<Vec<_>>().concat();
    marks.sort_by_key(|mark| mark.step);
    marks
}

/// `saved runs/a/checkpoints/step-7` -> `saved step-7`.
fn without_folders(text: &str) -> String {
    let words = text.split(' ').map(|word| word.trim_end_matches('/').rsplit('/').next().unwrap_or(word));
    words.collect::<Vec<_>>().join(" ")
}

/// The steps far above those before them. If there are too many, the most extreme ones.
pub(crate) fn spikes(steps: &[StepLine], of: fn(&StepLine) -> (f64, f64)) -> Vec<Spike> {
    let spike = |step: &StepLine| {
        let (value, z) = of(step);
        (z >= SPIKE && value.is_finite()).then_some(Spike { step: step.step, value: Rounded(value), z: Rounded(z) })
    };
    let mut spikes: Vec<_> = steps.iter().filter_map(spike).collect();
    spikes.sort_by(|a, b| b.z.0.total_cmp(&a.z.0));
    spikes.truncate(SPIKES);
    spikes.sort_by_key(|spike| spike.step);
    spikes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_skipped_steps_have_their_kinds() {
        let lines = [
            r#"{"step":1,"loss":5,"skipped":true}"#,
            r#"{"step":2,"loss":5,"skipped":true}"#,
            r#"{"step":2,"event":"skipped: gradients beyond fp16"}"#,
            r#"{"step":2,"event":"saved runs/a b/checkpoints/step-2"}"#,
            r#"{"step":2,"event":"resumed from runs/a/checkpoints/step-2 on 2 ranks"}"#,
            r#"{"step":2,"event":"a/b happened"}"#,
        ];
        let marks = marks(&Log::of(&lines));
        let kinds: Vec<_> = marks.iter().map(|mark| (mark.step, mark.kind)).collect();
        assert_eq!(kinds, [(1, Kind::Skip), (2, Kind::Save), (2, Kind::Resume), (2, Kind::Skip), (2, Kind::Other)]);
        let texts: Vec<_> = marks.iter().skip(2).map(|mark| mark.text.as_str()).collect();
        assert_eq!(texts, ["resumed from step-2 on 2 ranks", "skipped: gradients beyond fp16", "a/b happened"]);
        assert!(marks[0].text.starts_with("skipped: ") && marks[1].text.ends_with(" step-2"), "{marks:?}");
    }

    #[test]
    fn many_saves_leave_room_for_a_resume() {
        let saves: Vec<_> =
            (1..2000).map(|step| format!("{{\"step\":{step},\"event\":\"saved step-{step}\"}}")).collect();
        let mut lines = vec![r#"{"step":7,"event":"resumed from step-7 on 1 rank"}"#];
        lines.extend(saves.iter().map(String::as_str));
        let marks = marks(&Log::of(&lines));
        assert_eq!(marks.len(), MARKS + 1);
        assert_eq!((marks[0].kind, marks[1].step), (Kind::Resume, 1500));
    }
}
