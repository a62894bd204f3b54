//! How much communication prefetch hides: a step of 24 equal units on two ranks whose network takes half as long as
//! their computation, as long, or twice as long.
//!
//! `cargo bench -p benches -- prefetch`. With perfect overlap a step takes as long as the longer of the two; without
//! overlap, as long as both together.

use benches::SlowEngine;
use burn::module::{Module, Param};
use burn::tensor::{Device, Distribution, Tensor, activation::relu};
use comm::{Communicator, LocalEngine, TIMEOUT};
use fsdp::{Fsdp, FsdpConfig, FsdpError, Prefetch, Units};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

const RANKS: usize = 2;
const UNITS: usize = 24;
const WIDTH: usize = 256;
const HIDDEN: usize = 1024;
const ROWS: usize = 2048;
const WARM_UP: usize = 1;
const STEPS: usize = 3;
const ROUNDS: usize = 3;

fn config(prefetch: Prefetch) -> FsdpConfig {
    FsdpConfig { forward_prefetch: prefetch, backward_prefetch: prefetch, ..FsdpConfig::default() }
}

/// `x + relu(x up) down`
#[derive(Module, Debug)]
struct Mlp {
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let matrix = |rows: usize, columns: usize| {
            let normal = Distribution::Normal(0.0, 0.1 / (rows as f64).sqrt());
            Param::from_tensor(Tensor::random([rows, columns], normal, device))
        };
        Self { up: matrix(WIDTH, HIDDEN), down: matrix(HIDDEN, WIDTH) }
    }

    fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let [b, t, d] = x_btd.dims();
        let x = x_btd.clone().reshape([b * t, d]);
        x_btd + relu(x.matmul(self.up.val())).matmul(self.down.val()).reshape([b, t, d])
    }
}

fn units(mlps: &[Mlp]) -> Units<Tensor<3>> {
    let mut units = Units::new();
    let mlp = |units: &mut Units<Tensor<3>>, i: usize| units.add(format!("mlp {i}"), mlps[i].clone());
    let first = mlp(&mut units, 0);
    units.first(first, |mlp: &Mlp, x: &Tensor<3>| mlp.forward(x.clone()));
    for i in 1..UNITS - 1 {
        let middle = mlp(&mut units, i);
        units.then(middle, |mlp: &Mlp, x, _| mlp.forward(x));
    }
    let last = mlp(&mut units, UNITS - 1);
    units.last(last, |mlp: &Mlp, x, _| mlp.forward(x).powi_scalar(2).mean());
    units
}

/// What a rank measures.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Median time of a step, in seconds.
    seconds: f64,
    /// Bytes received in a step.
    bytes: f64,
}

/// One rank's steps.
fn train(comm: Communicator, mlps: &[Mlp], prefetch: Prefetch) -> Result<Step, FsdpError> {
    let device = comm.device().clone();
    let batch = [Tensor::random([1, ROWS, WIDTH], Distribution::Normal(0.0, 1.0), &device)];
    let mut fsdp = Fsdp::new(units(mlps), comm.clone(), config(prefetch))?;
    let mut seconds = vec![];
    let mut received = 0;
    for step in 0..WARM_UP + STEPS {
        if step == WARM_UP {
            received = bytes(&comm);
        }
        let started = Instant::now();
        fsdp.train_step(&batch, 1e-3)?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    let seconds = &seconds[WARM_UP..];
    Ok(Step { seconds: median(seconds.to_vec()), bytes: (bytes(&comm) - received) as f64 / STEPS as f64 })
}

fn bytes(comm: &Communicator) -> u64 {
    comm.traffic().0.values().map(|traffic| traffic.bytes).sum()
}

/// The slowest rank's step with a network that needs `per_byte` seconds per byte.
fn measure(per_byte: f64, prefetch: Prefetch) -> Step {
    let mlps: Vec<Mlp> = (0..UNITS).map(|_| Mlp::new(&Device::flex())).collect();
    let run = |engine: LocalEngine| {
        let comm = Communicator::new(Arc::new(SlowEngine::new(Arc::new(engine), per_byte)));
        // One core per rank, as `train` uses on a machine with as many cores as ranks.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread can be started");
        pool.install(|| {
            train(comm.clone(), &mlps, prefetch)
                .inspect_err(|error| comm.abort(&error.to_string()))
                .expect("a rank trains")
        })
    };
    let steps: Vec<Step> = thread::scope(|scope| {
        let engines = LocalEngine::world(vec![Device::flex(); RANKS], TIMEOUT);
        let ranks: Vec<_> = engines.into_iter().map(|engine| scope.spawn(|| run(engine))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank trains")).collect()
    });
    steps.into_iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).expect("there are ranks")
}

fn main() {
    // As in criterion, a benchmark runs if its name contains the filter.
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if filter.is_some_and(|filter| !"prefetch".contains(&filter)) {
        return;
    }
    benches::keep_memory();
    println!(
        "prefetch: {UNITS} units of {} parameters, {ROWS} rows, {RANKS} ranks; seconds a step",
        2 * WIDTH * HIDDEN
    );
    println!("compute  communication    none    post     pre   pre of the longer");
    for load in [0.5, 1.0, 2.0] {
        // Measured in turn, because the machine's speed changes within minutes. The table has the medians of the
        // rounds.
        let (mut alone, mut communication, mut steps) = (vec![], vec![], [vec![], vec![], vec![]]);
        for _ in 0..ROUNDS {
            let compute = measure(0.0, Prefetch::Pre);
            let per_byte = load * compute.seconds / compute.bytes;
            alone.push(compute.seconds);
            communication.push(compute.bytes * per_byte);
            for (prefetch, seconds) in [Prefetch::None, Prefetch::Post, Prefetch::Pre].into_iter().zip(&mut steps) {
                seconds.push(measure(per_byte, prefetch).seconds);
            }
        }
        let (alone, communication, [none, post, pre]) = (median(alone), median(communication), steps.map(median));
        let ratio = pre / alone.max(communication);
        println!("{alone:7.2}{communication:15.2}{none:8.2}{post:8.2}{pre:8.2}{ratio:20.2}");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
