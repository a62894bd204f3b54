//! The time that a step takes besides its computation: many calls that compute next to nothing, on one rank.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use fsdp::{Fsdp, FsdpConfig, FsdpError, Op, Units};
use std::time::Instant;

const CALLS: usize = 100;
const MICRO_BATCHES: usize = 8;
const STEPS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    comm::run_ranks(vec![device; 1], comm::TIMEOUT, |comm| {
        let mut units = Units::<Tensor<2>>::new();
        let linear = || LinearConfig::new(1, 1).init(comm.device());
        let first = units.add("first", linear());
        units.first(first, |linear: &Linear, x: &Tensor<2>| linear.forward(x.clone()));
        for i in 2..CALLS {
            let unit = units.add(format!("unit {i}"), linear());
            units.then(unit, |_: &Linear, x: Tensor<2>, _| x + 1.0);
        }
        let last = units.add("last", linear());
        units.last(last, |linear: &Linear, x: Tensor<2>, _| linear.forward(x).mean());
        let batches = vec![Tensor::<2>::ones([1, 1], comm.device()); MICRO_BATCHES];
        let mut fsdp = Fsdp::new(units, comm, FsdpConfig::default())?;
        fsdp.backward(&batches, &[1.0; MICRO_BATCHES])?;
        let ops = fsdp.operations(MICRO_BATCHES)?;
        let (all, runs) = (ops.len(), ops.iter().filter(|op| matches!(op, Op::Run { .. })).count());
        let best = (0..STEPS).map(|_| {
            let started = Instant::now();
            fsdp.backward(&batches, &[1.0; MICRO_BATCHES]).map(|_| started.elapsed())
        });
        let best = best.collect::<Result<Vec<_>, _>>()?.into_iter().min().unwrap_or_default();
        let each = best.as_secs_f64() * 1e6 / all as f64;
        println!("{all} operations, {runs} of them runs of calls: {best:.1?}, {each:.2} us each");
        Ok::<_, FsdpError>(())
    })?;
    Ok(())
}
