//! A program outside of Kiln's workspace that uses its crates as libraries (`scripts/check-library.sh` builds it):
//!
//! * a `model::Llama` in a training loop of its own, with Burn's AdamW and records,
//! * the same model with `fsdp`: sharded over four ranks, with batches of `data`,
//! * a module that no crate of Kiln knows, sharded over two ranks,
//! * the expert layer alone, with gradients.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use comm::{Communicator, TIMEOUT, run_ranks};
use data::{Dataset, OpenOptions};
use fsdp::{Calls, Fsdp, FsdpConfig, FsdpError};
use model::{
    Batch, LanguageModel, Llama, LlamaConfig, MicroBatch, ModelConfig, Parallel, StepContext, Targets, Training,
};
use moe::MoeConfig;
use std::error::Error;

const SEQUENCES: u64 = 8;
const SEQ_LEN: usize = 32;
const STEPS: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("kiln-library-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let text = folder.join("text.txt");
    std::fs::write(&text, "The five boxing wizards jump quickly. ".repeat(200))?;
    let options = OpenOptions { cache: Some(folder.join("cache")), ..OpenOptions::default() };
    let prepared = data::open(text.to_str().ok_or("a path in UTF-8")?, &options)?;
    let config = LlamaConfig { vocab_size: 256, hidden_size: 64, intermediate_size: 96, ..LlamaConfig::default() };

    learns("a Llama in a loop of its own", own_loop(&config, &prepared.dataset)?);
    let dataset = prepared.dataset.clone();
    let of_ranks = run_ranks(vec![Device::flex(); 4], TIMEOUT, move |comm| sharded(&config, &dataset, comm))?;
    learns("a Llama sharded over four ranks", of_ranks[0].clone());
    learns("a module of its own over two ranks", own_module()?);
    experts();
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Checks that a training has learned something.
fn learns(what: &str, losses: Vec<f64>) {
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("{what}: loss {first:.4} -> {last:.4}");
    assert!(last < 0.7 * first, "{what} does not learn: {losses:?}");
}

/// Inputs and targets of some sequences, `[b, t]` each.
fn tensors(batch: &data::Batch, device: &Device) -> [Tensor<2, Int>; 2] {
    let shape = [batch.sequences, batch.seq_len];
    [&batch.inputs, &batch.targets].map(|tokens| Tensor::from_data(TensorData::new(tokens.clone(), shape), device))
}

fn own_loop(config: &LlamaConfig, dataset: &Dataset) -> Result<Vec<f64>, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let mut model = Llama::init(config, None, 1337, &device).train();
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = vec![];
    for step in 0..STEPS {
        let batch = dataset.train_batch(1337, step * SEQUENCES..(step + 1) * SEQUENCES, SEQ_LEN)?;
        let [inputs, targets] = tensors(&batch, &device);
        let loss = model.loss(inputs, targets);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        losses.push(f64::from(loss.into_scalar::<f32>()));
        model = optimizer.step(3e-3, model, gradients);
    }
    let [inputs, targets] = tensors(&dataset.train_batch(1337, 0..SEQUENCES, SEQ_LEN)?, &device);
    let loss = |model: &Llama| model.loss(inputs.clone(), targets.clone()).into_scalar::<f32>();
    let record = ModuleRecord::from_bytes(model.clone().into_record().into_bytes()?)?;
    let loaded = Llama::init(config, None, 7, &device).load_record(record);
    assert_eq!(loss(&loaded), loss(&model), "Burn's record holds the whole model");
    Ok(losses)
}

fn sharded(config: &LlamaConfig, dataset: &Dataset, comm: Communicator) -> Result<Vec<f64>, FsdpError> {
    let (rank, ranks, device) = (comm.rank() as u64, comm.world_size() as u64, Device::flex());
    let fsdp_config = FsdpConfig::default();
    let training = Training { parallel: Parallel::new(&fsdp_config, &comm)?, seed: 1337, ..Training::default() };
    let model = ModelConfig::from(config.clone());
    let units = model.units(None, &training, &device);
    let mut fsdp = Fsdp::new(units, comm, fsdp_config)?;
    let step = |step: u64| {
        let (first, each) = (step * SEQUENCES, SEQUENCES / ranks);
        let mine = first + rank * each..first + (rank + 1) * each;
        let batch = dataset.train_batch(1337, mine, SEQ_LEN).expect("the text is long enough");
        let [inputs_bt, targets] = tensors(&batch, &device);
        let context = StepContext { seed: 1337, step, first_row: rank * each };
        let micro = MicroBatch::from(context);
        let batch = Batch { inputs_bt, targets: Targets::all(targets), micro, mtp: vec![] };
        Ok(fsdp.train_step(&[batch], 3e-3)?.loss)
    };
    (0..STEPS).map(step).collect()
}

/// Two linear layers that learn the sum of their inputs.
#[derive(Module, Debug)]
struct Sum {
    input: Linear,
    output: Linear,
}

impl Sum {
    /// The forward on one device, and the units and calls of sharded training.
    fn calls() -> Calls<Self, Tensor<3>> {
        let mut calls = Calls::new();
        calls.first("input", |sum: &Self| &sum.input, |linear, x: &Tensor<3>| linear.forward(x.clone()));
        calls.last(
            "output",
            |sum: &Self| &sum.output,
            |linear, h: Tensor<3>, x| (linear.forward(h) - x.clone().sum_dim(2)).powi_scalar(2).mean(),
        );
        calls
    }
}

fn own_module() -> Result<Vec<f64>, Box<dyn Error>> {
    let device = Device::flex();
    device.seed(1);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let sum = Sum { input: linear(8, 32), output: linear(32, 1) };
    let xs = Tensor::<3>::random([8, 4, 8], Distribution::Uniform(-1.0, 1.0), &device);
    let of_ranks = run_ranks(vec![device; 2], TIMEOUT, move |comm| {
        let mine = xs.clone().slice(comm.rank() * 4..(comm.rank() + 1) * 4);
        let mut fsdp = Fsdp::new(Sum::calls().into_units(sum.clone()), comm, FsdpConfig::default())?;
        let steps = (0..60).map(|_| Ok(fsdp.train_step(std::slice::from_ref(&mine), 1e-2)?.loss));
        let mut losses = steps.collect::<Result<Vec<f64>, FsdpError>>()?;
        let trained = fsdp.gather_model(sum.clone(), true)?.expect("it is kept");
        let loaded = sum.clone().load_record(trained.into_record());
        losses.push(Sum::calls().run(&loaded, &xs).loss.into_scalar::<f32>().into());
        losses.push(fsdp.train_step(std::slice::from_ref(&mine), 1e-2)?.loss);
        Ok::<_, FsdpError>(losses)
    })?;
    let [of_one_device, sharded] = of_ranks[0][60..] else { unreachable!("two more losses") };
    assert!((of_one_device - sharded).abs() < 1e-6, "{of_one_device} and {sharded}");
    Ok(of_ranks[0].clone())
}

fn experts() {
    let device = Device::flex().autodiff();
    device.seed(3);
    let config = MoeConfig { num_experts: 4, top_k: 2, moe_intermediate_size: 24, ..MoeConfig::default() };
    let layer = config.init(16, &device);
    let x = Tensor::<3>::random([2, 5, 16], Distribution::Normal(0.0, 1.0), &device).require_grad();
    let output = layer.forward(x.clone(), None);
    assert_eq!(output.y_btd.dims(), [2, 5, 16]);
    let assigned: f32 = output.stats.assigned_e().float().sum().into_scalar();
    assert_eq!(assigned, 20.0, "each of ten tokens goes to two experts");
    let gradients = output.y_btd.powi_scalar(2).sum().backward();
    let of_x: f32 = x.grad(&gradients).expect("x is tracked").abs().sum().into_scalar();
    let of_experts = layer.experts.gate_proj.val().grad(&gradients).expect("experts are trained");
    assert!(of_x > 0.0 && of_experts.abs().sum().into_scalar::<f32>() > 0.0);
    println!("four experts alone: {assigned} assignments, gradients reach tokens and experts");
}
