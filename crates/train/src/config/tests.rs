//! Tests of configurations: loading, inheritance, overrides and errors.

mod adaptive;
mod buckets;
mod length;
mod numbers;
mod pages;

use model::{DeepSeekConfig, Gpt2Config};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::{ProptestConfig, Strategy as Generator, prop, prop_assert, proptest};
use tempfile::TempDir;

use super::*;
use crate::error::TrainError;

fn preset_with(name: &str, overrides: &[&str]) -> Result<Config, TrainError> {
    let overrides: Vec<String> = overrides.iter().map(|given| given.to_string()).collect();
    let config = Config::load(Source::Preset(name), &overrides)?;
    config.validate().map(|()| config)
}

/// Loads the first of these files, after writing all of them into one folder.
fn files(files: &[(&str, &str)]) -> Result<Config, TrainError> {
    let folder = TempDir::new().unwrap();
    for (name, yaml) in files {
        fs::write(folder.path().join(name), yaml).unwrap();
    }
    Config::load(Source::File(&folder.path().join(files[0].0)), &[])
}

/// Asserts that the result is an error whose message contains all of `parts`.
#[track_caller]
fn refuses(result: Result<Config, TrainError>, parts: &[&str]) {
    let message = result.expect_err("must be refused").to_string();
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { yaml_files(&path) } else { vec![path] });
    files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn every_file_in_configs_loads_and_every_one_in_presets_is_a_preset() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let all = yaml_files(&configs);
    for file in &all {
        let config = Config::load(Source::File(file), &[]);
        config.and_then(|config| config.validate()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    assert_eq!(yaml_files(&configs.join("presets")).len(), PRESETS.len());
    for preset in PRESETS {
        let file = configs.join("presets").join(format!("{}.yaml", preset.name));
        let loaded = Config::load(Source::Preset(preset.name), &[]).unwrap();
        let of_file = Config::load(Source::File(&file), &[]).unwrap();
        assert_eq!(loaded, Config { preset: Some(preset.name.into()), ..of_file });
        assert!(preset.about.ends_with('.'), "{}", preset.about);
    }
}

#[test]
fn the_resolved_yaml_of_every_preset_loads_to_an_equal_configuration() {
    for preset in PRESETS {
        let config = preset_with(preset.name, &["optim.epsilon=1e-9", "parallel.strategy=ddp"]).unwrap();
        assert_eq!(files(&[("resolved.yaml", &config.to_yaml())]).unwrap(), config, "{}", preset.name);
    }
}

#[test]
fn every_key_has_a_default_but_the_model_must_be_named() {
    assert_eq!(files(&[("a.yaml", "model: {type: gpt2}")]).unwrap(), Config::default());
    refuses(files(&[("a.yaml", "")]), &["`model.type` is missing", "a.yaml", &ModelConfig::types().join(", ")]);
    refuses(files(&[("a.yaml", "model: {n_layer: 2}")]), &["`model.type` is missing"]);
}

#[test]
fn a_file_inherits_key_by_key_from_files_and_presets() {
    let config = files(&[
        ("a.yaml", "base: b.yaml\nmoe: {top_k: 1}\ntrain: {steps: 7}"),
        ("b.yaml", "base: preset:deepseek\nmodel: {rope_scaling: {factor: 4}}\ntrain: {steps: 5, seed: 6}"),
    ])
    .unwrap();
    let preset = preset_with("deepseek", &[]).unwrap();
    assert_eq!((config.train.steps, config.train.seed), (7, 6));
    assert_eq!(config.moe, preset.moe.map(|moe| MoeConfig { top_k: 1, ..moe }));
    let shape = config.model.get::<DeepSeekConfig>().expect("inherits model.type");
    assert_eq!(shape.rope_scaling.as_ref().map(|yarn| (yarn.factor, yarn.beta_fast)), Some((4.0, 32.0)));
}

#[test]
fn a_circle_of_bases_is_shown() {
    let result = files(&[("a.yaml", "base: b.yaml"), ("b.yaml", "base: c.yaml"), ("c.yaml", "base: ./b.yaml")]);
    let Err(TrainError::ConfigCycle { chain }) = result else { panic!("{result:?}") };
    let names: Vec<_> = chain.iter().map(|file| Path::new(file).file_name().unwrap()).collect();
    assert_eq!(names, ["b.yaml", "c.yaml", "b.yaml"]);
}

#[test]
fn a_base_is_a_regular_file_of_a_configurations_size() {
    let long = format!("# {}", "a".repeat(1 << 20));
    refuses(files(&[("a.yaml", "base: b.yaml"), ("b.yaml", &long)]), &["b.yaml", "longer than 1048576 bytes"]);
    if Path::new("/dev/zero").exists() {
        refuses(files(&[("a.yaml", "base: /dev/zero")]), &["/dev/zero, the base of", "no regular file"]);
    }
}

#[test]
fn another_model_type_drops_the_inherited_model_and_experts() {
    let config = files(&[("a.yaml", "base: preset:deepseek\nmodel: {type: gpt2, n_layer: 2}")]).unwrap();
    assert_eq!(config.model, Gpt2Config { n_layer: 2, ..Gpt2Config::default() }.into());
    assert_eq!(config.moe, None);
    let set = preset_with("deepseek", &["model.n_layer=2", "model.type=gpt2"]).unwrap();
    assert_eq!((set.model, set.moe), (config.model, None));
    // The same type keeps them.
    assert_eq!(preset_with("deepseek", &["model.type=deepseek"]).unwrap(), preset_with("deepseek", &[]).unwrap());
}

#[test]
fn overrides_take_yaml_values_and_the_later_one_counts() {
    let config = preset_with(
        "deepseek",
        &[
            "model.rope_scaling.factor=8",
            "train.steps=5",
            "train.steps=6",
            "moe.capacity_factor=null",
            "data.source=a=b",
        ],
    )
    .unwrap();
    let shape = config.model.get::<DeepSeekConfig>().unwrap();
    assert_eq!(shape.rope_scaling.as_ref().map(|yarn| yarn.factor), Some(8.0));
    assert_eq!((config.train.steps, config.data.source.as_str()), (6, "a=b"));
    assert_eq!(config.moe.unwrap().capacity_factor, None);
    for malformed in ["train.steps", "=1", "train..steps=1", ".steps=1"] {
        refuses(preset_with("gpt2", &[malformed]), &["KEY=VALUE", malformed]);
    }
    refuses(preset_with("gpt2", &["optim={lr: 1"]), &["--set optim={lr: 1", "not valid YAML"]);
}

#[test]
fn a_misspelt_key_is_answered_with_the_nearest() {
    let file = |yaml| files(&[("a.yaml", "base: b.yaml"), ("b.yaml", yaml)]);
    refuses(file("optim: {weight_decy: 0}"), &["`optim.weight_decy`", "b.yaml", "did you mean `optim.weight_decay`?"]);
    refuses(file("optmi: {lr: 0}"), &["`optmi`", "did you mean `optim`?"]);
    let set = |name, given| preset_with(name, &[given]);
    refuses(set("gpt2", "train.step=1"), &["`train.step` in --set", "did you mean `train.steps`?"]);
    refuses(set("gpt2", "model.n_layers=1"), &["did you mean `model.n_layer`?"]);
    refuses(set("deepseek", "model.rope_scaling.factr=1"), &["did you mean `model.rope_scaling.factor`?"]);
    // In the wrong section, or in none.
    refuses(set("gpt2", "train.lr=1"), &["did you mean `optim.lr`?"]);
    refuses(set("gpt2", "gpus=4"), &["did you mean `parallel.gpus`?"]);
    refuses(set("gpt2", "optim.learning_rate=1"), &["did you mean `optim.lr`?"]);
    refuses(set("deepseek", "model.n_layer=1"), &["did you mean `model.num_hidden_layers`?"]);
    refuses(set("deepseek", "model.top_k=1"), &["did you mean `moe.top_k`?"]);
    refuses(set("deepseek", "beta_fast=1"), &["did you mean `model.rope_scaling.beta_fast`?"]);
    // Close to none: lists the existing keys.
    refuses(set("gpt2", "data.xyz=1"), &["the keys of `data` are source, tokenizer"]);
    refuses(set("gpt2", "model.q_lora_rank=1"), &["belongs to `model.type: deepseek`, not gpt2", "n_embd"]);
}

#[test]
fn a_value_of_the_wrong_type_is_answered_with_key_value_and_what_is_expected() {
    let set = |given| preset_with("deepseek", &[given]);
    refuses(set("train.steps=many"), &["`train.steps` is \"many\" in --set: give a whole number, 0 or above"]);
    refuses(set("train.steps=1.5"), &["`train.steps` is 1.5", "whole number"]);
    refuses(set("train.steps=1e30"), &["`train.steps` is 1e30", "a smaller whole number"]);
    refuses(set("train.steps=null"), &["`train.steps` is null", "whole number"]);
    refuses(set("train.micro_batch_size=-1"), &["`train.micro_batch_size` is -1", "whole number"]);
    refuses(set("train.steps.x=1"), &["`train.steps` is a mapping", "whole number"]);
    refuses(set("optim.lr=true"), &["`optim.lr` is true", "a number"]);
    refuses(set("optim.schedule=step"), &["`optim.schedule` is \"step\"", "`cosine`, `linear`, `wsd` or `constant`"]);
    refuses(set("moe.norm_topk_prob=1"), &["`moe.norm_topk_prob` is 1", "true or false"]);
    refuses(set("moe.score_func=relu"), &["`moe.score_func` is \"relu\"", "`softmax` or `sigmoid`"]);
    refuses(set("moe.overflow=lose"), &["`moe.overflow` is \"lose\"", "`drop` or `reroute`"]);
    refuses(set("moe.group_mask=one"), &["`moe.group_mask` is \"one\"", "`neg_inf` or `zero`"]);
    refuses(set("moe.order=any"), &["`moe.order` is \"any\"", "`choice` or `token`"]);
    let strategies = "`ddp`, `zero1`, `shard_grad_op`, `full_shard`, `hybrid_shard` or `block`";
    refuses(set("parallel.strategy=zero"), &[strategies]);
    refuses(set("parallel.strategy=true"), &["`parallel.strategy` is true", strategies]);
    refuses(set("parallel.wrap=blocks"), &["`parallel.wrap` is \"blocks\"", "`block` or `size:MIN_PARAMS`"]);
    refuses(set("parallel.wrap=5"), &["`parallel.wrap` is 5", "`block` or `size:MIN_PARAMS`"]);
    refuses(set("parallel.activation_checkpointing=every"), &["`none`, `full` or `every:K`"]);
    refuses(
        set("parallel.precision.param=fp8"),
        &["`parallel.precision.param` is \"fp8\"", "`fp32`, `bf16` or `fp16`"],
    );
    refuses(set("parallel.backward_prefetch=early"), &["`none`, `pre` or `post`"]);
    let names: Vec<String> = ModelConfig::types().into_iter().map(|name| format!("`{name}`")).collect();
    let (last, others) = names.split_last().unwrap();
    let types = format!("{} or {last}", others.join(", "));
    refuses(set("model.type=5"), &["`model.type` is 5", &types]);
    refuses(set("data.source=5"), &["`data.source` is 5", "a string"]);
    refuses(set("model.rope_scaling.factor=x"), &["`model.rope_scaling.factor` is \"x\"", "a number"]);
    refuses(set("model.type=bert"), &["`model.type` is \"bert\"", &types]);
    refuses(set("optim=5"), &["`optim` is 5", "a section"]);
    refuses(set("optim=null"), &["`optim` is null", "a section"]);
    refuses(set("model=null"), &["`model` is null", "a section"]);
    refuses(set("model=5"), &["`model` is 5", "a section"]);
    refuses(files(&[("a.yaml", "base: 5")]), &["`base` is 5", "a.yaml", "preset:NAME"]);
    refuses(files(&[("a.yaml", "[1]")]), &["a.yaml", "no sections"]);
    refuses(files(&[("a.yaml", "model: {type: gpt2}\ntrain: {1: 2}")]), &["`train`", "is 1"]);
}

#[test]
fn what_cannot_be_read_is_named() {
    refuses(preset_with("gtp2", &[]), &["no preset `gtp2`", "did you mean `gpt2`?", "deepseek-v3"]);
    refuses(Config::load(Source::File(Path::new("none.yaml")), &[]), &["cannot read none.yaml", "check the path"]);
    refuses(files(&[("a.yaml", "base: none.yaml")]), &["none.yaml, the base of", "a.yaml"]);
    refuses(files(&[("a.yaml", "optim:\n  lr: [1\ntrain: 2")]), &["a.yaml", "not valid YAML", "line "]);
    refuses(files(&[("a.yaml", "train: {seed: 1}\ntrain: {steps: 2}")]), &["a.yaml", "duplicate", "\"train\""]);
}

#[test]
fn values_that_do_not_fit_each_other_are_refused() {
    for (preset, overrides, message) in [
        ("gpt2", &["parallel.gpus=33"] as &[_], "is 32, fewer sequences than the 33 ranks"),
        ("gpt2", &["parallel.gpus=6", "parallel.pp=4"], "does not divide the 6 ranks"),
        (
            "gpt2",
            &["train.seed=18446744073709551616"],
            "a whole number that is too large: give at most 18446744073709551615",
        ),
        ("gpt2", &["parallel.gpus=0"], "parallel.gpus is 0"),
        ("gpt2", &["train.seq_len=257"], "model.n_positions, which is 256"),
        ("gpt2", &["model.n_head=3"], "model.n_head 3"),
        ("gpt2", &["model.dropout=1"], "model.dropout is 1.0: give a probability from 0 to below 1"),
        ("gpt2", &["moe.top_k=2"], "gpt2 has no experts"),
        ("deepseek", &["moe=null"], "no `moe` section"),
        ("gpt2", &["model.mtp_depth=1"], "mtp_depth"),
        ("deepseek", &["model.mtp_depth=3", "train.seq_len=3"], "model.mtp_depth is 3, but of train.seq_len 3 tokens"),
        ("deepseek", &["model.mtp_depth=1", "model.first_k_dense_replace=6"], "is 6 of 5 layers"),
        ("deepseek", &["model.mtp_depth=1", "model.first_k_dense_replace=4", "moe=null"], "no `moe` section"),
        ("deepseek", &["moe.top_k=9"], "moe.top_k is 9"),
        ("deepseek", &["moe.num_experts=32", "moe.top_k=17"], "moe.top_k is 17: give at most 16"),
        ("deepseek", &["moe.n_group=4", "moe.top_k=3"], "moe.top_k is 3, but 1 group of 2 experts can be chosen from"),
        (
            "deepseek",
            &["moe.capacity_factor=0"],
            "moe.capacity_factor is 0.0: give a number above 0, such as 1.25, or null",
        ),
        ("deepseek", &["moe.z_loss_coef=.nan"], "moe.z_loss_coef is NaN: give 0 or more"),
        ("deepseek", &["moe.router_noise=-0.1"], "moe.router_noise is -0.1"),
        ("deepseek", &["moe.selection_bias=false"], "there is no bias: set moe.selection_bias to true"),
        ("deepseek", &["moe.overflow=reroute", "moe.capacity_factor=null"], "a dropless layer has no overflow"),
        (
            "gpt2",
            &["parallel.strategy=hybrid_shard", "parallel.gpus=3"],
            "2 replicas (dp_replicate) cannot share 3 ranks evenly",
        ),
        ("gpt2", &["parallel.strategy=hybrid_shard"], "2 replicas (dp_replicate) cannot share 1 rank evenly"),
        (
            "gpt2",
            &["parallel.strategy=hybrid_shard", "parallel.dp_replicate=18446744073709551615"],
            "cannot share 1 rank",
        ),
        ("gpt2", &["parallel.strategy=block", "parallel.wrap=size:9"], "wrap size:9 with strategy block"),
        ("gpt2", &["parallel.dp_replicate=2"], "2 replicas (dp_replicate) cannot share 1 rank evenly"),
        ("gpt2", &["parallel.dp_replicate=2", "parallel.strategy=ddp"], "ddp, which has 1 copy here"),
        ("gpt2", &["parallel.cpu_offload=true"], "the ranks compute on the CPU"),
        ("gpt2", &["comm.timeout_seconds=0"], "comm.timeout_seconds is 0: give a whole number from 1 to 604800"),
        ("gpt2", &["checkpoint.timeout=0"], "checkpoint.timeout is 0: give a whole number from 1 to 604800"),
        (
            "gpt2",
            &["comm.init_timeout_seconds=18446744073709551615"],
            "comm.init_timeout_seconds is 18446744073709551615",
        ),
        ("gpt2", &["optim.min_lr=1"], "optim.min_lr is 1.0: give a number from 0 to optim.lr (--lr scales both)"),
        ("gpt2", &["optim.lr=.inf"], "optim.lr is inf"),
        ("gpt2", &["optim.decay_steps=9"], "optim.decay_steps is 9, but of the schedules only wsd"),
        ("gpt2", &["optim.schedule=wsd", "optim.decay_steps=0"], "optim.decay_steps is 0: give at least 1"),
        ("gpt2", &["optim.schedule=wsd", "optim.decay_steps=381"], "do not fit into train.steps 400"),
        ("gpt2", &["optim.schedule=wsd", "optim.warmup_steps=361"], "a decay of 40 steps"),
        ("gpt2", &["optim.beta2=1.0"], "optim.beta2 is 1"),
    ] {
        refuses(preset_with(preset, overrides), &[message]);
    }
    assert!(preset_with("deepseek", &["moe=null", "model.first_k_dense_replace=4"]).is_ok());
    // Under `block` the ranks do not share the batch; under other strategies they need not share it evenly.
    assert!(preset_with("gpt2", &["parallel.strategy=block", "parallel.gpus=33"]).is_ok());
    assert!(preset_with("gpt2", &["parallel.gpus=3", "train.micro_batch_size=5"]).is_ok());
    assert!(preset_with("gpt2", &["optim.schedule=wsd", "optim.decay_steps=380"]).is_ok());
}

#[test]
fn fp32_may_be_called_f32() {
    let config = preset_with("gpt2", &["parallel.precision.param=f16", "parallel.precision.reduce=f32"]).unwrap();
    assert_eq!(config, preset_with("gpt2", &["parallel.precision.param=fp16"]).unwrap());
    assert!(config.to_yaml().contains("param: fp16"));
}

/// An edit of a text: at a fraction of its length, replaces some characters by others.
fn edit() -> impl Generator<Value = (f64, usize, String)> {
    const WORDS: [&str; 25] = [
        "",
        ":",
        " ",
        "\n",
        "\n  ",
        "-",
        "[",
        "}",
        "&a",
        "*a",
        "!!int ",
        "|",
        "\"",
        "null",
        "-1",
        "0",
        "1e999",
        ".nan",
        "18446744073709551615",
        "true",
        "base: preset:gpt2\n",
        "moe: null\n",
        "type",
        "\0",
        "é",
    ];
    (0.0..1.0, 0..20usize, prop::sample::select(&WORDS[..]).prop_map(str::to_string))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any broken file gives an error that names the file.
    #[test]
    fn a_broken_file_is_an_error(preset in prop::sample::select(PRESETS), edits in prop::collection::vec(edit(), 1..6)) {
        let mut yaml: Vec<char> = Config::load(Source::Preset(preset.name), &[]).unwrap().to_yaml().chars().collect();
        for (place, removed, added) in edits {
            let start = (place * yaml.len() as f64) as usize;
            let end = (start + removed).min(yaml.len());
            yaml.splice(start..end, added.chars());
        }
        let yaml: String = yaml.into_iter().collect();
        match files(&[("broken.yaml", &yaml)]) {
            Ok(config) => { let _ = config.validate(); }
            Err(error) => prop_assert!(error.to_string().contains("broken.yaml"), "{error}\n{yaml}"),
        }
    }
}

#[test]
fn aliases_that_multiply_are_refused() {
    let levels = (1..12).map(|i| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", ")));
    refuses(files(&[("a.yaml", &format!("a0: &a0 x\n{}", levels.collect::<String>()))]), &["a.yaml", "not valid YAML"]);
}

#[test]
fn paths_of_data_become_absolute_and_names_and_urls_stay() {
    let with = |source: &str, validation: &str| {
        let validation = Some(Validation::Named([("a".to_string(), validation.to_string())].into()));
        DataConfig { source: source.into(), validation, ..DataConfig::default() }.with_absolute_paths()
    };
    let here = std::env::current_dir().unwrap().join("val.txt").display().to_string();
    assert_eq!(with("s3://b/corpus", "val.txt"), with("s3://b/corpus", &here));
    assert!(with("shakespeare", "gs://b/val").is_in_store() && !with("shakespeare", "val.txt").is_in_store());
    assert_eq!(with("s3://b/corpus", "x").source, "s3://b/corpus");
}
