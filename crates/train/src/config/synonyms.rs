//! Names that other programs use for the same thing.

use fsdp::Strategy;

/// Each group contains Kiln's name: a flag, a key's last part, or the whole key if several keys end in it.
const SYNONYMS: &[&[&str]] = &[
    &["lr", "learning_rate", "max_lr"],
    &["min_lr", "lr_min", "eta_min"],
    &["beta1", "adam_beta1"],
    &["beta2", "adam_beta2"],
    &["epsilon", "eps", "adam_epsilon"],
    &["weight_decay", "wd"],
    &["clip_grad_norm", "grad_clip", "max_grad_norm", "gradient_clipping"],
    &["warmup_steps", "warmup_iters", "warmup", "lr_warmup"],
    &["optim.schedule", "lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"],
    &["steps", "max_steps", "num_steps", "train_steps", "max_iters", "train_iters", "iters", "iterations"],
    &["batch_size", "global_batch_size", "train_batch_size", "batch"],
    &["micro_batch_size", "device_batch_size", "local_batch_size", "per_device_train_batch_size", "micro_batch"],
    &[
        "seq_len",
        "seq_length",
        "max_seq_len",
        "sequence_length",
        "block_size",
        "context_length",
        "max_seq_length",
        "max_length",
    ],
    &["gpus", "num_gpus", "gpu", "devices", "nproc", "nproc_per_node", "num_processes", "world_size", "ranks"],
    &["strategy", "sharding_strategy", "dp_mode"],
    &["dp_replicate", "data_parallel_replicate_degree"],
    &["dp_shard", "data_parallel_shard_degree"],
    &[
        "tp",
        "tensor_parallel",
        "tensor_parallel_degree",
        "tensor_parallel_size",
        "tensor_model_parallel_size",
        "tp_size",
    ],
    &[
        "pp",
        "pipeline_parallel",
        "pipeline_parallel_degree",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
        "pp_size",
    ],
    &["cp", "context_parallel", "context_parallel_degree", "context_parallel_size", "cp_size"],
    &[
        "ep",
        "expert_parallel",
        "expert_parallel_degree",
        "expert_parallel_size",
        "expert_model_parallel_size",
        "ep_size",
    ],
    &["parallel.schedule", "pipeline_parallel_schedule"],
    &["activation_checkpointing", "gradient_checkpointing", "activation_checkpoint", "recompute"],
    &["param", "dtype", "mixed_precision", "precision"],
    &["data", "dataset", "dataset_path", "data_path", "data_dir", "train_file", "train_data", "corpus"],
    &["tokenizer", "tokenizer_name", "tokenizer_path"],
    &["model", "model_name", "preset"],
    &["config", "config_file", "config_path", "cfg"],
    &["seed", "random_seed", "manual_seed"],
    &["epochs", "num_train_epochs", "num_epochs", "max_epochs", "n_epochs"],
    &["val_fraction", "val_split", "val_ratio"],
    &["checkpoint.every", "save_every", "save_steps", "save_interval", "checkpoint_interval", "checkpoint.interval"],
    &["metrics.every", "log_every", "log_interval", "logging_steps", "log_freq"],
    &["out", "out_dir", "output", "output_dir"],
    &["resume", "init_from", "load", "resume_from", "resume_from_checkpoint"],
    &["val_every", "eval_every", "eval_interval", "eval_steps"],
    &["val_batches", "eval_iters", "eval_batches"],
    &["n_layer", "num_hidden_layers", "num_layers", "n_layers", "layers"],
    &["n_head", "num_attention_heads", "num_heads", "n_heads", "heads"],
    &["n_embd", "hidden_size", "d_model", "dim", "width"],
    &["n_inner", "intermediate_size", "ffn_dim", "d_ff"],
    &["n_positions", "max_position_embeddings"],
    &["layer_norm_epsilon", "rms_norm_eps", "norm_eps"],
    &["num_experts", "n_routed_experts", "n_experts", "num_local_experts", "experts"],
    &["top_k", "topk", "num_experts_per_tok"],
    &["n_shared_experts", "num_shared_experts"],
    &["aux_loss_coef", "aux_loss_alpha", "balance_loss"],
    &["mtp_depth", "num_nextn_predict_layers", "mtp_num_layers"],
    &["mtp_loss_coef", "mtp_loss_scaling_factor", "mtp_loss_weight"],
    &["keep", "save_total_limit", "keep_latest_k"],
    &["patience", "early_stopping_patience"],
    &["peak_tflops", "peak_flops"],
    &["tokens", "max_new_tokens", "max_tokens", "num_tokens", "n_predict"],
    &["samples", "num_samples", "num_return_sequences"],
];

/// Strategies under their names in DeepSpeed and PyTorch.
const STRATEGIES: &[(Strategy, &[&str])] = &[
    (Strategy::Ddp, &["zero0", "no_shard"]),
    (Strategy::ShardGradOp, &["zero2"]),
    (Strategy::FullShard, &["zero3", "fsdp", "fsdp2"]),
    (Strategy::HybridShard, &["hsdp"]),
];

/// Values of a key, by the key's last part, under their names in PyTorch.
const VALUES: &[(&str, &str, &[&str])] = &[
    ("param", "bf16", &["bfloat16", "bf16_mixed", "torch.bfloat16"]),
    ("param", "fp16", &["float16", "half", "torch.float16"]),
    ("param", "fp32", &["float32", "float", "no", "torch.float32"]),
];

/// The names with the same meaning, starting with `name` itself.
pub(crate) fn synonyms(name: &str) -> impl Iterator<Item = &str> {
    let others = SYNONYMS.iter().filter(move |group| group.contains(&name)).flat_map(|group| group.iter().copied());
    std::iter::once(name).chain(others.filter(move |other| *other != name))
}

/// Aliases of a strategy.
pub(crate) fn names_of(strategy: Strategy) -> impl Iterator<Item = &'static str> {
    STRATEGIES.iter().filter(move |(of, _)| *of == strategy).flat_map(|(_, names)| names.iter().copied())
}

/// Finds a strategy by any of its names, ignoring case and `-` versus `_`.
pub(crate) fn strategy_called(name: &str) -> Option<Strategy> {
    let name = name.to_lowercase().replace('-', "_");
    Strategy::ALL.into_iter().find(|of| of.name() == name || names_of(*of).any(|other| other == name))
}

/// Translates a value of a key from another program's name.
pub(crate) fn value_called<'a>(key: &str, value: &'a str) -> &'a str {
    let same = |(of, _, names): &&(&str, &str, &[&str])| key.rsplit('.').next() == Some(of) && names.contains(&value);
    VALUES.iter().find(same).map_or(value, |(_, ours, _)| ours)
}
