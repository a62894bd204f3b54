//! A vision transformer of Burn's layers learns which quarter of an image contains a bright spot. Sharded over four
//! ranks, it has the same losses as on one: `cargo run --example vision_transformer`.

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use comm::{RankFailure, TIMEOUT, run_ranks};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError, Optimizers};

const WIDTH: usize = 32;

#[derive(Module, Debug)]
struct Vit {
    patch: Linear,
    blocks: Vec<TransformerEncoderLayer>,
    head: Linear,
}

/// Images as 16 patches of 4 pixels, `[b, 16, 4]`, and the number of the bright quarter, `[b]`.
type Batch = (Tensor<3>, Tensor<1, Int>);

fn vit(device: &Device) -> Vit {
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let block = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 1).with_dropout(0.0).with_norm_first(true);
    let blocks = (0..4).map(|_| TransformerEncoderLayer::new(&block, device)).collect();
    Vit { patch: linear(20, WIDTH), blocks, head: linear(WIDTH, 4) }
}

fn embed(patch: &Linear, (pixels, _): &Batch) -> Tensor<3> {
    let [b, n, _] = pixels.dims();
    let position = Tensor::eye(n, &pixels.device()).unsqueeze::<3>().repeat_dim(0, b); // one-hot
    patch.forward(Tensor::cat(vec![pixels.clone(), position], 2))
}

fn loss(head: &Linear, x: Tensor<3>, (_, quarter): &Batch) -> Tensor<1> {
    let logits: Tensor<2> = head.forward(x.mean_dim(1).squeeze_dim(1));
    CrossEntropyLossConfig::new().init(&quarter.device()).forward(logits, quarter.clone())
}

fn calls() -> Calls<Vit, Batch> {
    let mut calls = Calls::new();
    calls.first("patch", |vit: &Vit| &vit.patch, embed);
    for i in 0..4 {
        let forward = |block: &TransformerEncoderLayer, x: Tensor<3>, _: &Batch| block.forward(x, None, None);
        calls.then(format!("blocks.{i}"), move |vit: &Vit| &vit.blocks[i], forward);
    }
    calls.last("head", |vit: &Vit| &vit.head, loss);
    calls
}

/// Images `first..first + n`; noise, and a bright patch.
fn images(first: usize, n: usize, device: &Device) -> Batch {
    let pixel = |i: usize| ((i * 7919) as f32).sin() * 0.3 + if i / 4 % 16 == i / 64 * 5 % 16 { 1.0 } else { 0.0 };
    let pixels: Vec<f32> = (first * 64..(first + n) * 64).map(pixel).collect();
    let quarter: Vec<i32> = (first..first + n).map(|image| (image * 5 % 16 / 4) as i32).collect();
    (Tensor::<1>::from_floats(&pixels[..], device).reshape([n, 16, 4]), Tensor::from_ints(&quarter[..], device))
}

fn losses(ranks: usize) -> Result<Vec<f64>, RankFailure<FsdpError>> {
    let (device, model) = (Device::flex(), vit(&Device::flex()));
    let of_ranks = run_ranks(vec![device; ranks], TIMEOUT, move |comm| {
        let config = FsdpConfig { optimizers: Optimizers::new(AdamWConfig::new().build()), ..FsdpConfig::default() };
        let mine = [images(comm.rank() * 32 / ranks, 32 / ranks, comm.device())];
        let mut fsdp = Fsdp::new(calls().into_units(model.clone()), comm, config)?;
        (0..60).map(|_| Ok(fsdp.train_step(&mine, 3e-3)?.loss)).collect::<Result<Vec<f64>, FsdpError>>()
    });
    Ok(of_ranks?[0].clone())
}

fn main() -> Result<(), RankFailure<FsdpError>> {
    let (one, four) = (losses(1)?, losses(4)?);
    println!("one rank:   loss {:.6} -> {:.6}\nfour ranks: loss {:.6} -> {:.6}", one[0], one[59], four[0], four[59]);
    assert!(one.iter().zip(&four).all(|(one, four)| (one - four).abs() < 1e-4 * one), "{one:?} and {four:?}");
    assert!(four[59] < 0.2 * four[0], "it does not learn: {four:?}");
    Ok(())
}
