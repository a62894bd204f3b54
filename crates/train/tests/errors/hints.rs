//! Hints for names from other trainers, with or without an equivalent in Kiln.

use super::{Mistake, answered};

#[test]
fn a_flag_or_command_of_another_trainer_is_answered_with_what_is_given_here() {
    answered(FLAGS);
    answered(COMMANDS);
}

#[test]
fn a_model_under_another_spelling_is_answered_with_ours() {
    answered(MODELS);
}

const FLAGS: &[Mistake] = &[
    ("nanoGPT's compiler", &[], "--model gpt2 --compile", &["'--compile'", "nothing to switch on: leave it out"]),
    ("transformers' compiler", &[], "--model gpt2 --torch_compile True", &["nothing to switch on: leave it out"]),
    ("its metrics", &[], "--model gpt2 --wandb", &["metrics.jsonl", "tb/ for TensorBoard", "`train report RUN`"]),
    ("its types", &[], "--model gpt2 --bf16", &["did you mean `--set parallel.precision.param=bf16`?"]),
    ("others of them", &[], "--model gpt2 --fp16", &["did you mean `--set parallel.precision.param=fp16`?"]),
    ("nanoGPT's type", &[], "--dtype=bfloat16", &["did you mean `--set parallel.precision.param=bf16`?"]),
    ("the steps of transformers", &[], "--max-steps 9", &["did you mean `--steps 9`?"]),
    ("its seed", &[], "--random_seed 9", &["did you mean `--seed 9`?"]),
    ("a checkpoint", &[], "--resume-from runs/a", &["did you mean `--resume runs/a`?"]),
    ("nanoGPT's checkpoint", &[], "--init_from=resume", &["did you mean `--resume latest`?"]),
    (
        "its accumulation",
        &[],
        "--gradient_accumulation_steps=8",
        &["`--batch-size` of a whole step", "`--set train.micro_batch_size=N`"],
    ),
    ("its interval", &[], "--log_interval=10", &["did you mean `--set metrics.every=10`?"]),
    ("another", &[], "--save_steps 10", &["did you mean `--set checkpoint.every=10`?"]),
    ("its patience", &[], "--early_stopping_patience 3", &["did you mean `--set train.patience=3`?"]),
    ("torchtitan's section", &[], "--training.steps 9", &["did you mean `--steps 9`?"]),
    ("its axis", &[], "--parallelism.tensor_parallel_degree 2", &["did you mean `--set parallel.tp=2`?"]),
    ("its file", &[], "--job.config_file a.toml", &["did you mean `--config a.toml`?"]),
    ("a strategy as a flag", &[], "--model gpt2 --fsdp", &["did you mean `--strategy full_shard`?"]),
    ("a key in a plan", &[], "plan --model gpt2 --tp 2", &["did you mean `--set parallel.tp=2`?"]),
    ("Megatron's key in a plan", &[], "plan --tensor-model-parallel-size 2", &["did you mean `--set parallel.tp=2`?"]),
    ("nodes in a plan", &[], "plan --model gpt2 --nodes 4", &["ranks are threads (`--gpus N`)"]),
    (
        "a key of a file",
        &[("a.yaml", b"base: preset:gpt2\ncheckpoint: {save_every: 5}")],
        "--config a.yaml",
        &["unknown key `checkpoint.save_every` in a.yaml", "did you mean `checkpoint.every`?"],
    ),
    ("torchtitan's interval", &[], "--checkpoint.interval=3", &["did you mean `--set checkpoint.every=3`?"]),
    ("a schedule of transformers", &[], "--lr_scheduler_type=cosine", &["did you mean `--set optim.schedule=cosine`?"]),
    ("its validations", &[], "--eval_strategy=no", &["give `--set train.val_every=N`, with 0 for the end only"]),
    ("nanoGPT's saves", &[], "--always_save_checkpoint=True", &["saved every checkpoint.every steps and at the end"]),
    ("Megatron's axis", &[], "--tensor-parallel 2", &["did you mean `--set parallel.tp=2`?"]),
    ("its recomputation", &[], "--recompute-activations", &["`--set parallel.activation_checkpointing=full`"]),
    ("its optimizer", &[], "--use-distributed-optimizer", &["did you mean `--strategy zero1`?"]),
    ("machines", &[], "--nodes 2", &["docs/several-machines.md"]),
    ("readers", &[], "--workers 4", &["a thread of its own reads ahead: leave it out"]),
    (
        "a model beside a file",
        &[("a.yaml", b"base: preset:gpt2")],
        "--config a.yaml --model gpt2",
        &["cannot be used with", "tip: a file names its model itself: write `base: preset:NAME`"],
    ),
    ("a key in capitals", &[], "--model gpt2 --set Optim.LR=3", &["did you mean `optim.lr`?"]),
    ("torchrun's address", &[], "--master_addr 10.0.0.1", &["`--gpus N`", "docs/several-machines.md"]),
];

const COMMANDS: &[Mistake] = &[
    ("a command to resume", &[], "resume", &["'resume'", "did you mean `--resume latest`?"]),
    ("a run to resume", &[], "resume runs/a", &["did you mean `--resume runs/a`?"]),
    ("a command to train", &[], "pretrain --model gpt2", &["training has no command of its own", "--model NAME"]),
    ("a command to sample", &[], "sample run", &["did you mean `train generate RUN`?"]),
    ("a command to train, misspelt", &[], "trian", &["training has no command of its own", "--model NAME"]),
    ("a command to serve", &[], "serve", &["did you mean `train report RUN --serve`?"]),
    ("a flag of another command", &[], "generate run --max-new-tokens 5", &["tip: did you mean `--tokens 5`?"]),
    ("a preset as a command, spelt otherwise", &[], "GPT2", &["did you mean `--model gpt2`?"]),
];

const MODELS: &[Mistake] = &[
    ("capitals", &[], "--model GPT2", &["no preset `GPT2`", "did you mean `gpt2`?"]),
    ("a hyphen", &[], "--model gpt-2", &["did you mean `gpt2`?"]),
    ("an underscore", &[], "--model deepseek_v3", &["did you mean `deepseek-v3`?"]),
    ("no hyphen", &[], "--model DeepSeekV2Lite", &["did you mean `deepseek-v2-lite`?"]),
    ("Hugging Face's name", &[], "--model deepseek-ai/DeepSeek-V3", &["did you mean `deepseek-v3`?"]),
    ("Hugging Face's GPT-2", &[], "--model openai-community/gpt2", &["did you mean `gpt2-124m`?"]),
    ("a size by its letters", &[], "--model gpt2-xl", &["did you mean `gpt2-1558m`?"]),
    (
        "a family without a preset",
        &[],
        "--model mistral",
        &["no preset `mistral`", "train import --hf FOLDER --out RUN"],
    ),
    (
        "a model of the hub",
        &[],
        "--model meta-llama/Llama-3.2-1B",
        &["no preset `meta-llama/Llama-3.2-1B`", "train import --hf FOLDER --out RUN"],
    ),
    ("a base", &[("a.yaml", b"base: preset:GPT-2")], "--config a.yaml", &["did you mean `gpt2`?"]),
];
