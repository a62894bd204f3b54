//! Tiny models, as arguments of the program and as keys of a configuration. Steps take milliseconds.

/// Arguments of a model of a few thousand parameters; it reads `text.txt` in the program's working folder.
pub const TINY: &[&str] = &[
    "--model=gpt2",
    "--data=text.txt",
    "--set=model.n_layer=2",
    "--set=model.n_head=2",
    "--set=model.n_embd=16",
    "--set=train.seq_len=16",
    "--set=train.global_batch_size=4",
    "--set=train.sample_tokens=0",
    "--set=train.val_batches=2",
    "--set=train.val_every=0",
];

/// Arguments of a similar model with experts.
pub const TINY_EXPERTS: &[&str] = &[
    "--model=deepseek",
    "--data=text.txt",
    "--set=model.num_hidden_layers=2",
    "--set=model.hidden_size=16",
    "--set=model.intermediate_size=32",
    "--set=moe.num_experts=4",
    "--set=moe.moe_intermediate_size=16",
    "--set=train.seq_len=16",
    "--set=train.global_batch_size=4",
    "--set=train.sample_tokens=0",
    "--set=train.val_batches=2",
    "--set=train.val_every=0",
];

/// A GPT-2 with dropout.
pub const GPT2: &[&str] =
    &["model.n_layer=2", "model.n_embd=16", "model.n_head=4", "model.n_positions=8", "model.dropout=0.2"];

/// A DeepSeek-V2 with one dense block, and experts with capacity, noise and balance losses.
pub const DEEPSEEK: &[&str] = &[
    "model.num_hidden_layers=2",
    "model.hidden_size=16",
    "model.intermediate_size=20",
    "model.num_attention_heads=4",
    "model.q_lora_rank=null",
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
    "moe.capacity_factor=0.75",
    "moe.aux_loss_coef=0.1",
    "moe.z_loss_coef=0.01",
    "moe.router_noise=0.05",
    "train.z_loss_coef=0.1",
];

/// A Llama: two query heads for each of four key-value heads, a window, biases and norms of queries and keys.
pub const LLAMA: &[&str] = &[
    "model.num_hidden_layers=2",
    "model.hidden_size=16",
    "model.intermediate_size=20",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "model.head_dim=4",
    "model.qkv_bias=true",
    "model.qk_norm=true",
    "model.sliding_window=5",
    "model.max_window_layers=1",
    "model.max_position_embeddings=8",
    "train.z_loss_coef=0.1",
];

/// What turns it into a Mixtral or Qwen3-MoE: experts in the second block.
pub const LLAMA_EXPERTS: &[&str] = &[
    "model.mlp_only_layers=[0]",
    "moe.num_experts=4",
    "moe.top_k=2",
    "moe.moe_intermediate_size=12",
    "moe.aux_loss_coef=0.1",
    "moe.router_noise=0.05",
];

/// What turns it into a DeepSeek-V3: compressed queries, and a dropless router with a selection bias.
pub const DEEPSEEK_V3: &[&str] = &[
    "model.q_lora_rank=6",
    "moe.score_func=sigmoid",
    "moe.selection_bias=true",
    "moe.capacity_factor=null",
    "moe.router_noise=0",
    "moe.overflow=drop",
];
