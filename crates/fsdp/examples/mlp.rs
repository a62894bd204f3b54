//! An MLP of your own, sharded over four ranks: `cargo run --example mlp`.
//!
//! It learns y = |x_0| + ... + |x_15|. Each layer is a unit: it is gathered when it is used, and a quarter of it rests
//! on each rank.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Tensor};
use comm::{TIMEOUT, run_ranks};
use fsdp::{Fsdp, FsdpConfig, FsdpError, Units};

const RANKS: usize = 4;
const WIDTH: usize = 128;

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x.clone() + gelu(self.linear.forward(x))
    }
}

fn main() {
    let device = Device::flex();
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let (input, output) = (linear(16, WIDTH), linear(WIDTH, 1));
    let layers = [(); 6].map(|()| Layer { linear: linear(WIDTH, WIDTH) });
    let xs = Tensor::<3>::random([RANKS * 8, 8, 16], Distribution::Uniform(-1.0, 1.0), &device);

    let lines = run_ranks(vec![device; RANKS], TIMEOUT, move |comm| {
        // The model as units, with the forward of each unit: from the batch, from the previous activation, and to the
        // loss.
        let mut units = Units::<Tensor<3>>::new();
        let first = units.add("input", input.clone());
        units.first(first, |linear: &Linear, x| linear.forward(x.clone()));
        for (i, layer) in layers.iter().enumerate() {
            let unit = units.add(format!("layer {i}"), layer.clone());
            units.then(unit, |layer: &Layer, h, _x| layer.forward(h));
        }
        let last = units.add("output", output.clone());
        units
            .last(last, |linear: &Linear, h, x| (linear.forward(h) - x.clone().abs().sum_dim(2)).powi_scalar(2).mean());

        let rank = comm.rank();
        let mut fsdp = Fsdp::new(units, comm, FsdpConfig::default())?;
        let mine = xs.clone().slice(rank * 8..(rank + 1) * 8);
        let steps = (0..100).map(|_| Ok(fsdp.train_step(std::slice::from_ref(&mine), 3e-3)?.loss));
        let losses = steps.collect::<Result<Vec<f64>, FsdpError>>()?;
        Ok::<_, FsdpError>(format!("loss {:.4} -> {:.4}\n{}", losses[0], losses[99], fsdp.memory()))
    });
    println!("{}", lines.expect("no rank fails")[0]);
}
