//! Metered traffic per axis and resident memory match the layout table to the byte.

use super::{LayoutTable, shares};
use crate::config::{Config, Source};
use crate::plan::units::units;
use crate::trainer::batch::BatchMaker;
use crate::training::set_vocabulary;
use burn::tensor::Device;
use comm::TrafficTable;
use fsdp::{Category, Fsdp, FsdpError, Share};
use model::{Batch, ExpertLoads, Parallel, StepContext};
use std::collections::BTreeMap;
use test_kit::on_ranks;

const T: usize = 8;
/// Not divisible by any number of ranks.
const VOCAB: usize = 11;

const GPT2: &[&str] = &["model.n_layer=3", "model.n_embd=32", "model.n_head=4", "model.n_positions=8"];

const LLAMA: &[&str] = &[
    "model.num_hidden_layers=3",
    "model.hidden_size=32",
    "model.intermediate_size=20",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "model.qkv_bias=true",
    "model.qk_norm=true",
    "model.max_position_embeddings=8",
];

const DEEPSEEK: &[&str] = &[
    "model.num_hidden_layers=3",
    "model.hidden_size=16",
    "model.intermediate_size=20",
    "model.num_attention_heads=4",
    "model.q_lora_rank=6",
    "model.kv_lora_rank=8",
    "model.qk_nope_head_dim=4",
    "model.qk_rope_head_dim=4",
    "model.v_head_dim=4",
    "model.first_k_dense_replace=1",
    "model.max_position_embeddings=8",
    "moe.num_experts=4",
    "moe.top_k=2",
    "moe.moe_intermediate_size=12",
    "moe.n_shared_experts=1",
    // Every expert has room for one row per sequence and some token always wants it, so loads are balanced.
    "moe.capacity_factor=0.01",
];

/// Bytes by axes and collective, without zeros.
type Received = BTreeMap<(String, &'static str), usize>;

fn config(preset: &str, settings: &[&str]) -> Config {
    let common = [&format!("train.seq_len={T}"), "train.global_batch_size=16", "train.micro_batch_size=2"];
    let settings: Vec<String> = common.iter().chain(settings).map(ToString::to_string).collect();
    let mut config = Config::load(Source::Preset(preset), &settings).unwrap();
    set_vocabulary(&mut config, Some(VOCAB)).unwrap();
    config.validate().unwrap();
    config
}

/// For each rank, the bytes received in its second step and the resident bytes after it.
fn metered(config: &Config) -> Vec<(Received, usize)> {
    let config = config.clone();
    on_ranks(config.parallel.gpus, move |comm| {
        let (loads, parallel) = (ExpertLoads::new(config.moe.as_ref()), Parallel::new(&config.fsdp(), &comm)?);
        let device = Device::flex();
        let maker = BatchMaker::new(&config, None, parallel.sequences.clone(), &device);
        let units = units(&config, &loads, &parallel, &device);
        let mut fsdp = Fsdp::new(units, comm, config.fsdp())?;
        let (sequences, count) = (config.micro_batch_size(), config.micro_batches());
        let batch = |i: usize| {
            let first_row = (fsdp.data_parallel().0 * count + i) * sequences;
            let seq_len = config.train.seq_len;
            let tokens =
                |ahead| (0..sequences * seq_len).map(|at| ((at + first_row) * 5 + ahead) as i32 % 11).collect();
            let batch = data::Batch { inputs: tokens(0), targets: tokens(1), sequences, seq_len };
            let place = StepContext { seed: 1, step: 0, first_row: first_row as u64 };
            maker.for_training(batch, Some(place), 1.0).unwrap()
        };
        let batches: Vec<Batch> = (0..count).map(batch).collect();
        fsdp.train_step(&batches, 1e-3)?;
        let before = received(fsdp.traffic_by_axes());
        fsdp.train_step(&batches, 1e-3)?;
        let mut step = received(fsdp.traffic_by_axes());
        step.iter_mut().for_each(|(of, bytes)| *bytes -= before.get(of).copied().unwrap_or(0));
        step.retain(|_, bytes| *bytes > 0);
        let rest = fsdp.memory().now;
        Ok::<_, FsdpError>((step, rest[Category::Parameters] + rest[Category::Optimizer]))
    })
}

/// Excludes the control numbers, which all ranks reduce.
fn received(by_axes: BTreeMap<String, TrafficTable>) -> Received {
    let of_axes = |(axes, table): (String, TrafficTable)| {
        table.0.into_iter().map(move |(name, traffic)| ((axes.clone(), name), traffic.bytes as usize))
    };
    let is_control = |(axes, name): &(String, &str)| axes == "world" && *name == "all_reduce";
    by_axes.into_iter().flat_map(of_axes).filter(|(of, _)| !is_control(of)).collect()
}

/// The closed form of [`metered`].
fn expected(config: &Config, rank: usize) -> (Received, usize) {
    let (mut all, mut rest) = (Received::new(), 0);
    for share in shares(config, &[rank]).remove(0) {
        rest += share.at_rest;
        all.extend(share.received.into_iter().map(|(name, bytes)| ((share.axes.clone(), name), bytes)));
    }
    (all, rest)
}

#[track_caller]
fn as_metered(preset: &str, model: &[&str], layouts: &[&[&str]]) {
    for layout in layouts {
        let config = config(preset, &[model, layout].concat());
        for (rank, found) in metered(&config).into_iter().enumerate() {
            assert_eq!(found, expected(&config, rank), "{preset} {layout:?}: rank {rank}");
        }
    }
}

const LAYOUTS: &[&[&str]] = &[
    &["parallel.gpus=4", "parallel.strategy=ddp"],
    &["parallel.gpus=2", "parallel.strategy=zero1"],
    &["parallel.gpus=2", "parallel.strategy=shard_grad_op", "parallel.precision.param=bf16"],
    &["parallel.gpus=4"],
    &["parallel.gpus=2", "parallel.no_sync=true", "parallel.precision.reduce=bf16"],
    &["parallel.gpus=2", "parallel.reshard_after_forward=false"],
    &["parallel.gpus=2", "parallel.wrap=size:4000", "parallel.activation_checkpointing=full"],
    &["parallel.gpus=4", "parallel.strategy=hybrid_shard"],
    &["parallel.gpus=4", "parallel.dp_replicate=2", "parallel.strategy=zero1", "parallel.precision.param=bf16"],
    &["parallel.gpus=2", "parallel.dp_replicate=2"],
    &["parallel.gpus=2", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.pp=2"],
    &["parallel.gpus=4", "parallel.pp=2", "parallel.no_sync=false", "parallel.wrap=size:4000"],
    &["parallel.gpus=4", "parallel.pp=2", "parallel.precision.param=bf16", "parallel.strategy=zero1"],
    &["parallel.gpus=2", "parallel.pp=2", "parallel.schedule=zb_v"],
    &["parallel.gpus=2", "parallel.pp=2", "parallel.schedule=interleaved_1f1b"],
    &["parallel.gpus=2", "parallel.tp=2", "parallel.activation_checkpointing=full"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.precision.param=bf16"],
    &["parallel.gpus=4", "parallel.tp=2", "parallel.strategy=ddp"],
    &["parallel.gpus=4", "parallel.tp=4", "train.seq_len=5"],
    &[
        "parallel.gpus=4",
        "parallel.tp=2",
        "parallel.pp=2",
        "parallel.schedule=gpipe",
        "parallel.activation_checkpointing=every:2",
    ],
];

const CONTEXT: &[&[&str]] = &[
    &["parallel.gpus=2", "parallel.cp=2", "parallel.activation_checkpointing=full"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.tp=2", "parallel.precision.param=bf16"],
    &["parallel.gpus=4", "parallel.cp=2", "parallel.pp=2", "parallel.strategy=zero1"],
    &["parallel.gpus=8", "parallel.cp=4", "parallel.tp=2", "train.seq_len=7"],
];

#[test]
fn a_step_of_gpt2_receives_what_the_table_says() {
    as_metered("gpt2", GPT2, &[LAYOUTS, CONTEXT].concat());
    as_metered("gpt2", GPT2, &[&["parallel.gpus=3", "parallel.strategy=block"]]);
}

#[test]
fn a_step_of_llama_receives_what_the_table_says() {
    as_metered("llama", LLAMA, &[LAYOUTS, CONTEXT].concat());
    // A tied matrix belongs to the first and the last stage, and is cut by tensor parallelism.
    let tied = [LLAMA, &["model.tie_word_embeddings=true"]].concat();
    let is_cut = |layout: &&&[&str]| layout.iter().any(|key| key.contains(".pp=") || key.contains(".tp="));
    let cut: Vec<&[&str]> = LAYOUTS.iter().filter(is_cut).copied().collect();
    as_metered("llama", &tied, &[&cut, CONTEXT].concat());
    // Every token goes to both experts, so loads are balanced.
    let experts = ["model.mlp_only_layers=[1]", "moe.num_experts=2", "moe.top_k=2"];
    let layouts: &[&[&str]] = &[
        &["parallel.gpus=2", "parallel.ep=2"],
        &["parallel.gpus=4", "parallel.pp=2", "parallel.ep=2"],
        &["parallel.gpus=2", "parallel.tp=2"],
        &["parallel.gpus=4", "parallel.cp=2", "parallel.tp=2"],
    ];
    as_metered("llama", &[LLAMA, &experts].concat(), layouts);
}

#[test]
fn a_step_of_deepseek_receives_what_the_table_says() {
    as_metered("deepseek", DEEPSEEK, &[LAYOUTS, CONTEXT].concat());
    let with_experts: &[&[&str]] = &[
        &["parallel.gpus=2", "parallel.ep=2"],
        &["parallel.gpus=4", "parallel.ep=2", "parallel.strategy=ddp"],
        &["parallel.gpus=4", "parallel.ep=4", "parallel.activation_checkpointing=full"],
        &["parallel.gpus=4", "parallel.pp=2", "parallel.ep=2"],
        &["parallel.gpus=2", "parallel.tp=2", "model.mtp_depth=2"],
        &["parallel.gpus=4", "parallel.ep=2", "parallel.pp=2", "model.mtp_depth=2"],
        &["parallel.gpus=3", "parallel.strategy=block", "model.mtp_depth=1"],
        &["parallel.gpus=4", "parallel.ep=2", "moe.n_shared_experts=0", "parallel.precision.param=bf16"],
    ];
    as_metered("deepseek", DEEPSEEK, with_experts);
    let settings = ["model.q_lora_rank=null", "moe.capacity_factor=null", "moe.aux_loss_coef=0"];
    as_metered("deepseek", &[DEEPSEEK, &settings].concat(), &[&["parallel.gpus=2", "parallel.tp=2"]]);
    let over: &[&[&str]] =
        &[&["parallel.gpus=2", "parallel.tp=2"], &["parallel.gpus=4", "parallel.tp=2", "parallel.cp=2"]];
    as_metered("deepseek", &[DEEPSEEK, &["moe.overflow=reroute"]].concat(), over);
    as_metered("deepseek", &[DEEPSEEK, &["moe.router_noise=0.1", "moe.aux_loss_coef=0"]].concat(), over);
}

/// By default as in torchtitan.
#[test]
fn a_pipelines_gradients_are_reduced_once_a_step() {
    let received = |setting: &str| {
        let config = config("gpt2", &[GPT2, &["parallel.gpus=4", "parallel.pp=2", setting]].concat());
        let reduced = |share: Share| share.received.get("reduce_scatter").copied().unwrap_or(0);
        (shares(&config, &[0]).remove(0).into_iter().map(reduced).sum::<usize>(), config.micro_batches())
    };
    let ((once, micro_batches), (each, _)) = (received("parallel.no_sync=null"), received("parallel.no_sync=false"));
    assert!(once > 0 && micro_batches > 1);
    assert_eq!(each, micro_batches * once);
    // Gradients of `shard_grad_op` are resident as shards.
    let [by_default, each] = ["parallel.no_sync=null", "parallel.no_sync=false"].map(|setting| {
        let strategy = "parallel.strategy=shard_grad_op";
        shares(&config("gpt2", &[GPT2, &["parallel.gpus=4", "parallel.pp=2", strategy, setting]].concat()), &[0])
            .remove(0)
    });
    assert_eq!(by_default, each);
}

#[test]
fn a_table_has_a_line_for_each_group_and_none_for_one_rank() {
    assert!(LayoutTable::new(&config("gpt2", GPT2)).is_empty());
    let table =
        LayoutTable::new(&config("gpt2", &[GPT2, &["parallel.gpus=8", "parallel.tp=2", "parallel.pp=2"]].concat()));
    println!("{table}");
    let (all, rows) = table.0.split_last().unwrap();
    assert!(rows.iter().all(|row| row.at_rest < all.at_rest));
    let over: Vec<&str> = table.0.iter().map(|row| row.over.as_str()).collect();
    assert_eq!(over, ["dp_shard x tp", "dp_shard", "tp", "pp", "all"]);
}
