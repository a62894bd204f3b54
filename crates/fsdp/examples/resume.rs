//! A checkpoint of four ranks, resumed on two with a different strategy: `cargo run --example resume`.
//!
//! The state of Burn's Adam is sharded, saved and loaded like the parameters.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Distribution, Tensor};
use comm::{TIMEOUT, run_ranks};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError, Optimizers, Strategy, Unloaded};
use std::error::Error;
use std::path::PathBuf;

#[derive(Module, Debug)]
struct Sum {
    input: Linear,
    output: Linear,
}

fn calls() -> Calls<Sum, Tensor<3>> {
    let mut calls = Calls::new();
    calls.first("input", |sum: &Sum| &sum.input, |linear, x: &Tensor<3>| linear.forward(x.clone()));
    calls.last(
        "output",
        |sum: &Sum| &sum.output,
        |linear, h: Tensor<3>, x| (linear.forward(h) - x.clone().sum_dim(2)).powi_scalar(2).mean(),
    );
    calls
}

/// Trains up to step 20: from the beginning, saving step 10, or from that checkpoint.
fn train(ranks: usize, strategy: Strategy, run: PathBuf, from: Option<PathBuf>) -> Result<Vec<f64>, Box<dyn Error>> {
    let device = Device::flex();
    device.seed(1);
    let sum = Sum { input: LinearConfig::new(8, 32).init(&device), output: LinearConfig::new(32, 1).init(&device) };
    let xs = Tensor::<3>::random([8, 4, 8], Distribution::Uniform(-1.0, 1.0), &device);
    let of_ranks = run_ranks(vec![device; ranks], TIMEOUT, move |comm| {
        let optimizers = Optimizers::new(AdamConfig::new().build());
        let (units, config) =
            (calls().into_units(sum.clone()), FsdpConfig { strategy, optimizers, ..FsdpConfig::default() });
        let mut fsdp = match &from {
            Some(checkpoint) => Unloaded::new(units, comm, config)?.load(checkpoint)?,
            None => Fsdp::new(units, comm, config)?,
        };
        let (rank, ranks) = fsdp.data_parallel();
        let (mine, mut losses) = ([xs.clone().slice(rank * (8 / ranks)..(rank + 1) * (8 / ranks))], vec![]);
        for step in if from.is_some() { 10 } else { 0 }..20 {
            if step == 10 && from.is_none() {
                fsdp.save(&run, step)?;
            }
            losses.push(fsdp.train_step(&mine, 1e-2)?.loss);
        }
        Ok::<_, FsdpError>(losses)
    })?;
    Ok(of_ranks[0].clone())
}

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::temp_dir().join(format!("kiln-resume-{}", std::process::id()));
    let whole = train(4, Strategy::FullShard, run.clone(), None)?;
    let rest = train(2, Strategy::Ddp, run.clone(), Some(run.join("checkpoints/step-10")))?;
    println!(
        "step 11: loss {:.6} of four ranks, {:.6} resumed on two; step 20: {:.6} and {:.6}",
        whole[10], rest[0], whole[19], rest[9]
    );
    assert!(whole[10..].iter().zip(&rest).all(|(whole, rest)| (whole - rest).abs() < 1e-5 * whole));
    std::fs::remove_dir_all(run)?;
    Ok(())
}
