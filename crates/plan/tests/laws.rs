//! Laws of the simulation: closed forms of pipelines, and what overlaps.

use plan::{Exchange, PlanError, RankProgram, SharedCores, Summary, Task, simulate};
use proptest::prelude::*;
use schedule::{CallOutline, Kind, Op, Outline, Pipeline, Place, Prefetch, Schedule, Ticks, lower};

/// An outline of one call per chunk, each of a unit of its own.
fn outline(chunks: usize, calls_per_chunk: usize, gathers: bool, prefetch: Prefetch) -> Outline {
    let call = |unit| CallOutline { unit, gathers, gathers_again: true, recomputes: false, owner: None };
    Outline {
        calls: (0..chunks * calls_per_chunk).map(call).collect(),
        chunks: (0..chunks).map(|chunk| chunk * calls_per_chunk..(chunk + 1) * calls_per_chunk).collect(),
        keeps_gathered: false,
        reduces_once: false,
        forward_prefetch: prefetch,
        backward_prefetch: prefetch,
    }
}

/// The ranks of a pipeline, one per stage, with these seconds per run and per exchange.
fn steps(outline: &Outline, pipeline: &Pipeline, compute: &dyn Fn(Kind) -> f64, exchange: f64) -> Vec<RankProgram> {
    let task = |op: Op| Task {
        compute: if let Op::Run { kind, .. } = op { compute(kind) } else { 0.0 },
        copies: None,
        exchanges: match op {
            Op::Gather { .. } | Op::Reduce { .. } => vec![Exchange { axes: "dp_shard".into(), seconds: exchange }],
            _ => vec![],
        },
        op,
    };
    let step = |stage| RankProgram {
        stage,
        rank: stage,
        ranks: 1,
        tasks: lower(outline, pipeline, Place { stage, rank: stage }).into_iter().map(task).collect(),
    };
    (0..pipeline.stages()).map(step).collect()
}

fn of_ticks(ticks: Ticks) -> impl Fn(Kind) -> f64 {
    move |kind| match kind {
        Kind::Forward(_) | Kind::Recompute => ticks.forward as f64,
        Kind::Backward => (ticks.input + ticks.weights) as f64,
        Kind::Input => ticks.input as f64,
        Kind::Weights => ticks.weights as f64,
    }
}

fn summary(steps: &[RankProgram], cores: Option<usize>) -> Summary {
    simulate(steps, cores.map(|of_node| SharedCores { of_node, nodes: 1 })).unwrap().summary()
}

fn schedules() -> impl Strategy<Value = (Schedule, usize)> {
    prop_oneof![
        Just((Schedule::Gpipe, 1)),
        Just((Schedule::OneFOneB, 1)),
        (2..4_usize).prop_map(|virtual_stages| (Schedule::Interleaved1F1B, virtual_stages)),
        Just((Schedule::ZeroBubble, 1)),
        Just((Schedule::ZbV, 2)),
    ]
}

proptest! {
    /// Where a schedule's bubble has a closed form, the simulation finds it. The bubble is the same on all stages.
    #[test]
    fn bubbles_are_those_of_the_closed_forms(
        (schedule, virtual_stages) in schedules(), stages in 1..5_usize, more in 0..3_usize,
        forward in 1..4_u64, input in 1..4_u64, weights in 1..4_u64,
    ) {
        let micro_batches = (2 * stages).saturating_sub(1).max(stages) + more * stages;
        let pipeline = Pipeline::new(schedule, stages, virtual_stages, micro_batches).unwrap();
        let ticks = Ticks { forward, input, weights };
        let Some(bubble) = pipeline.bubble(ticks) else { return Ok(()) };
        let outline = outline(pipeline.chunks(), 1, false, Prefetch::None);
        let found = summary(&steps(&outline, &pipeline, &of_ticks(ticks), 0.0), None);
        prop_assert!((found.bubble - bubble as f64).abs() < 1e-6, "{found:?}, and the closed form is {bubble}");
    }

    /// The parts of a step add up to it, and it takes at least what any rank computes.
    #[test]
    fn parts_add_up(
        (schedule, virtual_stages) in schedules(), stages in 1..4_usize, micro_batches in 1..7_usize,
        exchange in 0.0..3.0_f64, gathers: bool, shared: bool,
    ) {
        let Ok(pipeline) = Pipeline::new(schedule, stages, virtual_stages, micro_batches) else { return Ok(()) };
        let outline = outline(pipeline.chunks(), 2, gathers, Prefetch::Pre);
        let ticks = Ticks { forward: 1, input: 1, weights: 1 };
        let found = summary(&steps(&outline, &pipeline, &of_ticks(ticks), exchange), shared.then_some(1));
        let exposed: f64 = found.exposed.iter().map(|(_, seconds)| seconds).sum();
        prop_assert!((found.step - found.compute - found.bubble - exposed).abs() < 1e-6, "{found:?}");
        let computes = (micro_batches * virtual_stages * 2 * 3) as f64;
        let all = if shared { computes * stages as f64 } else { computes };
        prop_assert!(found.step > all - 1e-6, "{found:?}");
    }
}

/// Gathers that are shorter than computations hide behind them: the first of the forward, the first of the backward and the
/// last reduction show.
#[test]
fn what_is_gathered_ahead_is_hidden() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 1, 1, 1).unwrap();
    let ticks = of_ticks(Ticks { forward: 1, input: 1, weights: 1 });
    let of = |prefetch| summary(&steps(&outline(1, 8, true, prefetch), &pipeline, &ticks, 0.25), None);
    let (ahead, late) = (of(Prefetch::Pre), of(Prefetch::None));
    assert!((ahead.step - (24.0 + 3.0 * 0.25)).abs() < 1e-6, "{ahead:?}");
    // Without, the forward and the backward wait for eight gathers each.
    assert!((late.step - (24.0 + 17.0 * 0.25)).abs() < 1e-6, "{late:?}");
}

/// Parameters do not queue behind gradients: a rank has a thread for each kind.
#[test]
fn gathers_overtake_reductions() {
    let exchange = |seconds| vec![Exchange { axes: "dp_shard".into(), seconds }];
    let run = |call, slot| Op::Run { kind: Kind::Backward, call, micro_batch: 0, slot };
    let tasks = vec![
        Task {
            op: Op::Reduce { unit: 1, micro_batch: 0, sends: true, last: true },
            compute: 0.0,
            copies: None,
            exchanges: exchange(10.0),
        },
        Task { op: Op::Gather { unit: 0, slot: 0, to: None }, compute: 0.0, copies: None, exchanges: exchange(1.0) },
        Task { op: run(0, Some(0)), compute: 2.0, copies: None, exchanges: vec![] },
        Task { op: Op::Wait { unit: 1 }, compute: 0.0, copies: None, exchanges: vec![] },
        Task {
            op: Op::Reduce { unit: 0, micro_batch: 0, sends: true, last: true },
            compute: 0.0,
            copies: None,
            exchanges: exchange(3.0),
        },
        Task { op: Op::Wait { unit: 0 }, compute: 0.0, copies: None, exchanges: vec![] },
    ];
    let step = RankProgram { stage: 0, rank: 0, ranks: 1, tasks };
    let found = summary(&[step], None);
    assert_eq!((found.step, found.compute), (13.0, 2.0), "{found:?}");
}

/// Copies over the bus hold up the device: a gather's begins after them, beside the next run.
#[test]
fn nothing_is_computed_beside_copies() {
    let exchange = |axes: &str, seconds| Exchange { axes: axes.into(), seconds };
    let run = |slot| Op::Run { kind: Kind::Backward, call: 0, micro_batch: 0, slot };
    let gather = Op::Gather { unit: 0, slot: 0, to: None };
    let of_gather = (Some(exchange("cpu", 5.0)), vec![exchange("dp_shard", 3.0)]);
    let tasks = [(gather, of_gather, 0.0), (run(None), (None, vec![]), 1.0), (run(Some(0)), (None, vec![]), 4.0)];
    let task = |(op, (copies, exchanges), compute)| Task { op, compute, copies, exchanges };
    let step = RankProgram { stage: 0, rank: 0, ranks: 1, tasks: tasks.into_iter().map(task).collect() };
    let found = summary(&[step], None);
    assert_eq!((found.step, found.compute), (12.0, 5.0), "{found:?}");
    assert_eq!(found.exposed, [("cpu".to_string(), 5.0), ("dp_shard".to_string(), 2.0)]);
}

/// Gradients are added up where they were computed, before they are sent.
#[test]
fn a_reduction_computes_before_it_sends() {
    let exchanges = vec![Exchange { axes: "dp_shard".into(), seconds: 3.0 }];
    let tasks = vec![
        Task {
            op: Op::Reduce { unit: 0, micro_batch: 1, sends: true, last: true },
            compute: 2.0,
            copies: None,
            exchanges,
        },
        Task { op: Op::Wait { unit: 0 }, compute: 0.0, copies: None, exchanges: vec![] },
    ];
    let found = summary(&[RankProgram { stage: 0, rank: 0, ranks: 1, tasks }], None);
    assert_eq!((found.step, found.compute), (5.0, 2.0), "{found:?}");
}

/// Two ranks compute a call each. The gradients of a call leave its owner when it has computed them, although the other
/// rank has come to their scatter before, and no rank has its part before all are sent.
#[test]
fn gradients_are_scattered_when_they_are_computed() {
    let mut outline = outline(1, 2, false, Prefetch::None);
    outline.calls.iter_mut().enumerate().for_each(|(i, call)| call.owner = Some(i));
    let pipeline = Pipeline::new(Schedule::OneFOneB, 1, 1, 1).unwrap();
    let compute = of_ticks(Ticks { forward: 1, input: 1, weights: 1 });
    let of = |seconds| {
        let rank = |rank| {
            let task = |op| Task {
                compute: if let Op::Run { kind, .. } = op { compute(kind) } else { 0.0 },
                copies: None,
                exchanges: match op {
                    Op::Scatter { from, .. } if from != rank => vec![Exchange { axes: "dp_shard".into(), seconds }],
                    _ => vec![],
                },
                op,
            };
            let ops = lower(&outline, &pipeline, Place { stage: 0, rank });
            RankProgram { stage: 0, rank, ranks: 1, tasks: ops.into_iter().map(task).collect() }
        };
        summary(&[rank(0), rank(1)], None)
    };
    // F0 and F1, B1 until 4, B0 until 6, and the scatter of its gradients.
    let found = of(0.5);
    assert_eq!((found.step, found.compute, found.bubble), (6.5, 3.0, 2.75), "{found:?}");
    // B1's gradients are on their way until 7, and those of B0 follow them.
    assert_eq!(of(3.0).step, 10.0);
}

/// The gradients of a pipeline go to the stage before without a wait for reductions: what they take shows once, at the
/// end, and not once for each stage.
#[test]
fn reductions_delay_no_other_stage() {
    let ticks = of_ticks(Ticks { forward: 1, input: 1, weights: 1 });
    let last_only = |(schedule, virtual_stages), exchange| {
        let pipeline = Pipeline::new(schedule, 4, virtual_stages, 8).unwrap();
        let outline = Outline { reduces_once: true, ..outline(pipeline.chunks(), 2, false, Prefetch::None) };
        let mut steps = steps(&outline, &pipeline, &ticks, exchange);
        for task in steps.iter_mut().flat_map(|step| &mut step.tasks) {
            if !matches!(task.op, Op::Reduce { sends: true, .. }) {
                task.exchanges.clear();
            }
        }
        summary(&steps, None).step
    };
    for kind in [(Schedule::OneFOneB, 1), (Schedule::Interleaved1F1B, 2)] {
        assert!((last_only(kind, 1.5) - last_only(kind, 0.0) - 1.5).abs() < 1e-6, "{kind:?}");
    }
}

/// Ranks that share cores take turns: a pipeline on one CPU is no faster than its work, and where only one of four ranks
/// computes, it uses one of two cores.
#[test]
fn ranks_that_share_cores_slow_each_other_down() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 4, 1, 8).unwrap();
    let steps = steps(
        &outline(4, 1, false, Prefetch::None),
        &pipeline,
        &of_ticks(Ticks { forward: 1, input: 1, weights: 1 }),
        0.0,
    );
    let of = |cores| summary(&steps, cores).step;
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
    close(of(None), (8.0 + 3.0) * 3.0);
    close(of(Some(1)), 4.0 * 8.0 * 3.0);
    // Each of four ranks has one of four cores, which computes a quarter as fast as all.
    close(of(Some(4)), 4.0 * (8.0 + 3.0) * 3.0);
    // On two nodes of two cores, four ranks have a core each: as on one node of four, whose task takes half as long.
    let nodes = simulate(&steps, Some(SharedCores { of_node: 2, nodes: 2 })).unwrap().summary().step;
    close(nodes, 2.0 * (8.0 + 3.0) * 3.0);
    let busy = of(Some(2));
    assert!(4.0 * 8.0 * 3.0 < busy && busy < 4.0 * (8.0 + 3.0) * 3.0, "{busy}");
}

/// Durations of any size end: what rounding leaves of one must not keep the clock from moving.
#[test]
fn steps_of_years_and_of_nanoseconds_end() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 4, 1, 8).unwrap();
    for second in [1e-15, 1e-9, 1.0, 1e8] {
        let compute = |kind| second * if kind == Kind::Backward { 2.0 / 3.0 } else { 1.0 / 3.0 };
        let steps = steps(&outline(4, 3, true, Prefetch::Pre), &pipeline, &compute, second / 7.0);
        for cores in [None, Some(1), Some(3)] {
            let step = summary(&steps, cores).step;
            assert!(step >= 24.0 * second * (1.0 - 1e-9), "{step} of {second}");
        }
    }
}

#[test]
fn durations_that_are_no_numbers_are_errors() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 2, 1, 2).unwrap();
    for seconds in [f64::NAN, f64::INFINITY, -1.0, 1e10] {
        let steps = steps(&outline(2, 1, false, Prefetch::None), &pipeline, &|_| seconds, 0.0);
        let error = simulate(&steps, None).unwrap_err();
        assert!(matches!(error, PlanError::Duration { .. }), "{error}");
    }
}

/// Messages that never come are an error, not an endless loop.
#[test]
fn ranks_that_wait_for_each_other_are_found() {
    let pipeline = Pipeline::new(Schedule::OneFOneB, 2, 1, 1).unwrap();
    let mut steps = steps(&outline(2, 1, false, Prefetch::None), &pipeline, &|_| 1.0, 0.0);
    steps[0].tasks.retain(|task| !matches!(task.op, Op::Send { .. }));
    let error = simulate(&steps, None).unwrap_err().to_string();
    assert_eq!(error, "deadlock: rank 0 waits at r<0.0, rank 1 waits at r>1.0");
}
