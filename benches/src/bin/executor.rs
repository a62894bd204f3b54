//! What the executor itself takes for each operation: a step of 24 calls on almost no numbers.
//!
//! `cargo run -p benches --bin executor`

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use comm::{Communicator, LocalEngine, TIMEOUT};
use fsdp::{Fsdp, FsdpConfig, FsdpError, Strategy, Units};
use schedule::{Kind, Op};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

const UNITS: usize = 24;
const MICRO_BATCHES: usize = 8;
const WARM_UP: usize = 20;
const STEPS: usize = 200;

/// `x p`, of one number.
#[derive(Module, Debug)]
struct Factor {
    p: Param<Tensor<1>>,
}

impl Factor {
    fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        x * self.p.val()
    }
}

fn units() -> Units<Tensor<1>> {
    let mut units = Units::new();
    let factor = |units: &mut Units<Tensor<1>>, i: usize| {
        let p = Param::from_tensor(Tensor::ones([1], &Device::flex()));
        units.add(format!("factor {i}"), Factor { p })
    };
    let first = factor(&mut units, 0);
    units.first(first, |factor: &Factor, x: &Tensor<1>| factor.forward(x.clone()));
    for i in 1..UNITS - 1 {
        let middle = factor(&mut units, i);
        units.then(middle, |factor: &Factor, x, _| factor.forward(x));
    }
    let last = factor(&mut units, UNITS - 1);
    units.last(last, |factor: &Factor, x, _| factor.forward(x));
    units
}

/// Mean microseconds of each kind of operation, with their number in a step, and those of the rest of the step.
#[derive(Debug, Default)]
struct Costs {
    of_kinds: BTreeMap<&'static str, (f64, usize)>,
    between: f64,
    step: f64,
}

fn kind(op: Op) -> &'static str {
    match op {
        Op::Gather { .. } => "Gather (start)",
        Op::Run { kind: Kind::Forward(_), .. } => "Run forward",
        Op::Run { .. } => "Run backward",
        Op::Free { .. } => "Free",
        Op::Flatten { .. } => "Flatten",
        Op::Reduce { .. } => "Reduce (start)",
        Op::Wait { .. } => "Wait",
        Op::Step { .. } => "Step",
        _ => "other",
    }
}

fn train(comm: Communicator, strategy: Strategy) -> Result<Costs, FsdpError> {
    let config = FsdpConfig { strategy, ..FsdpConfig::default() };
    let batches: Vec<Tensor<1>> = (0..MICRO_BATCHES).map(|_| Tensor::ones([1], comm.device())).collect();
    let mut fsdp = Fsdp::new(units(), comm, config)?;
    for _ in 0..WARM_UP {
        fsdp.train_step(&batches, 1e-9)?;
    }
    let mut costs = Costs::default();
    for _ in 0..STEPS {
        fsdp.time_operations();
        let started = Instant::now();
        fsdp.train_step(&batches, 1e-9)?;
        costs.step += 1e6 * started.elapsed().as_secs_f64() / STEPS as f64;
        let timed = fsdp.timed_operations();
        for op in &timed {
            let (time, count) = costs.of_kinds.entry(kind(op.op)).or_default();
            *time += 1e6 * (op.end - op.start).as_secs_f64();
            *count += 1;
        }
        let gaps = timed.windows(2).map(|pair| pair[1].start.duration_since(pair[0].end));
        costs.between += 1e6 * gaps.map(|gap| gap.as_secs_f64()).sum::<f64>() / (STEPS * timed.len()) as f64;
    }
    Ok(costs)
}

fn main() {
    for (ranks, strategy) in [(1, Strategy::FullShard), (2, Strategy::FullShard), (2, Strategy::Ddp)] {
        let costs: Vec<Costs> = thread::scope(|scope| {
            let engines = LocalEngine::world(vec![Device::flex(); ranks], TIMEOUT);
            let train = |engine| scope.spawn(move || train(Communicator::new(Arc::new(engine)), strategy));
            let all: Vec<_> = engines.into_iter().map(train).collect();
            all.into_iter().map(|rank| rank.join().expect("no panic").expect("a rank trains")).collect()
        });
        let Costs { of_kinds, between, step } = &costs[0];
        println!("{} on {ranks} ranks: a step of {MICRO_BATCHES} micro-batches {:.2} ms", strategy.name(), step / 1e3);
        for (kind, (time, count)) in of_kinds {
            println!("  {kind:<16}{:>8} a step{:>10.2} us each", count / STEPS, time / *count as f64);
        }
        println!("  {:<16}{between:>25.2} us each", "between two");
    }
}
