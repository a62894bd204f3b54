//! A rank that fails anywhere in a step ends all ranks at once, and is named.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use comm::{RankFailure, run_ranks};
use fsdp::{Fsdp, FsdpConfig, FsdpError, PipelineConfig, Schedule, Strategy, Units};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread::sleep;
use std::time::{Duration, Instant};
use test_kit::{Random, patiently};

const CALLS: usize = 6;
const MICRO_BATCHES: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(60);
const FAULT: &str = "a fault that was put there";

/// A fault and its location.
#[derive(Debug, Clone, Copy)]
struct Fault {
    rank: usize,
    /// The number of calls of units on this rank before the fault.
    after: usize,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Panic,
    Late(Duration),
    /// The call returns an activation of another shape.
    Shape,
}

/// Silences the panic hook for injected faults, of which there are a thousand.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&FAULT) {
                before(panic);
            }
        }));
    });
}

/// Creates units that count their calls and fail at one of them.
fn units(rank: usize, fault: Fault) -> Units<Tensor<3>> {
    let (mut units, device) = (Units::new(), Device::flex());
    let calls = Arc::new(AtomicUsize::new(0));
    let linear = || LinearConfig::new(4, 4).with_initializer(Initializer::Constant { value: 0.1 }).init(&device);
    let forward = move |linear: &Linear, x: Tensor<3>| {
        if calls.fetch_add(1, Ordering::Relaxed) == fault.after && rank == fault.rank {
            match fault.what {
                What::Panic => std::panic::panic_any(FAULT),
                What::Late(late) => sleep(late),
                What::Shape => return linear.forward(x.narrow(1, 0, 1)),
            }
        }
        linear.forward(x)
    };
    for i in 0..CALLS {
        let (unit, forward) = (units.add(format!("layer {i}"), linear()), forward.clone());
        match i {
            0 => units.first(unit, move |linear: &Linear, x: &Tensor<3>| forward(linear, x.clone())),
            _ if i + 1 < CALLS => units.then(unit, move |linear: &Linear, x: Tensor<3>, _| forward(linear, x)),
            _ => units.last(unit, move |linear: &Linear, x: Tensor<3>, _| forward(linear, x).powi_scalar(2).mean()),
        }
    }
    units.shape(|x| [x.dims()[0], x.dims()[1]]);
    units
}

/// Runs two steps; returns the failure, if there is one, and the elapsed time.
fn train(
    config: &FsdpConfig,
    ranks: usize,
    fault: Fault,
    timeout: Duration,
) -> (Option<RankFailure<FsdpError>>, Duration) {
    let (config, started) = (config.clone(), Instant::now());
    let result = run_ranks(vec![Device::flex(); ranks], timeout, move |comm| {
        let x = Tensor::<3>::ones([1, 2, 4], comm.device());
        let mut fsdp = Fsdp::new(units(comm.rank(), fault), comm, config.clone())?;
        (0..2).try_for_each(|_| fsdp.train_step(&vec![x.clone(); MICRO_BATCHES], 1e-3).map(drop))
    });
    (result.err(), started.elapsed())
}

fn configs() -> Vec<(FsdpConfig, usize)> {
    let pipeline = |stages, schedule, virtual_stages, strategy| FsdpConfig {
        pipeline: PipelineConfig { stages, schedule, virtual_stages, calls: vec![] },
        strategy,
        ..FsdpConfig::default()
    };
    vec![
        (pipeline(1, Schedule::OneFOneB, 1, Strategy::FullShard), 3),
        (pipeline(2, Schedule::OneFOneB, 1, Strategy::FullShard), 2),
        (pipeline(2, Schedule::OneFOneB, 1, Strategy::FullShard), 4),
        (pipeline(2, Schedule::Interleaved1F1B, 3, Strategy::Zero1), 4),
        (pipeline(3, Schedule::OneFOneB, 1, Strategy::Ddp), 6),
        (pipeline(4, Schedule::Gpipe, 1, Strategy::FullShard), 4),
        (pipeline(6, Schedule::OneFOneB, 1, Strategy::FullShard), 6),
        (pipeline(3, Schedule::ZeroBubble, 1, Strategy::FullShard), 3),
        (pipeline(2, Schedule::ZbV, 2, Strategy::Zero1), 4),
    ]
}

#[test]
fn a_thousand_faults_end_all_ranks_with_the_name_of_the_one_that_failed() {
    quiet();
    let configs = configs();
    let mut random = Random(1);
    for i in 0..1000 {
        let (config, ranks) = &configs[i % configs.len()];
        // In two steps; every rank has at least this many calls.
        let calls = 2 * MICRO_BATCHES * (CALLS / config.pipeline.stages);
        let fault = Fault { rank: random.below(*ranks), after: random.below(calls), what: What::Panic };
        let (failure, took) = train(config, *ranks, fault, TIMEOUT);
        match failure {
            Some(RankFailure::Panicked { rank, message }) if rank == fault.rank => assert_eq!(message, FAULT),
            other => panic!("{fault:?} of {ranks} ranks, {:?}: {other:?}", config.pipeline),
        }
        assert!(took < TIMEOUT, "{fault:?} of {ranks} ranks, {:?}: {took:?}", config.pipeline);
    }
}

#[test]
fn a_stage_that_is_late_is_named() {
    for (config, ranks) in configs().into_iter().step_by(2) {
        patiently([200, 2_000, 10_000].map(Duration::from_millis), |timeout| {
            let fault = Fault { rank: ranks - 1, after: 3, what: What::Late(5 * timeout) };
            let message = train(&config, ranks, fault, timeout).0.expect("nobody waits so long").to_string();
            assert!(message.contains(&format!("rank {}", ranks - 1)), "{:?}: {message}", config.pipeline);
        });
    }
}

#[test]
fn a_stage_that_sends_another_shape_is_named() {
    // In a V the first stage is also the last one.
    let hands_on = |config: &FsdpConfig| config.pipeline.stages > 1 && config.pipeline.schedule != Schedule::ZbV;
    for (config, ranks) in configs().into_iter().filter(|(config, _)| hands_on(config)) {
        // The last stage sends no activations.
        for rank in 0..ranks - ranks / config.pipeline.stages {
            // The last call of the stage's first chunk for the first micro-batch.
            let after = CALLS / config.pipeline.stages / config.pipeline.virtual_stages - 1;
            let fault = Fault { rank, after, what: What::Shape };
            let (failure, took) = train(&config, ranks, fault, TIMEOUT);
            let message = failure.expect("it is found").to_string();
            assert!(message.contains(&format!("rank {rank} has sent rank")), "{:?}: {message}", config.pipeline);
            assert!(message.contains("1 sequences of length 1, whose own micro-batch has 1 of length 2"), "{message}");
            assert!(took < TIMEOUT, "{took:?}");
        }
    }
}
