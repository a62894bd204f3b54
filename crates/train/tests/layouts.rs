//! A run has the losses of one rank however it is laid out, and a rank holds its share of the model.

mod common;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use common::{metrics, succeed, values};
use fsdp::Layout;
use model::Gpt2;
use std::path::Path;
use std::time::Instant;
use train::config::{Config, ModelConfig, Source};

const STEPS: usize = 20;

/// The largest relative difference of a loss.
const TOLERANCE: f64 = 1e-5;

/// Name and arguments. Each trains on the same batches as one rank does: the global batch is the configuration's.
const LAYOUTS: &[(&str, &[&str])] = &[
    ("2 ranks full_shard", &["--gpus=2"]),
    ("4 ranks full_shard", &["--gpus=4"]),
    ("4 ranks ddp", &["--gpus=4", "--set=parallel.strategy=ddp"]),
    ("1 rank recomputing", &["--set=parallel.activation_checkpointing=full"]),
    ("4 ranks recomputing", &["--gpus=4", "--set=parallel.activation_checkpointing=full"]),
    ("1 rank 4 micro-batches", &["--set=train.micro_batch_size=8"]),
    ("2 ranks 4 micro-batches", &["--gpus=2", "--set=train.micro_batch_size=4"]),
];

#[test]
fn gpt2_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(&["--model=gpt2"]);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(&["--model=deepseek"]);
}

#[test]
fn dropless_deepseek_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(&["--model=deepseek", "--set=moe.capacity_factor=null"]);
}

/// The training losses, and after them the validation's.
fn losses(model: &[&str], layout: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let steps = format!("--steps={STEPS}");
    let short: &[&str] = &[&steps, "--set=train.val_batches=1", "--set=train.sample_tokens=0", "--out=run"];
    succeed(folder.path(), &[model, layout, short].concat());
    let metrics = metrics(&folder.path().join("run"));
    let losses = [values(&metrics, "loss"), values(&metrics, "val_loss")];
    assert_eq!((losses[0].len(), losses[1].len()), (STEPS, 1));
    losses.concat()
}

fn every_layout_has_the_losses_of_one_rank(model: &[&str]) {
    let t = Instant::now();
    let expected = losses(model, &[]);
    eprintln!("{model:?} one rank {:?}", t.elapsed());
    let mut failures = vec![];
    for (name, layout) in LAYOUTS {
        let t = Instant::now();
        let found = losses(model, layout);
        let difference = |(found, expected): (&f64, &f64)| (found - expected).abs() / expected;
        let differences: Vec<f64> = found.iter().zip(&expected).map(difference).collect();
        let worst = differences.iter().cloned().fold(0.0, f64::max);
        eprintln!("{model:?} {name} {:?} {worst:e}", t.elapsed());
        if let Some(at) = differences.iter().position(|difference| difference.is_nan() || *difference > TOLERANCE) {
            failures.push(format!(
                "{name}: loss {at} (of {STEPS} and the validation's) is {} and not {}",
                found[at], expected[at]
            ));
        }
    }
    assert!(failures.is_empty(), "{} other than one rank:\n{}", model.join(" "), failures.join("\n"));
}
