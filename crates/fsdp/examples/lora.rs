//! LoRA adapters of Burn, trained under every strategy: `cargo run --example lora`.
//!
//! `apply_lora` freezes the base and adds two small factors to each matrix. Sharded training also shards the frozen
//! base, without gradients and moments. The sum of base and adapter is a new tensor, which the backward needs: with
//! activation checkpointing, only one block's exists at a time.

use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use comm::{RankFailure, TIMEOUT, run_ranks};
use fsdp::{Calls, Category, Fsdp, FsdpConfig, FsdpError, Strategy};

#[derive(Module, Debug)]
struct Mlp {
    input: Linear,
    layers: Vec<Linear>,
    output: Linear,
}

fn calls() -> Calls<Mlp, Tensor<3>> {
    let mut calls = Calls::new();
    calls.first("input", |mlp: &Mlp| &mlp.input, |linear, x: &Tensor<3>| linear.forward(x.clone()));
    for i in 0..3 {
        let layer = |linear: &Linear, h: Tensor<3>, _: &Tensor<3>| h.clone() + gelu(linear.forward(h));
        calls.then(format!("layers.{i}"), move |mlp: &Mlp| &mlp.layers[i], layer);
    }
    calls.last(
        "output",
        |mlp: &Mlp| &mlp.output,
        |linear, h: Tensor<3>, x| (linear.forward(h) - x.clone().abs().sum_dim(2)).powi_scalar(2).mean(),
    );
    calls
}

fn main() -> Result<(), RankFailure<FsdpError>> {
    let device = Device::flex();
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let mlp = Mlp { input: linear(8, 64), layers: (0..3).map(|_| linear(64, 64)).collect(), output: linear(64, 1) };
    let adapted = mlp.apply_lora(Lora::new(4, 8.0));
    let xs = Tensor::<3>::random([16, 4, 8], Distribution::Uniform(-1.0, 1.0), &device);
    for strategy in Strategy::ALL {
        let (adapted, xs, config) = (adapted.clone(), xs.clone(), FsdpConfig { strategy, ..FsdpConfig::default() });
        let of_ranks = run_ranks(vec![device.clone(); 4], TIMEOUT, move |comm| {
            let mut fsdp = Fsdp::new(calls().into_units(adapted.clone()), comm, config.clone())?;
            let (rank, ranks) = fsdp.data_parallel();
            let each = 16 / ranks;
            let mine = [xs.clone().slice(rank * each..(rank + 1) * each)];
            let losses =
                (0..40).map(|_| Ok(fsdp.train_step(&mine, 1e-2)?.loss)).collect::<Result<Vec<_>, FsdpError>>()?;
            Ok::<_, FsdpError>((losses[0], losses[39], fsdp.memory().now))
        })?;
        let (first, last, bytes) = of_ranks[0];
        let (parameters, moments) = (bytes[Category::Parameters], bytes[Category::Optimizer]);
        println!("{strategy:?}: loss {first:.4} -> {last:.4}, {parameters} bytes of parameters, {moments} of moments");
        assert!(last < 0.5 * first && moments < parameters);
    }
    Ok(())
}
