//! Your own MLP, sharded over four ranks: `cargo run --example mlp`.
//!
//! It learns y = |x_0| + ... + |x_15|. Each layer is a unit: it is gathered when it is used, and each rank keeps a
//! quarter of it.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use comm::{TIMEOUT, run_ranks};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError};

const RANKS: usize = 4;
const WIDTH: usize = 128;

#[derive(Module, Debug)]
struct Mlp {
    input: Linear,
    layers: Vec<Linear>,
    output: Linear,
}

impl Mlp {
    /// The forward: from the batch, from the previous activation, and to the loss. Each call names the part of the
    /// model that computes it, which becomes a unit.
    fn calls(&self) -> Calls<Self, Tensor<3>> {
        let mut calls = Calls::new();
        calls.first("input", |mlp: &Self| &mlp.input, |linear, x: &Tensor<3>| linear.forward(x.clone()));
        for i in 0..self.layers.len() {
            let layer = |linear: &Linear, h: Tensor<3>, _: &Tensor<3>| h.clone() + gelu(linear.forward(h));
            calls.then(format!("layers.{i}"), move |mlp: &Self| &mlp.layers[i], layer);
        }
        calls.last(
            "output",
            |mlp: &Self| &mlp.output,
            |linear, h, x| (linear.forward(h) - x.clone().abs().sum_dim(2)).powi_scalar(2).mean(),
        );
        calls
    }
}

fn main() {
    let device = Device::flex();
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let (input, output) = (linear(16, WIDTH), linear(WIDTH, 1));
    let mlp = Mlp { input, layers: (0..6).map(|_| linear(WIDTH, WIDTH)).collect(), output };
    let xs = Tensor::<3>::random([RANKS * 8, 8, 16], Distribution::Uniform(-1.0, 1.0), &device);

    let lines = run_ranks(vec![device; RANKS], TIMEOUT, move |comm| {
        let mut fsdp = Fsdp::new(mlp.calls().into_units(mlp.clone()), comm, FsdpConfig::default())?;
        let (rank, _ranks) = fsdp.data_parallel(); // which part of the batch this rank has
        let mine = xs.clone().slice(rank * 8..(rank + 1) * 8);
        let steps = (0..100).map(|_| Ok(fsdp.train_step(std::slice::from_ref(&mine), 3e-3)?.loss));
        let losses = steps.collect::<Result<Vec<f64>, FsdpError>>()?;
        assert!(losses[99] < 0.1 * losses[0], "{losses:?}");
        Ok::<_, FsdpError>(format!("loss {:.4} -> {:.4}\n{}", losses[0], losses[99], fsdp.memory()))
    });
    println!("{}", lines.expect("no rank fails")[0]);
}
