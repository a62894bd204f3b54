//! Mistakes in the arguments of training.

use super::common::{TINY, metrics, run, values};
use super::{Mistake, answered};
use std::fs;

const CONFIGURATION: &[Mistake] = &[
    ("no model", &[], "", &["--model NAME", "--config FILE", "gpt2, ", "deepseek"]),
    ("a model near another's name", &[], "--model deepsek", &["no preset `deepsek`", "did you mean `deepseek`?"]),
    ("a model near none", &[], "--model bert", &["no preset `bert`", "Presets: gpt2, ", "deepseek-v3"]),
    (
        "model and config",
        &[("a.yaml", b"")],
        "--model gpt2 --config a.yaml",
        &["--model", "--config", "cannot be used"],
    ),
    (
        "documents apart in tokens that do not say where they end",
        &[("tokens.bin", &[0; 900])],
        "--model gpt2 --data tokens.bin --seq-len 16 --set model.vocab_size=256 --set data.document_mask=true",
        &["data.document_mask is set, but nothing says where documents of tokens.bin end", "data.tokenizer"],
    ),
    (
        "rows of documents that are all empty",
        &[("tokens.bin", &[0; 900])],
        "--model gpt2 --data tokens.bin --set data.tokenizer=byte --seq-len 16 --set data.buckets=[8,16] --out run",
        &["405 tokens, whose documents do not fill one row of 9", "data.buckets"],
    ),
    (
        "patience without validations",
        &[],
        "--model gpt2 --set train.val_every=0 --set train.patience=3",
        &["train.patience is 3, but train.val_every is 0", "set train.val_every"],
    ),
    (
        "an upload to what is no store",
        &[],
        "--model gpt2 --set checkpoint.upload=https://host/bucket",
        &["checkpoint.upload: https://host/bucket", "AWS_ENDPOINT_URL", "give s3://BUCKET/PREFIX"],
    ),
    #[cfg(not(feature = "cloud"))]
    (
        "an upload by a build without stores",
        &[],
        "--model gpt2 --set checkpoint.upload=s3://bucket/run",
        &["checkpoint.upload: s3://bucket/run: this program was built without object stores", "--features cloud"],
    ),
    #[cfg(not(feature = "cloud"))]
    (
        "a run in a store, resumed by a build without stores",
        &[],
        "--resume s3://bucket/run@12",
        &["--resume: s3://bucket/run: this program was built without object stores", "--features cloud"],
    ),
    #[cfg(feature = "cloud")]
    (
        "an upload of nothing",
        &[],
        "--model gpt2 --set checkpoint.upload=s3://bucket/run --set checkpoint.keep=0",
        &["checkpoint.upload is given, and checkpoint.keep is 0"],
    ),
    ("no such config", &[], "--config none.yaml", &["cannot read none.yaml", "check the path"]),
    (
        "a config that is not UTF-8",
        &[("a.yaml", b"\xff\xfem\0o\0d\0e\0l\0")],
        "--config a.yaml",
        &["cannot read a.yaml", "valid UTF-8: save it as UTF-8"],
    ),
    ("a folder for a config", &[("a/", b"")], "--config a", &["cannot read a: Is a directory"]),
    (
        "a config that is not YAML",
        &[("a.yaml", b"model: {type: gpt2\ntrain: 1")],
        "--config a.yaml",
        &["a.yaml is not valid YAML", "line 2"],
    ),
    (
        "a config without a model",
        &[("a.yaml", b"train: {}")],
        "--config a.yaml",
        &["`model.type` is missing in a.yaml"],
    ),
    (
        "a key misspelt in a file",
        &[("a.yaml", b"base: preset:gpt2\noptim: {weight_decy: 0}")],
        "--config a.yaml",
        &["unknown key `optim.weight_decy` in a.yaml", "did you mean `optim.weight_decay`?"],
    ),
    (
        "a key misspelt in the base",
        &[("a.yaml", b"base: b.yaml"), ("b.yaml", b"base: preset:gpt2\ntrain: {step: 1}")],
        "--config a.yaml",
        &["unknown key `train.step` in b.yaml", "did you mean `train.steps`?"],
    ),
    (
        "a key misspelt in --set",
        &[],
        "--model gpt2 --set train.step=1",
        &["unknown key `train.step` in --set", "did you mean `train.steps`?"],
    ),
    ("--set without a value", &[], "--model gpt2 --set train.steps", &["--set train.steps", "KEY=VALUE"]),
    (
        "a word for a number in --set",
        &[],
        "--model gpt2 --set train.steps=many",
        &["`train.steps` is \"many\" in --set", "a whole number"],
    ),
    (
        "a word for a number in a file",
        &[("a.yaml", b"base: preset:gpt2\noptim: {lr: fast}")],
        "--config a.yaml",
        &["`optim.lr` is \"fast\" in a.yaml", "a number"],
    ),
    (
        "a circle of bases",
        &[("a.yaml", b"base: b.yaml"), ("b.yaml", b"base: a.yaml")],
        "--config a.yaml",
        &["`base` is circular", "a.yaml -> ", "b.yaml -> ", "remove one"],
    ),
    ("no such base", &[("a.yaml", b"base: b.yaml")], "--config a.yaml", &["cannot read b.yaml, the base of a.yaml"]),
    ("ranks below none", &[], "--model gpt2 --gpus -1", &["'-1'", "--gpus", "a whole number, 1 or above"]),
    ("no steps", &[], "--model gpt2 --steps 0", &["'0'", "--steps", "a whole number, 1 or above"]),
    (
        "more ranks than sequences",
        &[],
        "--model gpt2 --gpus 3 --batch-size 2",
        &["global_batch_size is 2", "3 ranks", "at least 3 (--batch-size 3)"],
    ),
    (
        "the largest number",
        &[],
        "--model gpt2 --gpus 4 --set train.micro_batch_size=null --set train.global_batch_size=18446744073709551615",
        &["global_batch_size is 18446744073709551615", "lower it"],
    ),
    (
        "the largest number in a pipeline",
        &[],
        "--model gpt2 --gpus 4 --set parallel.pp=2 --set train.global_batch_size=18446744073709551615",
        &["global_batch_size is 18446744073709551615", "lower it"],
    ),
    (
        "a size whose product with another has no place in a number",
        &[],
        "--model gpt2 --set model.n_embd=9223372036854775824",
        &["model.n_embd is 9223372036854775824", "parameters: lower it"],
    ),
    ("a size that no number holds", &[], "--model gpt2 --steps 1e30", &["'1e30'", "--steps", "whole number"]),
    (
        "a seed beyond 64 bits",
        &[],
        "--seed 99999999999999999999999",
        &["--seed", "too large: give a whole number up to 18446744073709551615"],
    ),
    (
        "steps beyond what floats count",
        &[],
        "--steps 1e19",
        &["--steps", "too large: give a whole number up to 9007199254740992"],
    ),
    ("a learning rate that is no number", &[], "--lr 1e-3x", &["'1e-3x'", "--lr", "give a number, such as"]),
    ("half a step", &[], "--model gpt2 --steps 1.5", &["'1.5'", "--steps", "give a whole number, 1 or above"]),
    (
        "experts without room",
        &[],
        "--model deepseek --set moe.capacity_factor=0",
        &["moe.capacity_factor is 0.0", "above 0"],
    ),
    ("no rotation", &[], "--model deepseek --set model.rope_theta=0", &["model.rope_theta is 0.0", "above 1"]),
    (
        "a learning rate below the lowest",
        &[],
        "--model gpt2 --set optim.lr=5e-5",
        &["optim.min_lr is 0.0001", "--lr scales both"],
    ),
    ("no learning rate", &[], "--model gpt2 --lr 0", &["optim.lr is 0.0", "above 0"]),
    ("no such strategy", &[], "--model gpt2 --strategy zero4", &["'zero4'", "--strategy", "zero1", "full_shard"]),
    ("a seed below 0", &[], "--model gpt2 --seed -1", &["'-1'", "--seed"]),
    ("a seed that is no number", &[], "--model gpt2 --seed one", &["'one'", "--seed"]),
    (
        "a sequence longer than the context",
        &[],
        "--model gpt2 --set train.seq_len=257",
        &["train.seq_len is 257", "model.n_positions, which is 256"],
    ),
    (
        "a vocabulary smaller than the tokenizer's",
        &[],
        "--model gpt2 --set model.vocab_size=255",
        &["model.vocab_size is 255", "256 tokens", "or 0"],
    ),
];

/// Unknown arguments, and what they are taken for.
const ARGUMENTS: &[Mistake] = &[
    (
        "PyTorch's learning rate",
        &[],
        "--model gpt2 --learning-rate 1e-3",
        &["'--learning-rate'", "did you mean `--lr 1e-3`?"],
    ),
    ("an underscore", &[], "--batch_size=4", &["'--batch_size'", "did you mean `--batch-size 4`?"]),
    ("torchrun's ranks", &[], "--nproc 4", &["'--nproc'", "did you mean `--gpus 4`?"]),
    ("a misspelt flag", &[], "--modle gpt2", &["'--modle'", "did you mean `--model gpt2`?"]),
    ("a key as a flag", &[], "--warmup-steps 5", &["did you mean `--set optim.warmup_steps=5`?"]),
    ("a key with an underscore", &[], "--top_k 4", &["did you mean `--set moe.top_k=4`?"]),
    ("a key without a value", &[], "--model gpt2 --cpu-offload", &["did you mean `--set parallel.cpu_offload=VALUE`?"]),
    ("a whole key as a flag", &[], "--parallel.wrap=block", &["did you mean `--set parallel.wrap=block`?"]),
    ("a key of two sections", &[], "--every 5", &["`--set checkpoint.every=5` or `--set metrics.every=5`"]),
    ("a misspelt key", &[], "--micro-batchsize 2", &["did you mean `--set train.micro_batch_size=2`?"]),
    ("a key of one model", &[], "--model gpt2 --n_layer 3", &["did you mean `--set model.n_layer=3`?"]),
    ("its name in the other", &[], "--model deepseek --n_layer 3", &["`--set model.num_hidden_layers=3`?"]),
    ("a preset as a command", &[], "deepseek", &["did you mean `--model deepseek`?"]),
    ("a preset behind flags", &[], "--gpus 2 deepseek", &["'deepseek'", "did you mean `--model deepseek`?"]),
    ("a word behind flags", &[], "--gpus 2 quickly", &["unexpected argument 'quickly' found"]),
    ("--set without =", &[], "--model gpt2 --set optim.lr 1e-3", &["did you mean `--set optim.lr=1e-3`?"]),
    ("a flag near none", &[], "--xyzzy", &["'--xyzzy'", "Usage"]),
    ("a flag of a command", &[], "config --model gpt2 --learning_rate 1", &["did you mean `--lr 1`?"]),
    ("a flag that a command has not", &[], "inspect --batch_size 4 run", &["'--batch_size'", "Usage: train inspect"]),
];

const DATA_DEVICE_AND_FOLDER: &[Mistake] = &[
    ("no such data", &[], "--model gpt2 --data none.txt", &["data none.txt does not exist", "--data"]),
    (
        "broken JSONL",
        &[("a.jsonl", b"{\"text\": \"one\"}\n{\"body\": \"two\"}\n")],
        "--model gpt2 --data a.jsonl",
        &["a.jsonl, line 2: has no field \"text\", but body", "--set data.text_field=NAME"],
    ),
    (
        "broken gzip",
        &[("a.txt.gz", b"\x1f\x8b\x08 not gzip")],
        "--model gpt2 --data a.txt.gz",
        &["a.txt.gz is not whole"],
    ),
    (
        "broken Parquet",
        &[("a.parquet", b"PAR1 not Parquet")],
        "--model gpt2 --data a.parquet",
        &["a.parquet is not a Parquet"],
    ),
    ("broken tokens", &[("a.bin", b"odd")], "--model gpt2 --data a.bin", &["token file a.bin"]),
    (
        "a tokenizer that is none",
        &[("a.txt", b"text"), ("t.json", b"{}")],
        "--model gpt2 --data a.txt --set data.tokenizer=t.json",
        &["t.json"],
    ),
    ("empty data", &[("a.txt", b"")], "--model gpt2 --data a.txt", &["data a.txt is empty: give a text"]),
    (
        "a folder for data",
        &[("a/", b"")],
        "--model gpt2 --data a",
        &["folder a holds no text, JSONL, CSV, Parquet or .bin files: give one that does"],
    ),
    (
        "data that is not UTF-8",
        &[("a.txt", b"caf\xe9, caf\xe9")],
        "--model gpt2 --data a.txt",
        &["data file a.txt is not UTF-8", "first bad byte at offset 3", "iconv"],
    ),
    (
        "data shorter than a sequence",
        &[("a.txt", b"To be, or not to be")],
        "--model gpt2 --data a.txt",
        &["the training split has 17 tokens", "seq_len + 1 = 129", "give a longer text, or lower train.seq_len"],
    ),
    ("no such device", &[], "--model gpt2 --device gpu", &["--device gpu", "auto, cpu, or cuda, vulkan or metal"]),
    ("a device's number that is none", &[], "--model gpt2 --device cuda:x", &["--device cuda:x", "not a number"]),
    (
        "a run folder below a file",
        &[("a.txt", b"a")],
        "--model gpt2 --out a.txt/run",
        &["cannot write the run folder a.txt/run", "Not a directory", "--out"],
    ),
    (
        "a folder that holds a run",
        &[("run/metrics.jsonl", b"{}\n"), ("run/config.yaml", b"mine")],
        "--model gpt2 --out run",
        &["run holds a run already", "--out"],
    ),
];

#[test]
fn a_mistake_in_the_configuration_is_answered_before_anything_is_written() {
    answered(CONFIGURATION);
}

#[test]
fn an_argument_that_is_none_is_answered_with_the_one_that_is_meant() {
    answered(ARGUMENTS);
}

#[test]
fn a_mistake_in_data_device_or_folder_is_answered_before_anything_is_written() {
    answered(DATA_DEVICE_AND_FOLDER);
}

/// Needs terabytes; a forced run gets as far as the data, which does not exist.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_does_not_fit_is_answered_with_what_it_takes_and_can_be_forced() {
    answered(&[
        (
            "too large",
            &[],
            "--model deepseek-v3 --data no.txt --set model.num_hidden_layers=200",
            &["the run needs about", "TB of memory", "What would help", "192 GB", "--force"],
        ),
        (
            "too large, and forced",
            &[],
            "--model deepseek-v3 --data no.txt --set model.num_hidden_layers=200 --force",
            &["no.txt does not exist"],
        ),
    ]);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_in_a_build_without_one_is_answered_with_how_to_build() {
    answered(&[("no CUDA", &[], "--model gpt2 --device cuda", &["--device cuda", "no CUDA", "--features cuda"])]);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_at_its_step() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "0 1 2 3 4 5 6 7 8 9 ".repeat(20)).unwrap();
    let args = [TINY, &["--gpus=2", "--set=optim.lr=1e30", "--set=optim.warmup_steps=0", "--out=run"]].concat();
    let output = run(folder.path(), &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("step 2: the output of ") && !stderr.contains("panicked"), "{stderr}");
    assert_eq!(values(&metrics(&folder.path().join("run")), "loss").len(), 1);
}

#[test]
fn a_token_beyond_the_vocabulary_ends_the_run_where_it_comes_up() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = |ids: std::ops::Range<u16>| ids.flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    for (name, train, val) in [("train", 0..4000, 0..256), ("val", 0..256, 0..4000)] {
        let data = folder.path().join(name);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("train.bin"), tokens(train)).unwrap();
        fs::write(data.join("val.bin"), tokens(val)).unwrap();
        let args: Vec<&str> = TINY.iter().copied().filter(|arg| *arg != "--data=text.txt").collect();
        let more = ["--data", name, "--set=model.vocab_size=256", "--set=train.val_batches=0", "--steps=2", "--gpus=2"];
        let output = run(folder.path(), &[&args[..], &more].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(
            stderr.contains("and model.vocab_size is 256: give the tokenizer") && !stderr.contains("panicked"),
            "{name}: {stderr}"
        );
    }
}
