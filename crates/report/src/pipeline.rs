//! A step of a pipeline as a timeline: its schedule, simulated with the measured compute time of the stages.

use crate::config::{self, Entries};
use crate::lines::{Setup, StageSeconds};
use crate::series::{Rounded, median};
use schedule::{Action, Links, Pipeline, Schedule, Ticks, Timeline, simulate};
use serde::Serialize;

/// Maximum number of actions drawn. If there are more, fewer micro-batches represent all of them.
const ACTIONS: usize = 6000;
/// Time units that the slowest stage computes in a step.
const TICKS: f64 = 1e6;
/// Without measurements: a backward takes as long for the input as for the weights, and each as long as a forward.
const EQUAL: Ticks = Ticks { forward: 1, input: 1, weights: 1 };

/// When each stage does what in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PipelineStep {
    pub schedule: &'static str,
    /// Micro-batches in a step, and how many of them are drawn.
    pub micro_batches: usize,
    pub drawn: usize,
    /// Chunks per stage.
    pub chunks: usize,
    /// When the last stage is done.
    pub end: u64,
    /// Seconds per time unit. None if nothing was measured; then all stages take equally long.
    pub tick: Option<Rounded>,
    pub stages: Vec<Vec<Done>>,
    /// Fraction of the step that each stage waits.
    pub waits: Vec<Rounded>,
}

/// Kind (`F`, `B`, or `I` and `W` of a split backward), chunk, micro-batch, start and end.
type Done = (char, usize, usize, u64, u64);

impl PipelineStep {
    /// The step of a run with several stages, according to its configuration. `measured` is each stage's compute time,
    /// if known.
    pub fn new(config: &Entries, setup: Option<&Setup>, measured: &[StageSeconds]) -> Option<Self> {
        let given = |key| config::get(config, key);
        let count = |key| given(key)?.parse::<usize>().ok().filter(|count| *count > 0);
        let told = |of: fn(&Setup) -> Option<u64>| setup.and_then(of).and_then(|count| usize::try_from(count).ok());
        let stages = count("parallel.pp").filter(|stages| *stages > 1)?;
        let name = given("parallel.schedule").unwrap_or(Schedule::default().name());
        let schedule = Schedule::ALL.into_iter().find(|schedule| schedule.name() == name)?;
        let chunks = count("parallel.virtual_stages").unwrap_or(schedule.default_virtual_stages());
        let apart = stages.checked_mul(count("parallel.cp").unwrap_or(1))?;
        let apart = apart.checked_mul(count("parallel.tp").unwrap_or(1))?;
        let ranks = told(|setup| setup.ranks).or(count("parallel.gpus"))?;
        let rows = told(|setup| setup.global_batch_size).or(count("train.global_batch_size"))?;
        let at_once = told(|setup| setup.micro_batch_size).or(count("train.micro_batch_size"))?;
        let micro_batches = rows.div_ceil(at_once.max(1).checked_mul((ranks / apart).max(1))?).max(1);

        let of_a_micro_batch = stages.checked_mul(chunks)?.checked_mul(3)?;
        let drawn = micro_batches.min(ACTIONS / of_a_micro_batch);
        let pipeline = Pipeline::new(schedule, stages, chunks, drawn).ok()?;
        let slowest = measured.iter().map(|of| of.computing).fold(0.0, f64::max);
        let is_measured = measured.len() == stages && measured.iter().all(|of| of.computing > 0.0);
        let takes = |stage: usize, action: Action| {
            let units = EQUAL.of(action);
            if !is_measured || units == 0 {
                return units;
            }
            let share = measured[stage].computing / slowest;
            let unit = TICKS * share / (micro_batches * chunks) as f64 / EQUAL.all() as f64;
            (unit.round() as u64).max(1) * units
        };
        let timeline = simulate(&pipeline, &pipeline.program(), &takes, Links::FREE).ok()?;
        Some(Self {
            schedule: schedule.name(),
            micro_batches,
            drawn,
            chunks,
            end: timeline.end(),
            tick: is_measured.then_some(Rounded(slowest / TICKS)),
            stages: timeline.stages().iter().map(|events| done(events)).collect(),
            waits: (0..stages).map(|stage| waits(&timeline, stage)).collect(),
        })
    }
}

fn done(events: &[schedule::Event]) -> Vec<Done> {
    let computed = events.iter().filter_map(|event| {
        let kind = match event.action {
            Action::Forward(_) => 'F',
            Action::Backward(_) => 'B',
            Action::BackwardInput(_) => 'I',
            Action::BackwardWeights(_) => 'W',
            Action::Send(..) | Action::Recv(..) => return None,
        };
        let cell = event.action.computes()?;
        Some((kind, cell.chunk, cell.micro_batch, event.start, event.end))
    });
    computed.collect()
}

fn waits(timeline: &Timeline, stage: usize) -> Rounded {
    Rounded(timeline.bubble(stage) as f64 / timeline.end() as f64)
}

/// The median times of each stage, over the steps that had as many stages as the last one.
pub(crate) fn medians(told: &[(u64, Vec<StageSeconds>)]) -> Vec<StageSeconds> {
    let stages = told.last().map_or(0, |(_, stages)| stages.len());
    let alike = || told.iter().map(|(_, of)| of).filter(|of| of.len() == stages);
    let middle = |of: &dyn Fn(&Vec<StageSeconds>) -> f64| median(alike().map(of)).unwrap_or(f64::NAN);
    let stage = |stage: usize| StageSeconds {
        computing: middle(&|of| of[stage].computing),
        waiting: middle(&|of| of[stage].waiting),
    };
    (0..stages).map(stage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(entries: &[(&str, &str)]) -> Entries {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn seconds(computing: &[f64]) -> Vec<StageSeconds> {
        computing.iter().map(|&computing| StageSeconds { computing, waiting: 1.0 }).collect()
    }

    const TWO_STAGES: [(&str, &str); 6] = [
        ("parallel.pp", "2"),
        ("parallel.gpus", "8"),
        ("parallel.tp", "2"),
        ("parallel.schedule", "gpipe"),
        ("train.global_batch_size", "12"),
        ("train.micro_batch_size", "3"),
    ];

    #[test]
    fn a_step_is_the_schedules_time_line() {
        let step = PipelineStep::new(&config(&TWO_STAGES), None, &[]).unwrap();
        // Two groups of ranks share 12 rows, 3 at a time.
        assert_eq!((step.micro_batches, step.drawn, step.chunks, step.end, step.tick), (2, 2, 1, 9, None));
        assert_eq!(step.stages[0], [('F', 0, 0, 0, 1), ('F', 0, 1, 1, 2), ('B', 0, 0, 5, 7), ('B', 0, 1, 7, 9)]);
        // (p - 1)(f + b) out of m (f + b) + (p - 1)(f + b).
        assert_eq!(step.waits, [Rounded(3.0 / 9.0); 2]);
        let setup = Setup { micro_batch_size: Some(1), ..Setup::default() };
        assert_eq!(PipelineStep::new(&config(&TWO_STAGES), Some(&setup), &[]).unwrap().micro_batches, 6);
        assert_eq!(PipelineStep::new(&config(&TWO_STAGES[1..]), None, &[]), None, "one stage has no schedule");
    }

    #[test]
    fn a_stage_takes_what_was_measured_of_it() {
        let step = PipelineStep::new(&config(&TWO_STAGES), None, &seconds(&[6.0, 3.0])).unwrap();
        let took = |stage: usize| step.stages[stage].iter().map(|(.., start, end)| end - start).sum::<u64>() as f64;
        let tick = step.tick.unwrap().0;
        assert!((took(0) * tick - 6.0).abs() < 1e-4 && (took(1) * tick - 3.0).abs() < 1e-4, "{step:?}");
        assert_eq!(
            PipelineStep::new(&config(&TWO_STAGES), None, &seconds(&[6.0])).unwrap().tick,
            None,
            "of other stages"
        );
    }

    #[test]
    fn medians_are_of_as_many_stages() {
        let told =
            [(1, seconds(&[9.0])), (2, seconds(&[1.0, 2.0])), (3, seconds(&[5.0, 4.0])), (4, seconds(&[2.0, 3.0]))];
        assert_eq!(medians(&told), seconds(&[2.0, 3.0]));
        assert_eq!(medians(&[]), []);
    }

    proptest! {
        #[test]
        fn whatever_a_configuration_says_the_drawing_is_small(
            sizes in prop::collection::vec(prop_oneof![4 => 0..70usize, 1 => Just(usize::MAX), 1 => 0..100_000usize], 7),
            schedule in 0..Schedule::ALL.len(),
            computing in prop::collection::vec(prop_oneof![Just(0.0), Just(f64::NAN), Just(1e300), 1e-300..1e9], 0..5),
        ) {
            let keys = ["parallel.pp", "parallel.virtual_stages", "parallel.gpus", "parallel.tp", "parallel.cp",
                "train.global_batch_size", "train.micro_batch_size"];
            let texts: Vec<_> = sizes.iter().map(usize::to_string).collect();
            let mut entries: Vec<_> = keys.into_iter().zip(texts.iter().map(String::as_str)).collect();
            entries.push(("parallel.schedule", Schedule::ALL[schedule].name()));
            if let Some(step) = PipelineStep::new(&config(&entries), None, &seconds(&computing)) {
                prop_assert!(step.stages.iter().map(Vec::len).sum::<usize>() <= ACTIONS);
                prop_assert!(step.waits.iter().all(|share| (0.0..1.0).contains(&share.0)));
            }
        }
    }
}
