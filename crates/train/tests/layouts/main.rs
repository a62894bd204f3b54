//! A run has the losses of one rank in any layout: model x strategy x ranks x accumulation x recomputation x wrap x
//! prefetch.
//!
//! About 250 runs of 5 steps, a third of a second each on two cores in the dev profile, and some presets unchanged.

mod adaptive;
#[path = "../common/mod.rs"]
mod common;
mod documents;
mod mtp;
mod rows;

use burn::tensor::Device;
use common::{metrics, succeed, values};
use fsdp::Layout;
use model::Gpt2;
use rows::*;
use serde_json::Value;
use std::iter::once;
use train::config::{Config, Source};

const STEPS: usize = 5;

/// The compared values, each with a factor on the tolerance. AdamW takes the same step for a gradient twice the size,
/// so losses alone would not reveal ranks that sum what they should average.
const COMPARED: [(&str, f64); 3] = [("loss", 1.0), ("grad_norm", 10.0), ("val_loss", 1.0)];

/// Relative tolerance of a loss against one rank's. Measured: 0 if gradients are added in the same order, up to 2.3e-7
/// otherwise.
const TOLERANCE: f64 = 2e-6;

#[test]
fn gpt2_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(GPT2, GPT2_ROWS);
}

#[test]
fn gpt2_has_the_losses_of_one_rank_in_every_pipeline() {
    every_layout_has_the_losses_of_one_rank(GPT2, GPT2_PIPELINES);
}

#[test]
fn llama_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(LLAMA, LLAMA_ROWS);
}

#[test]
fn llama_with_experts_has_the_losses_of_one_rank_wherever_they_are() {
    every_layout_has_the_losses_of_one_rank(&[LLAMA, LLAMA_MOE].concat(), LLAMA_EXPERTS);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_in_every_pipeline() {
    every_layout_has_the_losses_of_one_rank(DEEPSEEK, DEEPSEEK_PIPELINES);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_wherever_its_experts_are() {
    every_layout_has_the_losses_of_one_rank(DEEPSEEK, DEEPSEEK_EXPERTS);
}

/// Loads are far from balanced in the first steps, so rows move in several rounds.
#[test]
fn a_dropless_deepseek_has_the_losses_of_one_rank_where_rows_go_in_rounds() {
    let rows: &[Row] = &[
        ("ep 2", &["gpus=2", "ep=2"]),
        ("ep 4, recomputes", &["gpus=4", "ep=4", "activation_checkpointing=full"]),
        ("pp 2 x ep 2, zero_bubble", &["gpus=4", "pp=2", "ep=2", "schedule=zero_bubble"]),
        ("cp 2 x ep 4", &["gpus=4", "cp=2", "ep=4"]),
        // Expert-parallel groups within the ranks of a sequence are a special case.
        ("tp 4 x ep 2", &["gpus=4", "tp=4", "ep=2"]),
        ("tp 4 x cp 2 x ep 2, two blocks a unit", &["gpus=8", "tp=4", "cp=2", "ep=2", "wrap=size:10000000"]),
    ];
    let dropless = ["--set=moe.capacity_factor=null", "--set=moe.max_rank_load=1"];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, &dropless[..]].concat(), rows);
}

#[test]
fn gpt2_has_the_losses_of_one_rank_over_tensor_parallel_ranks() {
    every_layout_has_the_losses_of_one_rank(GPT2, GPT2_TENSOR);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_over_tensor_parallel_ranks() {
    every_layout_has_the_losses_of_one_rank(DEEPSEEK, DEEPSEEK_TENSOR);
    let shared = ["--set=moe.n_shared_experts=1", "--set=model.first_k_dense_replace=1", "--set=model.q_lora_rank=32"];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, V3, &shared[..]].concat(), &DEEPSEEK_TENSOR[..2]);
}

#[test]
fn gpt2_has_the_losses_of_one_rank_over_ranks_of_a_context() {
    every_layout_has_the_losses_of_one_rank(GPT2, GPT2_CONTEXT);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_over_ranks_of_a_context() {
    every_layout_has_the_losses_of_one_rank(DEEPSEEK, DEEPSEEK_CONTEXT);
}

#[test]
fn padded_sequences_have_the_losses_of_one_rank() {
    let gpt2 = [GPT2, &["--set=train.seq_len=29", "--set=model.n_positions=29"]].concat();
    every_layout_has_the_losses_of_one_rank(&gpt2, PADDED);
    let deepseek = [DEEPSEEK, &["--set=train.seq_len=29", "--set=moe.router_noise=0.01"]].concat();
    every_layout_has_the_losses_of_one_rank(&deepseek, &[PADDED, PADDED_EXPERTS].concat());
}

#[test]
fn sixteen_experts_on_sixteen_ranks_have_the_losses_of_one_rank() {
    let model = ["--set=moe.num_experts=16", "--set=model.num_hidden_layers=4", "--set=train.micro_batch_size=1"];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, &model[..]].concat(), SIXTEEN_RANKS);
}

#[test]
fn deepseek_has_the_losses_of_one_rank_in_every_layout() {
    every_layout_has_the_losses_of_one_rank(DEEPSEEK, DEEPSEEK_ROWS);
}

#[test]
fn the_presets_and_a_dropless_deepseek_have_the_losses_of_one_rank_on_four() {
    for model in [
        &["--model=gpt2"][..],
        &["--model=llama"],
        &["--model=deepseek"],
        &["--model=deepseek", "--set=moe.capacity_factor=null"],
    ] {
        every_layout_has_the_losses_of_one_rank(model, FOUR_RANKS);
    }
}

#[test]
fn deepseek_whose_tokens_go_to_all_experts_has_the_same_losses_with_other_micro_batches() {
    let experts = ["--set=moe.num_experts=2", "--set=moe.top_k=2", "--set=moe.capacity_factor=null"];
    let rows: &[Row] = &[
        ("full_shard, 2 ranks, micro-batches of 2", &["gpus=2", "train.micro_batch_size=2"]),
        ("zero1, 2 ranks, accumulates", &["gpus=2", "strategy=zero1"]),
    ];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, &experts[..]].concat(), rows);
}

/// DeepSeek-V3's balancing: the bias follows the counts of all ranks, and moves only once if a forward is recomputed.
#[test]
fn a_selection_bias_that_follows_loads_and_noise_are_the_same_in_every_layout() {
    let rows: &[Row] = &[
        ("ddp, 2 ranks", &["gpus=2", "strategy=ddp"]),
        ("full_shard, 1 rank, recomputes", &["activation_checkpointing=full"]),
        ("full_shard, 4 ranks, recomputes", &["gpus=4", "activation_checkpointing=full"]),
        ("zero1, 4 ranks", &["gpus=4", "strategy=zero1"]),
        ("shard_grad_op, 2 ranks, wrapped by size", &["gpus=2", "strategy=shard_grad_op", "wrap=size:60000"]),
        ("block, 4 ranks", &["gpus=4", "strategy=block"]),
        ("ep 2 in ddp 4", &["gpus=4", "ep=2", "strategy=ddp"]),
        ("ep 4, recomputes", &["gpus=4", "ep=4", "activation_checkpointing=full"]),
        ("pp 2 x ep 2", &["gpus=4", "pp=2", "ep=2"]),
    ];
    every_layout_has_the_losses_of_one_rank(&[DEEPSEEK, V3, &["--set=moe.router_noise=0.01"]].concat(), rows);
}

#[test]
fn a_selection_bias_that_follows_loads_evens_them_out() {
    let cv = |speed| {
        let metrics = train(&[DEEPSEEK, V3, &["--set=train.micro_batch_size=8", speed]].concat(), 150);
        let layers = metrics.iter().rev().find_map(|line| line.get("experts")).unwrap().as_array().unwrap().clone();
        for layer in &layers {
            let assigned: f64 = layer["assigned"].as_array().unwrap().iter().map(|count| count.as_f64().unwrap()).sum();
            assert_eq!(assigned, 16.0 * 32.0 * 2.0, "each token of the global batch is counted once for each choice");
        }
        layers.iter().map(|layer| layer["cv"].as_f64().unwrap()).sum::<f64>() / layers.len() as f64
    };
    let (with, without) = (cv("--set=moe.bias_update_speed=0.003"), cv("--set=moe.bias_update_speed=0"));
    println!("coefficient of variation after 150 steps: {with:.3} with the update, {without:.3} without");
    assert!(with < 0.5 * without, "{with} with the update, {without} without");
}

#[test]
fn bf16_ends_within_a_percent_of_fp32_after_a_hundred_steps() {
    let spread = ["--set=parallel.tp=2", "--set=parallel.cp=2", "--set=parallel.ep=4"];
    // Each rank has two micro-batches a step, whose gradients are added up.
    for (model, micro_batch, layout) in [(GPT2, 2, &[][..]), (DEEPSEEK, 8, &spread)] {
        let micro_batch = format!("--set=train.micro_batch_size={micro_batch}");
        let last = |others: &[&str]| {
            let metrics = train(&[model, &[&micro_batch], others].concat(), 100);
            // The loss of one small batch is off by a percent if a few of its tokens go to other experts; the mean of
            // ten is not.
            [values(&metrics, "loss")[90..].iter().sum::<f64>() / 10.0, values(&metrics, "val_loss")[0]]
        };
        let bf16 = last(&[&["--gpus=4", "--set=parallel.precision.param=bf16"], layout].concat());
        // On one rank, whose fp32 losses match those of every layout.
        let fp32 = last(&["--set=parallel.precision.param=fp32"]);
        println!("{} after 100 steps: bf16 {bf16:?}, fp32 {fp32:?}", model[0]);
        for (bf16, fp32) in bf16.into_iter().zip(fp32) {
            assert!((bf16 - fp32).abs() < 0.01 * fp32, "{}: {bf16} in bf16, {fp32} in fp32", model[0]);
            assert_ne!(bf16, fp32, "{}: the precision had no effect", model[0]);
        }
    }
}

#[test]
fn the_first_loss_is_nearly_that_of_a_guess_and_depends_on_the_seed() {
    for model in ["--model=gpt2", "--model=deepseek"] {
        let first = |seed| values(&train(&[model, "--set=train.global_batch_size=8", seed], 1), "loss")[0];
        let (a, b) = (first("--seed=1"), first("--seed=2"));
        for loss in [a, b] {
            assert!((loss - 256f64.ln()).abs() < 0.3, "{model}: the first loss is {loss}");
        }
        assert!((a - b).abs() > 1e-4, "{model}: {a} with seed 1, {b} with seed 2");
    }
}

#[test]
fn a_rank_of_gpt2_124m_holds_its_share_and_less_than_a_percent_of_padding() {
    let config = Config::load(Source::Preset("gpt2-124m"), &[]).unwrap();
    let model = Gpt2::new(config.model.get().unwrap(), &Device::flex());
    for ranks in [1, 2, 4, 8, 64] {
        let layouts: Vec<Layout> = {
            let blocks = model.blocks.iter().map(|block| Layout::of(block, ranks));
            once(Layout::of(&model.ends, ranks)).chain(blocks).collect()
        };
        let len: usize = layouts.iter().map(Layout::len).sum();
        let padded: usize = layouts.iter().map(Layout::padded_len).sum();
        assert_eq!(len, 124_439_808);
        assert!(layouts.iter().all(|layout| layout.padded_len().is_multiple_of(ranks)));
        let percent = 100.0 * (padded - len) as f64 / len as f64;
        assert!(
            percent < 1.0,
            "of {ranks} ranks each holds {} parameters, {percent:.2}% of them padding",
            padded / ranks
        );
    }
}

/// Tries all rows and lists the differences in each.
#[track_caller]
fn every_layout_has_the_losses_of_one_rank(model: &[&str], rows: &[Row]) {
    let expected = train(model, STEPS);
    let mut differing = vec![];
    for (name, row) in rows {
        let key =
            |key: &&str| if key.contains("train.") { format!("--set={key}") } else { format!("--set=parallel.{key}") };
        let layout: Vec<String> = row.iter().map(key).collect();
        let layout: Vec<&str> = layout.iter().map(String::as_str).collect();
        let found = train(&[model, &layout].concat(), STEPS);
        let mut worst = 0.0;
        for (key, factor) in COMPARED {
            let (found, expected) = (values(&found, key), values(&expected, key));
            let difference = |i: usize| (found[i] - expected[i]).abs() / expected[i] / factor;
            worst = (0..expected.len()).map(difference).fold(worst, f64::max);
            if let Some(i) = (0..expected.len()).find(|i| difference(*i) > TOLERANCE) {
                differing.push(format!("{name}: {key} number {} is {} and not {}", i + 1, found[i], expected[i]));
            }
        }
        println!("{worst:8.1e}  {} {name}", model[0]);
    }
    assert!(differing.is_empty(), "{} trains otherwise than on one rank:\n{}", model.join(" "), differing.join("\n"));
}

/// Runs training and returns its metrics.
#[track_caller]
fn train(args: &[&str], steps: usize) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let steps_arg = format!("--steps={steps}");
    let short = [
        &steps_arg,
        "--set=optim.warmup_steps=2",
        "--set=train.val_every=0",
        "--set=train.val_batches=1",
        "--set=train.sample_tokens=0",
        "--out=run",
    ];
    succeed(folder.path(), &[args, &short].concat());
    let metrics = metrics(&folder.path().join("run"));
    assert_eq!(COMPARED.map(|(key, _)| values(&metrics, key).len()), [steps, steps, 1]);
    metrics
}
