//! Step times that others have published, and what is planned for the same runs.
//!
//! The rates are those of the built-in clusters. What differs from Kiln belongs to the program that was measured: its
//! attention, how its elementwise operations are fused, what it recomputes. These few rates were chosen by program so that
//! [`RUNS`] fit; [`HELD_OUT`] are runs for which nothing was chosen.

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
}

/// llm.c: fused kernels, cuDNN attention.
fn llm_c(cluster: &mut Cluster) {
    let of = &mut cluster.device.efficiency;
    (of.attention_forward, of.attention_backward) = if cluster.name == "a100-80" { (0.45, 0.38) } else { (0.25, 0.20) };
    of.elementwise_traffic = if cluster.name == "a100-80" { 3.35 } else { 2.35 }; // GELU is fused into the product on H100
}

/// nanoGPT with torch.compile of February 2023: FlashAttention 1, a vocabulary that is not padded.
fn nano_gpt(cluster: &mut Cluster) {
    let of = &mut cluster.device.efficiency;
    (of.attention_forward, of.attention_backward, of.unaligned, of.elementwise_traffic) = (0.32, 0.26, 0.25, 5.0);
}

/// torchtitan on H100 with 500 W and 2.4 TB/s: FlashAttention 2, every second product recomputed, a loss in fp32 that is
/// not compiled.
fn torchtitan(cluster: &mut Cluster) {
    cluster.device.memory_bandwidth = 2.4e12;
    let of = &mut cluster.device.efficiency;
    (of.product, of.attention_forward, of.attention_backward) = (0.58, 0.29, 0.24);
    (of.logit_traffic, of.recomputed, of.elementwise_traffic) = (38.0, 0.3, 17.0);
}

fn torchtitan_compiled(cluster: &mut Cluster) {
    torchtitan(cluster);
    cluster.device.efficiency.elementwise_traffic = 5.1;
}

/// NeMo AutoModel: Transformer Engine, DeepEP, whole blocks recomputed.
fn auto_model(cluster: &mut Cluster) {
    cluster.node_link.bandwidth = 300e9;
    let of = &mut cluster.device.efficiency;
    (of.logit_traffic, of.elementwise_traffic) = (20.0, 4.5);
}

/// Megatron-LM of 2021: attention in single operations over all keys, causal or not. A score of 2 bytes is written and
/// read by the product, the masked softmax, dropout and the second product, 11 bytes; with heads of 128 and twice the
/// visible scores, 512 FLOPs of visible keys take 22 bytes, 12.7 ps at 0.85 of 2.04 TB/s, and 1,024 FLOPs of products,
/// 5.5 ps at 0.6 of the peak.
fn megatron(cluster: &mut Cluster) {
    let of = &mut cluster.device.efficiency;
    (of.attention_forward, of.attention_backward) = (0.09, 0.09);
}

/// Tokens per second and device from FLOPs per second and device: 96 l h^2 (1 + s / 6h + V / 16lh) FLOPs per token, with
/// s of 2048 and V of 51200 (arXiv 2104.04473, equation 3).
const fn megatron_rate(flops: f64, layers: f64, width: f64) -> f64 {
    flops / (96.0 * layers * width * width * (1.0 + 2048.0 / 6.0 / width + 51200.0 / 16.0 / layers / width))
}

/// AutoModel gives layers that are left over to the first chunks: 61 layers in 32 chunks.
const CHUNKS_OF_61: &str =
    "parallel.stages=[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]";

/// Runs for which no rate was chosen. AutoModel accumulates gradients over several pipelines a step, one of which is
/// planned.
const HELD_OUT: [Published; 6] = [
    Published {
        name: "NeMo AutoModel, DeepSeek-V3, 1,024 x H100",
        measured: 865.0,
        preset: "deepseek-v3",
        settings: &[
            "parallel.gpus=1024",
            "parallel.pp=4",
            "parallel.schedule=interleaved_1f1b",
            "parallel.virtual_stages=8",
            CHUNKS_OF_61,
            "parallel.ep=64",
            "train.seq_len=4096",
            "train.global_batch_size=2048",
            "train.micro_batch_size=1",
        ],
        cluster: "h100-sxm",
        program: auto_model,
    },
    Published {
        name: "NeMo AutoModel, Kimi K2, 256 x H100",
        measured: 924.0,
        preset: "deepseek-v3",
        settings: &[
            "parallel.gpus=256",
            "parallel.pp=8",
            "parallel.schedule=interleaved_1f1b",
            "parallel.virtual_stages=4",
            CHUNKS_OF_61,
            "parallel.ep=32",
            "train.seq_len=4096",
            "train.global_batch_size=256",
            "train.micro_batch_size=1",
            "model.num_attention_heads=64",
            "model.first_k_dense_replace=1",
            "model.vocab_size=163840",
            "moe.num_experts=384",
            "moe.n_group=1",
            "moe.topk_group=1",
        ],
        cluster: "h100-sxm",
        program: auto_model,
    },
    Published {
        name: "NeMo AutoModel, Llama 3 70B, 64 x H100",
        measured: 866.77,
        preset: "llama3-8b",
        settings: &[
            "model.hidden_size=8192",
            "model.num_hidden_layers=80",
            "model.num_attention_heads=64",
            "model.intermediate_size=28672",
            "parallel.gpus=64",
            "parallel.cp=2",
            "parallel.activation_checkpointing=full",
            "train.seq_len=8192",
            "train.global_batch_size=128",
            "train.micro_batch_size=1",
        ],
        cluster: "h100-sxm",
        program: auto_model,
    },
    Published {
        name: "Megatron-LM, GPT 7.5B, 128 x A100",
        measured: megatron_rate(142e12, 36.0, 4096.0),
        preset: "gpt2-124m",
        settings: &[
            "model.n_embd=4096",
            "model.n_layer=36",
            "model.n_head=32",
            "model.n_positions=2048",
            "model.vocab_size=51200",
            "parallel.gpus=128",
            "parallel.tp=4",
            "parallel.strategy=ddp",
            "parallel.activation_checkpointing=full",
            "train.seq_len=2048",
            "train.global_batch_size=512",
            "train.micro_batch_size=4",
        ],
        cluster: "a100-80",
        program: megatron,
    },
    Published {
        name: "Megatron-LM, GPT 18.4B, 256 x A100",
        measured: megatron_rate(135e12, 40.0, 6144.0),
        preset: "gpt2-124m",
        settings: &[
            "model.n_embd=6144",
            "model.n_layer=40",
            "model.n_head=48",
            "model.n_positions=2048",
            "model.vocab_size=51200",
            "parallel.gpus=256",
            "parallel.tp=8",
            "parallel.strategy=ddp",
            "parallel.activation_checkpointing=full",
            "train.seq_len=2048",
            "train.global_batch_size=1024",
            "train.micro_batch_size=4",
        ],
        cluster: "a100-80",
        program: megatron,
    },
    Published {
        name: "Megatron-LM, GPT 145.6B, 1,536 x A100",
        measured: megatron_rate(148e12, 80.0, 12288.0),
        preset: "gpt2-124m",
        settings: &[
            "model.n_embd=12288",
            "model.n_layer=80",
            "model.n_head=96",
            "model.n_positions=2048",
            "model.vocab_size=51200",
            "parallel.gpus=1536",
            "parallel.tp=8",
            "parallel.pp=8",
            "parallel.schedule=interleaved_1f1b",
            "parallel.virtual_stages=2",
            "parallel.strategy=zero1",
            "parallel.activation_checkpointing=full",
            "train.seq_len=2048",
            "train.global_batch_size=2304",
            "train.micro_batch_size=1",
        ],
        cluster: "a100-80",
        program: megatron,
    },
];

/// Runs for which the rates of their programs were chosen.
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
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 8 x H100, eager",
        measured: 5762.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=8", "train.global_batch_size=16", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 8 x H100, compiled",
        measured: 6667.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=8", "train.global_batch_size=16", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan_compiled,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 128 x H100, eager",
        measured: 5605.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=128", "train.global_batch_size=256", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan,
    },
    Published {
        name: "torchtitan, Llama 3.1 8B, 128 x H100, compiled",
        measured: 6514.0,
        preset: "llama3-8b",
        settings: &["parallel.gpus=128", "train.global_batch_size=256", "train.micro_batch_size=2"],
        cluster: "h100-sxm",
        program: torchtitan_compiled,
    },
    Published {
        name: "NeMo AutoModel, Qwen3-30B-A3B, 8 x H100",
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
    },
    Published {
        name: "NeMo AutoModel, DeepSeek-V3, 256 x H100",
        measured: 1002.0,
        preset: "deepseek-v3",
        settings: &[
            "parallel.gpus=256",
            "parallel.pp=4",
            "parallel.schedule=interleaved_1f1b",
            "parallel.virtual_stages=8",
            CHUNKS_OF_61,
            "parallel.ep=64",
            "train.seq_len=4096",
            "train.global_batch_size=512",
            "train.micro_batch_size=1",
        ],
        cluster: "h100-sxm",
        program: auto_model,
    },
];

/// The tables of docs/plan.md, with every error.
#[test]
fn published_step_times_are_planned() {
    let docs = include_str!("../../../../docs/plan.md");
    let mut missing = vec![];
    for (runs, mean_error, largest) in [(&RUNS[..], 0.08, 0.15), (&HELD_OUT[..], 0.08, 0.15)] {
        let mut errors = vec![];
        for Published { name, measured, preset, settings, cluster, program } in runs {
            let settings: Vec<String> = settings.iter().map(|setting| setting.to_string()).collect();
            let mut config = Config::load(Source::Preset(preset), &settings).unwrap();
            config.train.device = "cuda".into();
            config.parallel.precision.choose("cuda");
            let mut cluster = Cluster::named(cluster).unwrap();
            program(&mut cluster);
            let of_auto_model = name.starts_with("NeMo AutoModel");
            let assumptions = Assumptions { experts_in_order: of_auto_model, reduces_before_sending: of_auto_model };
            let summary = step_time(&config, &cluster, assumptions).unwrap().summary();
            let tokens = config.train.global_batch_size * config.train.seq_len;
            let planned = tokens as f64 / summary.step / config.parallel.gpus as f64;
            let error = planned / measured - 1.0;
            let row = format!("| {name} | {measured:.0} | {planned:.0} | {:.1}% |", 100.0 * error);
            println!("{row}   {summary:?}");
            if !docs.contains(&row) {
                missing.push(row);
            }
            errors.push(error.abs());
        }
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        println!("mean error {:.1}%", 100.0 * mean);
        assert!(mean <= mean_error && errors.iter().all(|error| *error <= largest), "{errors:?}");
    }
    assert!(missing.is_empty(), "docs/plan.md has not these rows:\n{}", missing.join("\n"));
}
