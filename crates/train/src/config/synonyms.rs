/// Names that other programs have for the same thing; ours is among them, as a key's last part or as a flag.
const SYNONYMS: &[&[&str]] = &[
    &["lr", "learning_rate", "max_lr"],
    &["min_lr", "lr_min", "eta_min"],
    &["beta1", "adam_beta1"],
    &["beta2", "adam_beta2"],
    &["epsilon", "eps", "adam_epsilon"],
    &["weight_decay", "wd"],
    &["clip_grad_norm", "grad_clip", "max_grad_norm", "gradient_clipping"],
    &["warmup_steps", "warmup_iters", "warmup", "lr_warmup"],
    &["schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"],
    &["steps", "max_steps", "num_steps", "train_steps", "max_iters", "iters", "iterations"],
    &["batch_size", "global_batch_size", "train_batch_size", "batch"],
    &["micro_batch_size", "device_batch_size", "local_batch_size", "per_device_train_batch_size"],
    &["seq_len", "seq_length", "max_seq_len", "sequence_length", "block_size", "context_length"],
    &["gpus", "num_gpus", "nproc", "nproc_per_node", "num_processes", "world_size", "ranks"],
    &["strategy", "sharding_strategy", "dp_mode"],
    &["dp_replicate", "data_parallel_replicate_degree"],
    &["activation_checkpointing", "gradient_checkpointing", "activation_checkpoint", "recompute"],
    &["param", "dtype", "mixed_precision", "precision"],
    &["data", "dataset", "dataset_path", "data_path", "corpus"],
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
    &["keep", "save_total_limit"],
    &["peak_tflops", "peak_flops"],
];

/// What is meant by a name, itself first.
pub(crate) fn synonyms(name: &str) -> impl Iterator<Item = &str> {
    let others = SYNONYMS.iter().filter(move |group| group.contains(&name)).flat_map(|group| group.iter().copied());
    std::iter::once(name).chain(others.filter(move |other| *other != name))
}
