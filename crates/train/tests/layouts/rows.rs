//! Models and the layouts they are tried in.

/// A small GPT-2 with dropout; a global batch has four micro-batches.
pub const GPT2: &[&str] = &[
    "--model=gpt2",
    "--set=model.n_layer=3",
    "--set=model.n_embd=64",
    "--set=model.dropout=0.1",
    "--set=train.seq_len=32",
    "--set=train.global_batch_size=16",
    "--set=train.micro_batch_size=4",
];

/// A small DeepSeek: 8 experts, 2 per token, limited by capacity; with a z-loss.
pub const DEEPSEEK: &[&str] = &[
    "--model=deepseek",
    "--set=model.num_hidden_layers=3",
    "--set=model.hidden_size=64",
    "--set=moe.moe_intermediate_size=64",
    "--set=train.seq_len=32",
    "--set=train.global_batch_size=16",
    "--set=train.micro_batch_size=4",
    "--set=train.z_loss_coef=0.01",
];

/// DeepSeek-V3's router, dropless and without a balance loss.
pub const V3: &[&str] = &[
    "--set=moe.score_func=sigmoid",
    "--set=moe.selection_bias=true",
    "--set=moe.capacity_factor=null",
    "--set=moe.aux_loss_coef=0",
    "--set=moe.bias_update_speed=0.01",
];

/// A small Llama: two query heads for each of four key-value heads, norms of queries and keys, a window in the last
/// blocks, a tied head.
pub const LLAMA: &[&str] = &[
    "--model=llama",
    "--set=model.num_hidden_layers=3",
    "--set=model.hidden_size=64",
    "--set=model.intermediate_size=96",
    "--set=model.num_attention_heads=8",
    "--set=model.num_key_value_heads=4",
    "--set=model.qk_norm=true",
    "--set=model.sliding_window=12",
    "--set=model.max_window_layers=1",
    "--set=model.tie_word_embeddings=true",
    "--set=train.seq_len=32",
    "--set=train.global_batch_size=16",
    "--set=train.micro_batch_size=4",
];

/// A small Qwen3-MoE: 8 experts, 2 per token, in all blocks but the first; an output matrix of its own.
pub const LLAMA_MOE: &[&str] = &[
    "--set=model.tie_word_embeddings=false",
    "--set=model.mlp_only_layers=[0]",
    "--set=moe.num_experts=8",
    "--set=moe.moe_intermediate_size=64",
    "--set=moe.aux_loss_coef=0.01",
    "--set=moe.capacity_factor=1.5",
];

/// The settings a row adds: `--set parallel.KEY=VALUE`, or another key if it contains a dot.
pub type Row = (&'static str, &'static [&'static str]);

pub const GPT2_ROWS: &[Row] = &[
    ("ddp, 2 ranks, accumulates", &["gpus=2", "strategy=ddp"]),
    ("ddp, 4 ranks", &["gpus=4", "strategy=ddp"]),
    ("ddp, 4 ranks, recomputes", &["gpus=4", "strategy=ddp", "activation_checkpointing=full"]),
    ("zero1, 2 ranks, accumulates", &["gpus=2", "strategy=zero1"]),
    ("zero1, 4 ranks", &["gpus=4", "strategy=zero1"]),
    ("shard_grad_op, 2 ranks, accumulates", &["gpus=2", "strategy=shard_grad_op"]),
    ("shard_grad_op, 4 ranks", &["gpus=4", "strategy=shard_grad_op"]),
    ("shard_grad_op, 2 ranks, no_sync", &["gpus=2", "strategy=shard_grad_op", "no_sync=true"]),
    ("full_shard, 1 rank, recomputes", &["activation_checkpointing=full"]),
    ("full_shard, 2 ranks, accumulates", &["gpus=2"]),
    ("full_shard, 4 ranks", &["gpus=4"]),
    ("full_shard, 4 ranks, other micro-batches", &["gpus=4", "train.micro_batch_size=2"]),
    ("full_shard, 3 ranks share 16 sequences", &["gpus=3", "train.micro_batch_size=null"]),
    ("full_shard, 3 ranks, four micro-batches", &["gpus=3"]),
    ("ddp, 5 ranks, six micro-batches", &["gpus=5", "strategy=ddp", "train.micro_batch_size=3"]),
    ("zero1, 3 ranks, micro-batches of 5", &["gpus=3", "strategy=zero1", "train.micro_batch_size=5"]),
    ("full_shard, 2 ranks, no_sync", &["gpus=2", "no_sync=true"]),
    ("full_shard, 4 ranks, recomputes", &["gpus=4", "activation_checkpointing=full"]),
    ("full_shard, 4 ranks, recomputes every second", &["gpus=4", "activation_checkpointing=every:2"]),
    ("full_shard, 4 ranks, keeps the gathered", &["gpus=4", "reshard_after_forward=false"]),
    ("full_shard, 4 ranks, wrapped by size", &["gpus=4", "wrap=size:60000"]),
    (
        "full_shard, 4 ranks, wrapped by size, recomputes",
        &["gpus=4", "wrap=size:60000", "activation_checkpointing=full"],
    ),
    ("full_shard, 4 ranks, no prefetch", &["gpus=4", "forward_prefetch=none", "backward_prefetch=none"]),
    ("full_shard, 4 ranks, late prefetch", &["gpus=4", "forward_prefetch=post", "backward_prefetch=post"]),
    ("hybrid_shard, 4 ranks", &["gpus=4", "strategy=hybrid_shard"]),
    (
        "hybrid_shard, 4 ranks, accumulates, no_sync",
        &["gpus=4", "strategy=hybrid_shard", "no_sync=true", "train.micro_batch_size=2"],
    ),
    ("full_shard 2 x dp_replicate 2", &["gpus=4", "dp_replicate=2"]),
    ("full_shard 1 x dp_replicate 2, accumulates", &["gpus=2", "dp_replicate=2"]),
    ("hybrid_shard, 2 replicas of one rank", &["gpus=2", "strategy=hybrid_shard"]),
    ("zero1 2 x dp_replicate 2", &["gpus=4", "strategy=zero1", "dp_replicate=2"]),
    (
        "shard_grad_op 2 x dp_replicate 2, accumulates",
        &["gpus=4", "strategy=shard_grad_op", "dp_replicate=2", "train.micro_batch_size=2"],
    ),
    ("block, 2 ranks", &["gpus=2", "strategy=block"]),
    ("block, 3 ranks, recomputes", &["gpus=3", "strategy=block", "activation_checkpointing=full"]),
    ("block, 4 ranks", &["gpus=4", "strategy=block"]),
    ("block, 4 ranks, no prefetch", &["gpus=4", "strategy=block", "forward_prefetch=none", "backward_prefetch=none"]),
];

/// Pipelines with each schedule and with sharding within a stage. There are four, eight or sixteen micro-batches of one
/// sequence.
pub const GPT2_PIPELINES: &[Row] = &[
    ("pp 2", &["gpus=2", "pp=2"]),
    ("pp 2, its own micro-batches", &["gpus=2", "pp=2", "train.micro_batch_size=null"]),
    ("pp 2, gpipe", &["gpus=2", "pp=2", "schedule=gpipe", "train.micro_batch_size=2"]),
    ("pp 2, interleaved", &["gpus=2", "pp=2", "schedule=interleaved_1f1b", "train.micro_batch_size=2"]),
    (
        "pp 2, interleaved, 3 micro-batches",
        &["gpus=2", "pp=2", "schedule=interleaved_1f1b", "train.micro_batch_size=6"],
    ),
    (
        "pp 2, interleaved, fewer micro-batches than stages",
        &["gpus=2", "pp=2", "schedule=interleaved_1f1b", "train.micro_batch_size=16"],
    ),
    ("pp 2, zero_bubble", &["gpus=2", "pp=2", "schedule=zero_bubble"]),
    ("pp 4, zero_bubble, 8 micro-batches", &["gpus=4", "pp=4", "schedule=zero_bubble", "train.micro_batch_size=2"]),
    ("pp 2, zb_v", &["gpus=2", "pp=2", "schedule=zb_v"]),
    (
        "pp 2 x full_shard 2, zb_v, recomputes, reduces in every micro-batch",
        &["gpus=4", "pp=2", "schedule=zb_v", "activation_checkpointing=full", "no_sync=false"],
    ),
    ("pp 4", &["gpus=4", "pp=4"]),
    ("pp 4, gpipe, 8 micro-batches", &["gpus=4", "pp=4", "schedule=gpipe", "train.micro_batch_size=2"]),
    ("pp 5, 8 micro-batches", &["gpus=5", "pp=5", "train.micro_batch_size=2"]),
    ("pp 3, uneven stages", &["gpus=3", "pp=3", "stages=[0,1,2]"]),
    ("pp 2, recomputes", &["gpus=2", "pp=2", "activation_checkpointing=full"]),
    ("pp 2 x full_shard 2", &["gpus=4", "pp=2", "dp_shard=2"]),
    ("pp 2 x full_shard 2, reduces in every micro-batch", &["gpus=4", "pp=2", "no_sync=false"]),
    ("pp 2, wrapped by size", &["gpus=2", "pp=2", "wrap=size:60000"]),
    (
        "pp 2 x full_shard 2, wrapped by size, gpipe, recomputes",
        &["gpus=4", "pp=2", "wrap=size:60000", "schedule=gpipe", "activation_checkpointing=full"],
    ),
    ("pp 2 x full_shard 2, interleaved", &["gpus=4", "pp=2", "schedule=interleaved_1f1b"]),
    ("pp 2 x zero1 2", &["gpus=4", "pp=2", "strategy=zero1"]),
    ("pp 2 x shard_grad_op 2", &["gpus=4", "pp=2", "strategy=shard_grad_op"]),
    ("pp 2 x ddp 2", &["gpus=4", "pp=2", "strategy=ddp"]),
    ("pp 2 x full_shard 3, 16 sequences", &["gpus=6", "pp=2", "train.micro_batch_size=2"]),
    (
        "pp 2 x zero1 2 x dp_replicate 2",
        &["gpus=8", "pp=2", "strategy=zero1", "dp_replicate=2", "train.micro_batch_size=2"],
    ),
    ("pp 2 x hybrid_shard 4", &["gpus=8", "pp=2", "strategy=hybrid_shard", "train.micro_batch_size=2"]),
];

/// The micro-batches are those of one rank, and the gradients of several are added in the same order. Sums in another
/// order round differently, and if a token's second and third best experts score the same up to rounding, it goes to
/// the other one.
pub const DEEPSEEK_ROWS: &[Row] = &[
    ("ddp, 4 ranks", &["gpus=4", "strategy=ddp"]),
    ("zero1, 4 ranks", &["gpus=4", "strategy=zero1"]),
    ("shard_grad_op, 2 ranks, accumulates", &["gpus=2", "strategy=shard_grad_op"]),
    ("full_shard, 2 ranks, accumulates", &["gpus=2"]),
    ("full_shard, 4 ranks", &["gpus=4"]),
    ("full_shard, 4 ranks, recomputes", &["gpus=4", "activation_checkpointing=full"]),
    ("full_shard, 4 ranks, recomputes every second", &["gpus=4", "activation_checkpointing=every:2"]),
    ("full_shard, 4 ranks, wrapped by size", &["gpus=4", "wrap=size:200000"]),
    ("hybrid_shard, 4 ranks", &["gpus=4", "strategy=hybrid_shard"]),
    ("full_shard, 3 ranks, four micro-batches", &["gpus=3"]),
    ("block, 2 ranks", &["gpus=2", "strategy=block"]),
    ("block, 4 ranks, recomputes", &["gpus=4", "strategy=block", "activation_checkpointing=full"]),
];

pub const DEEPSEEK_PIPELINES: &[Row] = &[
    ("pp 2", &["gpus=2", "pp=2"]),
    ("pp 4", &["gpus=4", "pp=4"]),
    ("pp 4, gpipe", &["gpus=4", "pp=4", "schedule=gpipe"]),
    ("pp 2, interleaved", &["gpus=2", "pp=2", "schedule=interleaved_1f1b"]),
    (
        "pp 2 x full_shard 3, interleaved, 3 micro-batches",
        &["gpus=6", "pp=2", "schedule=interleaved_1f1b", "train.micro_batch_size=2"],
    ),
    ("pp 2, zero_bubble", &["gpus=2", "pp=2", "schedule=zero_bubble"]),
    ("pp 4, zero_bubble", &["gpus=4", "pp=4", "schedule=zero_bubble"]),
    ("pp 2, zb_v", &["gpus=2", "pp=2", "schedule=zb_v"]),
    ("pp 3, uneven stages", &["gpus=3", "pp=3", "stages=[0,1,2]"]),
    ("pp 2, recomputes", &["gpus=2", "pp=2", "activation_checkpointing=full"]),
    ("pp 2 x full_shard 2", &["gpus=4", "pp=2"]),
    ("pp 2 x zero1 2", &["gpus=4", "pp=2", "strategy=zero1"]),
    ("pp 2 x ddp 2", &["gpus=4", "pp=2", "strategy=ddp"]),
];

/// Expert parallelism combined with sharding. An expert's gradient is the sum over the tokens of all its ranks at once.
pub const DEEPSEEK_EXPERTS: &[Row] = &[
    ("ep 2", &["gpus=2", "ep=2"]),
    ("ep 4", &["gpus=4", "ep=4"]),
    ("ep 2 in full_shard 4", &["gpus=4", "ep=2"]),
    ("ep 2 in full_shard 4, recomputes", &["gpus=4", "ep=2", "activation_checkpointing=full"]),
    ("ep 2 in full_shard 4, keeps the gathered", &["gpus=4", "ep=2", "reshard_after_forward=false"]),
    ("ep 4, accumulates, no_sync", &["gpus=4", "ep=4", "no_sync=true", "train.micro_batch_size=2"]),
    ("ep 2 in ddp 4", &["gpus=4", "ep=2", "strategy=ddp"]),
    ("ep 4 in ddp 4", &["gpus=4", "ep=4", "strategy=ddp"]),
    ("ep 2 in zero1 4", &["gpus=4", "ep=2", "strategy=zero1"]),
    ("ep 4 in shard_grad_op 4", &["gpus=4", "ep=4", "strategy=shard_grad_op"]),
    ("ep 2 x dp_replicate 2", &["gpus=4", "ep=2", "strategy=hybrid_shard"]),
    (
        "ep 2 in zero1 2 x dp_replicate 4",
        &["gpus=8", "ep=2", "strategy=zero1", "dp_replicate=4", "train.micro_batch_size=2"],
    ),
    (
        "ep 2 x dp_replicate 4",
        &["gpus=8", "ep=2", "strategy=hybrid_shard", "dp_replicate=4", "train.micro_batch_size=2"],
    ),
    ("ep 4 in dp_shard 8", &["gpus=8", "ep=4", "train.micro_batch_size=2"]),
    ("ep 2, wrapped by size", &["gpus=2", "ep=2", "wrap=size:200000"]),
    ("ep 2 on 6 ranks that share 16 sequences", &["gpus=6", "ep=2", "train.micro_batch_size=null"]),
    ("pp 2 x ep 2", &["gpus=4", "pp=2", "ep=2"]),
    (
        "pp 2 x ep 2 x full_shard 2, interleaved",
        &["gpus=8", "pp=2", "ep=2", "schedule=interleaved_1f1b", "train.micro_batch_size=2"],
    ),
    ("pp 2 x ep 2, gpipe, recomputes", &["gpus=4", "pp=2", "ep=2", "schedule=gpipe", "activation_checkpointing=full"]),
    ("pp 2 x ep 2, zero_bubble", &["gpus=4", "pp=2", "ep=2", "schedule=zero_bubble"]),
    (
        "pp 2 x ep 2, zero_bubble, wrapped by size",
        &["gpus=4", "pp=2", "ep=2", "schedule=zero_bubble", "wrap=size:200000"],
    ),
    ("pp 2 x ep 2, zb_v", &["gpus=4", "pp=2", "ep=2", "schedule=zb_v"]),
    ("pp 2 x ep 2 in zero1 2", &["gpus=4", "pp=2", "ep=2", "strategy=zero1"]),
    ("pp 2 x ep 2 in ddp 4", &["gpus=8", "pp=2", "ep=2", "strategy=ddp", "train.micro_batch_size=2"]),
];

pub const LLAMA_ROWS: &[Row] = &[
    ("ddp, 4 ranks", &["gpus=4", "strategy=ddp"]),
    ("zero1, 2 ranks, accumulates", &["gpus=2", "strategy=zero1"]),
    ("shard_grad_op, 4 ranks", &["gpus=4", "strategy=shard_grad_op"]),
    ("full_shard, 4 ranks, recomputes", &["gpus=4", "activation_checkpointing=full"]),
    ("full_shard, 3 ranks, four micro-batches", &["gpus=3"]),
    ("full_shard, 4 ranks, wrapped by size", &["gpus=4", "wrap=size:60000"]),
    ("hybrid_shard, 4 ranks", &["gpus=4", "strategy=hybrid_shard"]),
    ("block, 3 ranks", &["gpus=3", "strategy=block"]),
    ("pp 2", &["gpus=2", "pp=2"]),
    ("pp 4, zero_bubble", &["gpus=4", "pp=4", "schedule=zero_bubble"]),
    ("pp 2 x full_shard 2, interleaved", &["gpus=4", "pp=2", "schedule=interleaved_1f1b"]),
    ("pp 2, zb_v", &["gpus=2", "pp=2", "schedule=zb_v"]),
    ("tp 2", &["gpus=2", "tp=2"]),
    ("tp 4", &["gpus=4", "tp=4"]),
    ("tp 2 x full_shard 2, recomputes", &["gpus=4", "tp=2", "activation_checkpointing=full"]),
    ("pp 2 x tp 2", &["gpus=4", "pp=2", "tp=2"]),
    ("cp 2", &["gpus=2", "cp=2"]),
    ("cp 4", &["gpus=4", "cp=4"]),
    ("cp 2 x tp 2", &["gpus=4", "cp=2", "tp=2"]),
    ("pp 2 x full_shard 2 x cp 2 x tp 2", &["gpus=16", "pp=2", "cp=2", "tp=2", "train.micro_batch_size=2"]),
];

pub const LLAMA_EXPERTS: &[Row] = &[
    ("full_shard, 4 ranks", &["gpus=4"]),
    ("pp 2 x ep 2", &["gpus=4", "pp=2", "ep=2"]),
    ("ep 4, recomputes", &["gpus=4", "ep=4", "activation_checkpointing=full"]),
    ("tp 2 x ep 4", &["gpus=4", "tp=2", "ep=4"]),
    ("cp 2 x ep 4", &["gpus=4", "cp=2", "ep=4"]),
];

/// Four stages with four ranks each, which share 16 experts.
pub const SIXTEEN_RANKS: &[Row] =
    &[("pp 4 x ep 4", &["gpus=16", "pp=4", "ep=4"]), ("pp 2 x ep 4 in dp_shard 8", &["gpus=16", "pp=2", "ep=4"])];

pub const FOUR_RANKS: &[Row] = &[("full_shard, 4 ranks", &["gpus=4"])];

/// Tensor parallelism. Sums over shards round differently than those of one rank.
pub const GPT2_TENSOR: &[Row] = &[
    ("tp 2", &["gpus=2", "tp=2"]),
    ("tp 4", &["gpus=4", "tp=4"]),
    ("tp 2 x full_shard 2", &["gpus=4", "tp=2", "dp_shard=2"]),
    ("tp 2 x full_shard 2, recomputes, accumulates", &["gpus=4", "tp=2", "activation_checkpointing=full"]),
    ("tp 2 x dp_replicate 2", &["gpus=4", "tp=2", "strategy=hybrid_shard"]),
    ("pp 2 x tp 2", &["gpus=4", "pp=2", "tp=2"]),
    (
        "pp 2 x tp 2 x full_shard 2, interleaved",
        &["gpus=8", "pp=2", "tp=2", "schedule=interleaved_1f1b", "train.micro_batch_size=2"],
    ),
];

pub const DEEPSEEK_TENSOR: &[Row] = &[
    ("tp 2", &["gpus=2", "tp=2"]),
    ("tp 4", &["gpus=4", "tp=4"]),
    ("tp 2 x full_shard 2", &["gpus=4", "tp=2"]),
    ("tp 2 x dp_replicate 2", &["gpus=4", "tp=2", "strategy=hybrid_shard"]),
    ("pp 2 x tp 2", &["gpus=4", "pp=2", "tp=2"]),
    ("tp 2 x ep 2", &["gpus=2", "tp=2", "ep=2"]),
    ("tp 2 x ep 4", &["gpus=4", "tp=2", "ep=4"]),
    ("pp 2 x tp 2 x ep 2 in dp_shard 2", &["gpus=8", "pp=2", "tp=2", "ep=2", "dp_shard=2"]),
];

/// Ranks that do not divide sequences of 29 tokens.
pub const PADDED: &[Row] = &[
    ("tp 2, 29 tokens", &["gpus=2", "tp=2"]),
    ("cp 2 x tp 2, 29 tokens", &["gpus=4", "cp=2", "tp=2"]),
    ("pp 2 x cp 4, 29 tokens", &["gpus=8", "pp=2", "cp=4"]),
];
pub const PADDED_EXPERTS: &[Row] = &[
    ("tp 2 x ep 2, 29 tokens", &["gpus=2", "tp=2", "ep=2"]),
    ("cp 2 x ep 4, recomputes, 29 tokens", &["gpus=4", "cp=2", "ep=4", "activation_checkpointing=full"]),
];

/// Context parallelism.
pub const GPT2_CONTEXT: &[Row] = &[
    ("cp 2", &["gpus=2", "cp=2"]),
    ("cp 4", &["gpus=4", "cp=4"]),
    ("cp 2 x tp 2", &["gpus=4", "cp=2", "tp=2"]),
    ("cp 2 x dp_replicate 2", &["gpus=4", "cp=2", "strategy=hybrid_shard"]),
    ("pp 2 x cp 2, zero_bubble", &["gpus=4", "pp=2", "cp=2", "schedule=zero_bubble"]),
];

pub const DEEPSEEK_CONTEXT: &[Row] = &[
    ("cp 2", &["gpus=2", "cp=2"]),
    ("cp 4", &["gpus=4", "cp=4"]),
    ("cp 2 x tp 2", &["gpus=4", "cp=2", "tp=2"]),
    ("cp 2 x ep 2", &["gpus=2", "cp=2", "ep=2"]),
    ("cp 2 x ep 4, recomputes", &["gpus=4", "cp=2", "ep=4", "activation_checkpointing=full"]),
    ("pp 2 x cp 2", &["gpus=4", "pp=2", "cp=2"]),
    ("pp 2 x full_shard 2 x cp 2 x tp 2", &["gpus=16", "pp=2", "cp=2", "tp=2", "train.micro_batch_size=2"]),
    (
        "pp 2 x full_shard 2 x cp 2 x tp 2 x ep 4",
        &["gpus=16", "pp=2", "cp=2", "tp=2", "ep=4", "train.micro_batch_size=2"],
    ),
];
