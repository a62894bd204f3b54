//! Memory that others have published, and what is planned for the same runs.
//!
//! Parameters, gradients, moments and gathered units are those of Kiln's ledger. What a forward keeps, and what the loss
//! takes, is that of the program, counted from its source. Published is what PyTorch's allocator has reserved, which
//! exceeds what is allocated by a fraction that was chosen once for compiled and once for eager runs.

use super::memory_check::need::forecast;
use crate::config::{Config, Source};
use fsdp::Category;

struct Published {
    name: &'static str,
    /// GiB per device.
    reserved: f64,
    settings: &'static [&'static str],
    /// Reserved memory for each allocated byte.
    per_allocated: f64,
}

const EAGER: f64 = 1.16;
const COMPILED: f64 = 1.08;
const OF_8: &[&str] = &["parallel.gpus=8", "train.global_batch_size=16", "train.micro_batch_size=2"];
const OF_128: &[&str] = &["parallel.gpus=128", "train.global_batch_size=256", "train.micro_batch_size=2"];

const RUNS: [Published; 4] = [
    Published {
        name: "torchtitan, Llama 3.1 8B, 8 x H100, eager",
        reserved: 82.4,
        settings: OF_8,
        per_allocated: EAGER,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 8 x H100, compiled",
        reserved: 77.0,
        settings: OF_8,
        per_allocated: COMPILED,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 128 x H100, eager",
        reserved: 67.0,
        settings: OF_128,
        per_allocated: EAGER,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 128 x H100, compiled",
        reserved: 62.0,
        settings: OF_128,
        per_allocated: COMPILED,
    },
];

/// Bytes that torchtitan keeps for the backward of Llama 3.1 8B with its default recomputation, for `tokens` tokens. It
/// keeps the outputs of every second product of a block (the first, third, fifth and seventh: queries, values, gate and
/// down), the attention's output with a log-sum in fp32 for each head, and the block's input
/// (`torchtitan/parallelisms/parallelize_llama.py`, `_apply_ac_to_transformer_block`). The loss takes logits in bf16 and
/// fp32, and their gradient in both.
fn torchtitan(tokens: f64) -> f64 {
    let (layers, width, key_values, inner, heads, vocabulary) = (32.0, 4096.0, 1024.0, 14336.0, 32.0, 128256.0);
    let block = 2.0 * (4.0 * width + key_values + inner) + 4.0 * heads;
    tokens * (layers * block + 12.0 * vocabulary)
}

/// The table of docs/plan.md, with every error.
#[test]
fn published_memory_is_planned() {
    let docs = include_str!("../../../../docs/plan.md");
    let mut missing = vec![];
    for Published { name, reserved, settings, per_allocated } in &RUNS {
        let settings: Vec<String> = settings.iter().map(|setting| setting.to_string()).collect();
        let mut config = Config::load(Source::Preset("llama3-8b"), &settings).unwrap();
        config.train.device = "cuda".into();
        config.parallel.precision.choose("cuda");
        let peak = forecast(&config, 0).memory.peak;
        let held = [Category::Parameters, Category::Gradients, Category::Optimizer, Category::Gathered];
        let states: usize = held.iter().map(|category| peak[*category]).sum();
        let tokens = (config.micro_batch_size() * config.train.seq_len) as f64;
        let planned = per_allocated * (states as f64 + torchtitan(tokens)) / f64::from(1 << 30);
        let error = planned / reserved - 1.0;
        let row = format!("| {name} | {reserved:.1} | {planned:.1} | {:.1}% |", 100.0 * error);
        println!("{row}   {held:?}: {:?}", held.map(|category| peak[category]));
        assert!(error.abs() <= 0.08, "{row}");
        if !docs.contains(&row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "docs/plan.md has not these rows:\n{}", missing.join("\n"));
}
