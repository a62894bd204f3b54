//! A vision transformer made of Burn's layers, sharded over four ranks: `cargo run --example vision_transformer`.
//!
//! It learns which quarter of an image contains a bright spot. Four ranks have the same losses as one.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor};
use comm::{RankFailure, TIMEOUT, run_ranks};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError, Optimizers};

const WIDTH: usize = 32;
const BLOCKS: usize = 4;

#[derive(Module, Debug)]
struct Block {
    norms: [LayerNorm; 2],
    attention: MultiHeadAttention,
    mlp: [Linear; 2],
}

#[derive(Module, Debug)]
struct Vit {
    patch: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

/// Images as 16 patches of 4 pixels, `[b, 16, 4]`, and the number of the bright quarter, `[b]`.
type Batch = (Tensor<3>, Tensor<1, Int>);

fn vit(device: &Device) -> Vit {
    device.seed(1);
    let (linear, norm) =
        (|from, to| LinearConfig::new(from, to).init(device), || LayerNormConfig::new(WIDTH).init(device));
    let attention = MultiHeadAttentionConfig::new(WIDTH, 4).with_dropout(0.0);
    let mlp = || [linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)];
    let block = |_| Block { norms: [norm(), norm()], attention: attention.init(device), mlp: mlp() };
    Vit { patch: linear(20, WIDTH), blocks: (0..BLOCKS).map(block).collect(), head: linear(WIDTH, 4) }
}

fn calls() -> Calls<Vit, Batch> {
    let mut calls = Calls::new();
    calls.first(
        "patch",
        |vit: &Vit| &vit.patch,
        |patch, (pixels, _): &Batch| {
            let [b, n, _] = pixels.dims();
            let position = Tensor::eye(n, &pixels.device()).unsqueeze::<3>().repeat_dim(0, b); // one-hot
            patch.forward(Tensor::cat(vec![pixels.clone(), position], 2))
        },
    );
    for i in 0..BLOCKS {
        calls.then(
            format!("blocks.{i}"),
            move |vit: &Vit| &vit.blocks[i],
            |block: &Block, x: Tensor<3>, _: &Batch| {
                let x = x.clone() + block.attention.forward(MhaInput::self_attn(block.norms[0].forward(x))).context;
                x.clone() + block.mlp[1].forward(gelu(block.mlp[0].forward(block.norms[1].forward(x))))
            },
        );
    }
    calls.last(
        "head",
        |vit: &Vit| &vit.head,
        |head, x: Tensor<3>, (_, quarter): &Batch| {
            let logits: Tensor<2> = head.forward(x.mean_dim(1).squeeze_dim(1));
            CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, quarter.clone())
        },
    );
    calls
}

/// Images `first..first + n`; noise, and a bright patch.
fn images(first: usize, n: usize, device: &Device) -> Batch {
    let pixel = |i: usize| ((i * 7919) as f32).sin() * 0.3 + if i / 4 % 16 == i / 64 * 5 % 16 { 1.0 } else { 0.0 };
    let pixels: Vec<f32> = (first * 64..(first + n) * 64).map(pixel).collect();
    let quarter: Vec<i32> = (first..first + n).map(|image| (image * 5 % 16 / 4) as i32).collect();
    let pixels = Tensor::<1>::from_floats(pixels.as_slice(), device).reshape([n, 16, 4]);
    (pixels, Tensor::from_ints(quarter.as_slice(), device))
}

fn losses(ranks: usize) -> Result<Vec<f64>, RankFailure<FsdpError>> {
    let (device, optimizers) = (Device::flex(), Optimizers::new(AdamWConfig::new().build()));
    let model = vit(&device);
    let of_ranks = run_ranks(vec![device; ranks], TIMEOUT, move |comm| {
        let (device, each) = (comm.device().clone(), 32 / ranks);
        let config = FsdpConfig { optimizers: optimizers.clone(), ..FsdpConfig::default() };
        let mut fsdp = Fsdp::new(calls().into_units(model.clone()), comm, config)?;
        let (rank, _ranks) = fsdp.data_parallel(); // which part of the batch this rank has
        let mine = [images(rank * each, each, &device)];
        (0..60).map(|_| Ok(fsdp.train_step(&mine, 3e-3)?.loss)).collect::<Result<Vec<f64>, FsdpError>>()
    })?;
    Ok(of_ranks[0].clone())
}

fn main() -> Result<(), RankFailure<FsdpError>> {
    let (one, four) = (losses(1)?, losses(4)?);
    println!("one rank:   loss {:.6} -> {:.6}\nfour ranks: loss {:.6} -> {:.6}", one[0], one[59], four[0], four[59]);
    assert!(one.iter().zip(&four).all(|(one, four)| (one - four).abs() < 1e-4 * one), "{one:?} and {four:?}");
    assert!(four[59] < 0.2 * four[0], "it does not learn: {four:?}");
    Ok(())
}
