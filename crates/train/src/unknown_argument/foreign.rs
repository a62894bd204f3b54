//! Flags and commands of other trainers that have no equivalent here, and what to do instead.

use crate::program;
use strsim::jaro_winkler;

/// Minimum similarity for a word to count as a misspelling, because any word may appear in a command's place.
const ALIKE: f64 = 0.9;

/// Flags, written with underscores, with a tip, in which `{program}` is the program's name.
const FLAGS: &[(&[&str], &str)] = &[
    (
        &["compile", "torch_compile", "use_compile"],
        "operations are fused as they are; there is nothing to switch on: leave it out",
    ),
    (
        &["flash", "flash_attn", "flash_attention", "use_flash_attn", "attn_implementation", "sdpa"],
        "attention never has a matrix of T x T in memory; there is nothing to switch on: leave it out",
    ),
    (
        &["wandb", "wandb_log", "wandb_project", "wandb_run_name", "use_wandb", "report_to", "log_with", "tensorboard"],
        "a run always writes metrics.jsonl, and tb/ for TensorBoard; `{program} report RUN` draws them: leave it out",
    ),
    (&["bf16", "bfloat16", "amp"], "did you mean `--set parallel.precision.param=bf16`?"),
    (&["fp16", "float16", "half"], "did you mean `--set parallel.precision.param=fp16`?"),
    (
        &[
            "gradient_accumulation_steps",
            "gradient_accumulation",
            "accumulate_grad_batches",
            "grad_accum",
            "grad_accum_steps",
        ],
        "gradients are accumulated over as many micro-batches as the batch takes: give `--batch-size` of a whole step, and \
         `--set train.micro_batch_size=N`",
    ),
    (
        &["recompute_activations", "recompute_granularity", "gradient_checkpointing"],
        "did you mean `--set parallel.activation_checkpointing=full`?",
    ),
    (&["use_distributed_optimizer"], "did you mean `--strategy zero1`?"),
    (&["always_save_checkpoint"], "a checkpoint is saved every checkpoint.every steps and at the end: leave it out"),
    (
        &["eval_strategy", "evaluation_strategy"],
        "it validates every train.val_every steps: give `--set train.val_every=N`, with 0 for the end only",
    ),
    (
        &["save_strategy"],
        "it saves every checkpoint.every steps: give `--set checkpoint.every=N`, with 0 for the end only",
    ),
    (&["warmup_ratio"], "the warm-up is counted in steps: give `--set optim.warmup_steps=N`"),
    (
        &["lr_decay_iters", "lr_decay_steps", "decay_lr"],
        "the learning rate falls until the last of --steps: `--set optim.schedule=constant` keeps it as it is",
    ),
    (&["optim", "optimizer"], "the optimizer is AdamW: leave it out"),
    (
        &["model_name_or_path", "pretrained", "pretrained_model", "from_pretrained", "hf"],
        "give `--model NAME` for a new model; `{program} import --hf FOLDER --out RUN` makes a run of one of Hugging Face's",
    ),
    (
        &["overwrite_output_dir"],
        "a run is never overwritten: name another folder with --out, or resume it with --resume",
    ),
    (&["do_train", "do_eval"], "it trains, and validates at the end: leave it out"),
    (&["eval_only"], "did you mean `{program} eval RUN`?"),
    (
        &["workers", "num_workers", "dataloader_num_workers", "pin_memory"],
        "a thread of its own reads ahead: leave it out",
    ),
    (
        &[
            "local_rank",
            "node_rank",
            "nodes",
            "num_nodes",
            "nnodes",
            "master_addr",
            "master_port",
            "backend",
            "ddp_backend",
        ],
        "ranks are threads (`--gpus N`), or processes that `mpirun` starts: see docs/several-machines.md",
    ),
    (&["deepspeed", "deepspeed_config"], "give `--strategy`: zero1, zero2 or zero3"),
    (&["lora", "lora_r", "use_lora", "peft", "use_peft"], "all parameters are trained: there is no LoRA"),
];

/// Words in a command's place, with a tip of the same form.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["train", "run", "start", "fit", "pretrain", "finetune", "launch"],
        "training has no command of its own: did you mean `{program} --model NAME`?",
    ),
    (&["sample", "infer", "inference", "chat", "complete"], "did you mean `{program} generate RUN`?"),
    (&["evaluate", "validate", "val", "test"], "did you mean `{program} eval RUN`?"),
    (&["tokenize", "preprocess"], "did you mean `{program} prepare SRC --out DIR`?"),
    (&["models", "list", "ls"], "did you mean `{program} presets`?"),
    (&["show", "info"], "did you mean `{program} inspect RUN`?"),
    (&["serve", "watch"], "did you mean `{program} report RUN --serve`?"),
    (&["plot", "dashboard", "tensorboard"], "did you mean `{program} report RUN`?"),
    (&["convert", "save"], "did you mean `{program} export RUN --out DIR`, or `{program} import --hf DIR --out RUN`?"),
];

/// A tip for a flag, written with underscores.
pub(super) fn flag(name: &str) -> Option<String> {
    tip(FLAGS, name)
}

/// A tip for a word in a command's place, which may be misspelled.
pub(super) fn command(word: &str) -> Option<String> {
    let words = COMMANDS.iter().flat_map(|(words, _)| words.iter());
    let near = words.map(|near| (jaro_winkler(near, word), near)).max_by(|a, b| a.0.total_cmp(&b.0));
    near.filter(|(likeness, _)| *likeness >= ALIKE).and_then(|(_, near)| tip(COMMANDS, near))
}

fn tip(table: &[(&[&str], &str)], name: &str) -> Option<String> {
    let (_, tip) = table.iter().find(|(names, _)| names.contains(&name))?;
    Some(tip.replace("{program}", program::name()))
}
