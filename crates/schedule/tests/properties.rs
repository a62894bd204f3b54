//! Properties of every schedule's programs over varying stages, chunks, micro-batches and costs.

use proptest::prelude::*;
use schedule::{Action, Cell, Links, Pipeline, Schedule, ScheduleError, Ticks, partition, simulate};
use std::collections::HashMap;

/// Generates any valid pipeline, including those with more stages than micro-batches.
fn pipelines() -> impl Strategy<Value = Pipeline> {
    (prop::sample::select(&Schedule::ALL), 1usize..9, 2usize..5, 1usize..20).prop_map(
        |(schedule, stages, chunks, micro_batches)| {
            let chunks = if schedule == Schedule::Interleaved1F1B { chunks } else { schedule.default_virtual_stages() };
            Pipeline::new(schedule, stages, chunks, micro_batches).unwrap()
        },
    )
}

fn ticks() -> impl Strategy<Value = Ticks> {
    (1u64..20, 1u64..20, 1u64..20).prop_map(|(forward, input, weights)| Ticks { forward, input, weights })
}

/// Returns a pseudo-random duration below 30, the same for the same seed, stage and action.
fn noise(seed: u64, stage: usize, action: Action) -> u64 {
    let text = format!("{seed} {stage} {action}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) % 30
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Durations, latency and mailbox slots vary, down to one slot per mailbox: only the order matters.
    #[test]
    fn every_program_comes_to_its_end(pipeline in pipelines(), seed: u64, latency in 0u64..40, slots in 1usize..3) {
        let takes = |stage, action| noise(seed, stage, action);
        let timeline = simulate(&pipeline, &pipeline.program(), &takes, Links { latency, slots });
        prop_assert!(timeline.is_ok(), "{:?}: {}", pipeline, timeline.unwrap_err());
    }

    #[test]
    fn each_micro_batch_goes_through_each_chunk_once_there_and_back(pipeline in pipelines()) {
        let mut counts = HashMap::<Action, usize>::new();
        for (stage, actions) in pipeline.program().into_iter().enumerate() {
            for action in &actions {
                if let Some(cell) = action.computes() {
                    prop_assert_eq!(pipeline.stage_of(cell.chunk), stage);
                }
                *counts.entry(*action).or_default() += 1;
            }
        }
        let once = |action| counts.get(&action) == Some(&1);
        for chunk in 0..pipeline.chunks() {
            for micro_batch in 0..pipeline.micro_batches() {
                let cell = Cell { chunk, micro_batch };
                let [whole, input, weights] =
                    [Action::Backward, Action::BackwardInput, Action::BackwardWeights].map(|of| once(of(cell)));
                prop_assert!(once(Action::Forward(cell)) && whole != input && input == weights);
                prop_assert_eq!(input, pipeline.schedule().splits_backward());
            }
        }
        let computations = counts.keys().filter(|action| action.computes().is_some()).count();
        let each = if pipeline.schedule().splits_backward() { 3 } else { 2 };
        prop_assert_eq!(computations, each * pipeline.chunks() * pipeline.micro_batches());
    }

    #[test]
    fn a_forward_alone_goes_through_all_chunks(pipeline in pipelines(), micro_batches in 1usize..20, seed: u64) {
        let programs: Vec<_> = (0..pipeline.stages()).map(|stage| pipeline.forward_of(stage, micro_batches)).collect();
        let timeline = simulate(&pipeline, &programs, &|stage, action| noise(seed, stage, action), Links::FREE);
        prop_assert!(timeline.is_ok(), "{:?}: {}", pipeline, timeline.unwrap_err());
        let forwards = programs.iter().flatten().filter(|action| matches!(action, Action::Forward(_))).count();
        prop_assert_eq!(forwards, pipeline.chunks() * micro_batches);
    }

    /// Compares the result with all possible splits: none has a cheaper most expensive part, or an equally cheap one
    /// and a smaller sum of squares.
    #[test]
    fn things_are_dealt_as_evenly_as_can_be(costs in prop::collection::vec(0u32..9, 1..9), places in 1usize..5) {
        let places = places.min(costs.len());
        let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
        let counts = partition(&costs, places);
        prop_assert_eq!((counts.len(), counts.iter().sum::<usize>()), (places, costs.len()));
        prop_assert!(counts.iter().all(|count| *count > 0));
        /// Returns the cost of the most expensive part and the sum of squared costs.
        fn evenness(costs: &[f64], counts: &[usize]) -> (f64, f64) {
            let (mut rest, mut most, mut squares) = (costs, 0.0f64, 0.0);
            for count in counts {
                let (place, after) = rest.split_at(*count);
                let sum: f64 = place.iter().sum();
                (rest, most, squares) = (after, most.max(sum), squares + sum * sum);
            }
            (most, squares)
        }
        fn ways(things: usize, places: usize) -> Vec<Vec<usize>> {
            if places == 1 {
                return vec![vec![things]];
            }
            let with = |first: usize| ways(things - first, places - 1).into_iter().map(move |rest| [vec![first], rest].concat());
            (1..=things - (places - 1)).flat_map(with).collect()
        }
        let all = ways(costs.len(), places).into_iter().map(|way| evenness(&costs, &way));
        let best = all.min_by(|a, b| a.partial_cmp(b).unwrap()).unwrap();
        prop_assert_eq!(evenness(&costs, &counts), best);
    }

    #[test]
    fn no_more_is_alive_than_the_schedule_says(pipeline in pipelines(), ticks in ticks()) {
        let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
        let many = pipeline.micro_batches() >= 2 * pipeline.stages();
        for stage in 0..pipeline.stages() {
            let (live, most) = (timeline.live(stage), pipeline.live(stage));
            prop_assert!(live <= most, "stage {stage} of {pipeline:?}: {live} instead of {most}");
            prop_assert!(live == most || !many, "stage {stage} of {pipeline:?}: only {live} of {most}");
        }
    }

    #[test]
    fn the_bubble_is_the_closed_forms(pipeline in pipelines(), ticks in ticks(), even: bool) {
        let ticks = if even { Ticks { input: ticks.forward, weights: ticks.forward, ..ticks } } else { ticks };
        let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
        if let Some(bubble) = pipeline.bubble(ticks) {
            for stage in 0..pipeline.stages() {
                prop_assert_eq!(timeline.bubble(stage), bubble, "stage {} of {:?} with {:?}", stage, pipeline, ticks);
            }
        }
    }
}

#[test]
fn a_zero_bubble_is_a_third_of_the_bubble_of_1f1b_and_in_a_v_a_sixth() {
    let ticks = |forward, input, weights| Ticks { forward, input, weights };
    let bubble = |schedule: Schedule, ticks| {
        Pipeline::new(schedule, 4, schedule.default_virtual_stages(), 8).unwrap().bubble(ticks).unwrap()
    };
    assert_eq!(bubble(Schedule::OneFOneB, ticks(2, 2, 2)), 18);
    assert_eq!(bubble(Schedule::ZeroBubble, ticks(2, 2, 2)), 6);
    // Each chunk has half the layers.
    assert_eq!(bubble(Schedule::Interleaved1F1B, ticks(1, 1, 1)), 9);
    assert_eq!(bubble(Schedule::ZbV, ticks(1, 1, 1)), 3);
}

/// Covers what the papers leave out: unequal costs, for which ZB-V has no closed form.
#[test]
fn zb_v_with_unequal_costs_is_what_others_have_simulated() {
    let pipeline = Pipeline::new(Schedule::ZbV, 4, 2, 16).unwrap();
    for ((forward, input, weights), bubble) in [((10, 12, 2), 60), ((10, 10, 4), 36)] {
        let ticks = Ticks { forward, input, weights };
        assert_eq!(pipeline.bubble(ticks), None);
        let timeline = simulate(&pipeline, &pipeline.program(), &|_, action| ticks.of(action), Links::FREE).unwrap();
        assert_eq!((0..4).map(|stage| timeline.bubble(stage)).max(), Some(bubble));
    }
}

#[test]
fn programs_that_are_wrong_are_found() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 2, 1, 2).unwrap();
    let run = |program: &[Vec<Action>]| simulate(&pipeline, program, &|_, _| 1, Links::FREE);
    let good = pipeline.program();
    assert!(run(&good).is_ok());

    let without = |stage: usize, which: fn(&Action) -> bool| {
        let mut program = good.clone();
        let at = program[stage].iter().position(which).unwrap();
        program[stage].remove(at);
        program
    };
    assert!(matches!(
        run(&without(0, |action| matches!(action, Action::Send(..)))),
        Err(ScheduleError::OtherMessage { stage: 1, .. })
    ));
    let unsent = run(&without(1, |action| matches!(action, Action::Send(..)))).unwrap_err();
    assert!(matches!(unsent, ScheduleError::OtherMessage { stage: 0, .. }), "{unsent}");
    assert!(matches!(
        run(&without(1, |action| matches!(action, Action::Recv(..)))),
        Err(ScheduleError::Early { stage: 1, .. })
    ));
    let mut twice = good.clone();
    let forward = Action::Forward(Cell { chunk: 0, micro_batch: 0 });
    twice[0].insert(2, forward);
    assert_eq!(run(&twice).unwrap_err(), ScheduleError::Early { stage: 0, action: forward });

    // The first stage waits for the gradient of an activation that it has not sent.
    let alone = Pipeline::new(Schedule::OneFOneB, 2, 1, 1).unwrap();
    let mut stuck = alone.program();
    stuck[0].swap(1, 2);
    let stuck = simulate(&alone, &stuck, &|_, _| 1, Links::FREE);
    let Err(ScheduleError::Deadlock(waiting)) = stuck else { panic!("no deadlock") };
    assert_eq!(waiting.len(), 2);
}

#[test]
fn sizes_that_do_not_go_together_are_refused_with_what_would_do() {
    let message =
        |schedule, chunks, micro_batches| Pipeline::new(schedule, 4, chunks, micro_batches).unwrap_err().to_string();
    assert!(message(Schedule::OneFOneB, 2, 8).contains("1f1b has one chunk per stage, not 2: take interleaved_1f1b"));
    assert!(message(Schedule::Interleaved1F1B, 1, 8).contains("at least two chunks per stage, not 1"));
    assert!(message(Schedule::ZbV, 3, 8).contains("two chunks per stage, not 3"));
    assert!(message(Schedule::Gpipe, 1, 0).contains("4 stages and 0 micro-batches"));
}
