//! Step times that others have published, and what is planned for the same runs.
//!
//! One set of rates for each kind of device, as in the built-in clusters. What differs from Kiln belongs to the program
//! that was measured: how its elementwise operations are fused, which attention it calls, what it recomputes.

use crate::config::{Config, Source};
use crate::plan::step_time::{Assumptions, step_time};
use plan::Cluster;

struct Published {
    name: &'static str,
    /// Tokens per second and device.
    measured: f64,
    preset: &'static str,
    settings: &'static [&'static str],
    cluster: &'static str,
    program: fn(&mut Cluster),
    one_expert_copy: bool,
}

/// llm.c: fused kernels, cuDNN attention.
fn llm_c(cluster: &mut Cluster) {
    let of = &mut cluster.device.efficiency;
    (of.attention_forward, of.attention_backward) = if cluster.name == "a100-80" { (0.45, 0.38) } else { (0.25, 0.20) };
    of.passes = if cluster.name == "a100-80" { 3.35 } else { 2.35 }; // GELU is fused into the product on H100
}

/// nanoGPT with torch.compile of February 2023: FlashAttention 1, a vocabulary that is not padded.
fn nano_gpt(cluster: &mut Cluster) {
    let of = &mut cluster.device.efficiency;
    (of.attention_forward, of.attention_backward, of.unaligned, of.passes) = (0.32, 0.26, 0.25, 5.0);
}

/// torchtitan on H100 with 500 W and 2.4 TB/s: FlashAttention 2, every second product recomputed, a loss in fp32 that is
/// not compiled.
fn torchtitan(cluster: &mut Cluster) {
    cluster.device.memory_bandwidth = 2.4e12;
    let of = &mut cluster.device.efficiency;
    (of.product, of.attention_forward, of.attention_backward) = (0.58, 0.29, 0.24);
    (of.logits, of.recomputed, of.passes) = (38.0, 0.3, 17.0);
}

fn torchtitan_compiled(cluster: &mut Cluster) {
    torchtitan(cluster);
    cluster.device.efficiency.passes = 5.1;
}

/// NeMo AutoModel: Transformer Engine, DeepEP, whole blocks recomputed.
fn auto_model(cluster: &mut Cluster) {
    cluster.node_link.bandwidth = 300e9;
    let of = &mut cluster.device.efficiency;
    (of.logits, of.passes) = (20.0, 4.5);
}

const RUNS: [Published; 9] = [
    Published {
        name: "llm.c, GPT-2 124M, 8 x A100",
        measured: 218e3,
        preset: "gpt2-124m",
        settings: &[
            "parallel.gpus=8",
            "parallel.strategy=zero1",
            "train.global_batch_size=512",
            "train.micro_batch_size=64",
            "model.vocab_size=50304",
        ],
        cluster: "a100-80",
        program: llm_c,
        one_expert_copy: false,
    },
    Published {
        name: "llm.c, GPT-2 124M, 8 x H100",
        measured: 468e3,
        preset: "gpt2-124m",
        settings: &[
            "parallel.gpus=8",
            "parallel.strategy=zero1",
            "train.global_batch_size=512",
            "train.micro_batch_size=64",
            "model.vocab_size=50304",
        ],
        cluster: "h100-sxm",
        program: llm_c,
        one_expert_copy: false,
    },
    Published {
        name: "nanoGPT 124M, 8 x A100-40",
        measured: 109e3,
        preset: "gpt2-124m",
        settings: &[
            "parallel.gpus=8",
            "parallel.strategy=ddp",
            "train.global_batch_size=480",
            "train.micro_batch_size=12",
            "model.vocab_size=50257",
        ],
        cluster: "a100-40",
        program: nano_gpt,
        one_expert_copy: false,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 8 x H100, eager",
        measured: 5762.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=8", "train.global_batch_size=16", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan,
        one_expert_copy: false,
    },
    Published {
        name: "the same, compiled",
        measured: 6667.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=8", "train.global_batch_size=16", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan_compiled,
        one_expert_copy: false,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 128 x H100, eager",
        measured: 5605.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=128", "train.global_batch_size=256", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan,
        one_expert_copy: false,
    },
    Published {
        name: "the same, compiled",
        measured: 6514.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=128", "train.global_batch_size=256", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan_compiled,
        one_expert_copy: false,
    },
    Published {
        name: "AutoModel, Qwen3-30B-A3B, 8 x H100",
        measured: 12040.0,
        preset: "qwen3-30b-a3b",
        settings: &[
            "parallel.gpus=8",
            "parallel.ep=8",
            "train.seq_len=4096",
            "train.global_batch_size=512",
            "train.micro_batch_size=4",
            "model.vocab_size=151936",
        ],
        cluster: "h100-sxm",
        program: auto_model,
        one_expert_copy: true,
    },
    Published {
        name: "AutoModel, DeepSeek-V3, 256 x H100",
        measured: 1002.0,
        preset: "deepseek-v3",
        settings: &[
            "parallel.gpus=256",
            "parallel.pp=4",
            "parallel.schedule=interleaved_1f1b",
            "parallel.virtual_stages=8",
            "parallel.ep=64",
            "train.seq_len=4096",
            "train.global_batch_size=512",
            "train.micro_batch_size=1",
        ],
        cluster: "h100-sxm",
        program: auto_model,
        one_expert_copy: true,
    },
];

#[test]
fn published_step_times_are_planned() {
    let mut errors = vec![];
    println!("{:<46}{:>10}{:>10}{:>9}", "tokens/s per device", "published", "planned", "error");
    for Published { name, measured, preset, settings, cluster, program, one_expert_copy } in &RUNS {
        let settings: Vec<String> = settings.iter().map(|setting| setting.to_string()).collect();
        let mut config = Config::load(Source::Preset(preset), &settings).unwrap();
        config.train.device = "cuda".into();
        config.parallel.precision.choose("cuda");
        let mut cluster = Cluster::named(cluster).unwrap();
        program(&mut cluster);
        let timeline = step_time(&config, &cluster, Assumptions { one_expert_copy: *one_expert_copy }).unwrap();
        let summary = timeline.summary();
        let tokens = config.train.global_batch_size * config.train.seq_len;
        let planned = tokens as f64 / summary.step / config.parallel.gpus as f64;
        let error = planned / measured - 1.0;
        println!("{name:<46}{measured:>10.0}{planned:>10.0}{:>8.1}%   {summary:?}", 100.0 * error);
        errors.push(error.abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean error {:.1}%", 100.0 * mean);
    assert!(mean <= 0.08 && errors.iter().all(|error| *error <= 0.15));
}
