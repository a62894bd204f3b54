//! How the program interprets its arguments.

mod common;

use checkpoint::{Checkpoint, Folder};
use common::{TINY, folder_with_text, metrics, program, run, succeed, values};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use train::config::{Config, Source};

/// The configuration that `train config` prints for these arguments.
fn configured(folder: &Path, args: &[&str]) -> Config {
    let (yaml, _) = succeed(folder, &[&["config"], args].concat());
    let file = folder.join("configured.yaml");
    fs::write(&file, yaml).unwrap();
    Config::load(Source::File(&file), &[]).unwrap()
}

#[test]
fn the_last_of_a_repeated_flag_counts_and_of_a_repeated_key_too() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        ["--model=gpt2", "--steps=2", "--lr=1e-3", "--steps=3", "--model=deepseek", "--lr=2e-3", "--force", "--force"];
    let keys = ["--set=train.seed=1", "--set=optim.beta2=0.9", "--set=train.seed=2"];
    let config = configured(folder.path(), &[&flags[..], &keys].concat());
    assert_eq!((config.train.steps, config.optim.lr, config.model.type_name()), (3, 2e-3, "deepseek"));
    assert_eq!((config.train.seed, config.optim.beta2), (2, 0.9), "other keys stay");
    // For subcommands too.
    let answer = run(folder.path(), &["inspect", "none"]);
    assert!(String::from_utf8_lossy(&answer.stderr).contains("there is no run none"));
    let answer = run(folder.path(), &["eval", "none", "--batch=1", "--batch=2"]);
    assert!(String::from_utf8_lossy(&answer.stderr).contains("there is no run none"));
}

#[test]
fn a_section_or_a_short_key_is_not_taken_for_a_flag_that_begins_like_it() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--common=1", "--epaulet=1"] {
        let answer = run(folder.path(), &["--model=gpt2", flag]);
        let answer = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.contains("unexpected argument") && !answer.contains("did you mean"), "{answer}");
    }
}

#[test]
fn a_strategy_has_the_names_of_deepspeed_and_pytorch_in_any_letters() {
    let folder = tempfile::tempdir().unwrap();
    for (name, expected) in
        [("zero2", "shard_grad_op"), ("ZeRO3", "full_shard"), ("fsdp", "full_shard"), ("hsdp", "hybrid_shard")]
    {
        let key = format!("--set=parallel.strategy={name}");
        for args in [["--gpus=2", "--strategy", name], ["--gpus=2", &key, "--force"]] {
            let config = configured(folder.path(), &[&["--model=gpt2"][..], &args].concat());
            assert_eq!(config.parallel.strategy.name(), expected, "{args:?}");
        }
    }
}

#[test]
fn a_resumed_run_tells_what_its_configuration_has_otherwise_than_the_checkpoints() {
    let folder = folder_with_text();
    succeed(folder.path(), &[TINY, &["--steps=4", "--set=checkpoint.every=2", "--out=run"]].concat());
    let header = "the configuration differs from the checkpoint's:";
    let (_, said) = succeed(folder.path(), &["--resume=run/checkpoints/step-2", "--out=same"]);
    assert!(said.contains("resuming after step 2") && !said.contains(header), "{said}");

    let changes =
        ["--steps=6", "--lr=2e-3", "--batch-size=2", "--gpus=2", "--strategy=ddp", "--set=data.val_fraction=0.2"];
    let (_, said) =
        succeed(folder.path(), &[&["--resume=run/checkpoints/step-2", "--out=other"], &changes[..]].concat());
    let (_, told) = said.split_once(header).unwrap_or_else(|| panic!("{said}"));
    let told: Vec<&str> = told.lines().skip(1).take_while(|line| line.starts_with("  ")).map(str::trim).collect();
    let expected = [
        "data.val_fraction: null -> 0.2",
        "train.steps: 4 -> 6",
        "train.global_batch_size: 4 -> 2",
        "optim.lr: 0.001 -> 0.002",
        "optim.min_lr: 0.0001 -> 0.0002",
        "parallel.gpus: 1 -> 2",
        "parallel.strategy: full_shard -> ddp",
        "learning rate of step 3: 1.43e-4 -> 2.86e-4",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_checkpoint_and_a_configuration_are_told_in_json_too() {
    let folder = folder_with_text();
    succeed(folder.path(), &[TINY, &["--steps=2", "--gpus=2", "--out=run"]].concat());
    let json = |args: &[&str]| serde_json::from_str::<Value>(&succeed(folder.path(), args).0).unwrap();

    let found = json(&["inspect", "run", "--json"]);
    let checkpoint = Checkpoint::open(&Folder::find(&folder.path().join("run")).unwrap()).unwrap();
    let index = checkpoint.index();
    assert_eq!((found["step"].as_u64(), found["world_size"].as_u64()), (Some(2), Some(2)));
    assert_eq!((found["loss"].as_f64(), found["val_loss"].as_f64()), (index.loss, index.val_loss));
    let parameters = found["parameters"].as_array().unwrap();
    assert_eq!(parameters.len(), index.parameters.len());
    let (first, of) = (&parameters[0], &index.parameters[0]);
    assert_eq!((first["name"].as_str(), &first["shape"]), (Some(&*of.name), &serde_json::json!(of.shape)));
    let values = checkpoint.read(&of.name, checkpoint::Kind::Param, 0..of.len().unwrap()).unwrap();
    let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    assert!((first["norm"].as_f64().unwrap() / norm - 1.0).abs() < 1e-9 && first["exp_avg_sq"].is_number(), "{first}");
    let digests: Vec<_> =
        found["files"].as_array().unwrap().iter().map(|file| file["blake3"].as_str().unwrap()).collect();
    assert!(index.files.iter().all(|file| digests.contains(&&*file.blake3)), "{digests:?}");

    let found = json(&["config", "--json", "--model=deepseek", "--steps=7"]);
    let expected = Config::load(Source::Preset("deepseek"), &["train.steps=7".into()]).unwrap();
    assert_eq!(found, serde_json::to_value(&expected).unwrap());
    // JSON is valid YAML.
    let file = folder.path().join("config.json");
    fs::write(&file, found.to_string()).unwrap();
    assert_eq!(Config::load(Source::File(&file), &[]).unwrap(), expected);
}

#[test]
fn the_vector_instructions_of_the_environment_are_taken_and_change_no_loss() {
    let folder = folder_with_text();
    let trained = |simd: &str, out: &str| {
        let mut train = program(folder.path(), &[TINY, &["--steps=3", "--out", out]].concat());
        train.env("KILN_SIMD", simd).output().unwrap()
    };
    let refused = trained("avx1024", "refused");
    let answer = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && !folder.path().join("refused").exists());
    let wanted = "KILN_SIMD is avx1024: give one of default, avx2, avx512, amx, or leave it out";
    assert!(answer.contains(wanted), "{answer}");

    let loss = |simd: &str, out: &str| {
        assert!(trained(simd, out).status.success(), "{simd}");
        *values(&metrics(&folder.path().join(out)), "loss").last().unwrap()
    };
    let (narrow, widest) = (loss("default", "narrow"), loss("", "widest"));
    assert!((narrow - widest).abs() < 1e-5, "{narrow} and {widest}");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn the_first_of_several_processes_that_know_nothing_of_each_other_warns() {
    let folder = folder_with_text();
    let said = |variables: &[(&str, &str)], out: &str| {
        let mut train = program(folder.path(), &[TINY, &["--steps=1", "--out", out]].concat());
        let output = train.envs(variables.iter().copied()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (trained, told) = said(&[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0")], "first");
    for part in ["warning: srun has started 4 processes", "each trains by itself", "--features mpi", "`--gpus 4`"] {
        assert!(trained && told.contains(part), "no `{part}` in {told}");
    }
    let (trained, told) = said(&[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "1")], "second");
    assert!(trained && !told.contains("srun"), "{told}");
    let (trained, told) = said(&[("WORLD_SIZE", "2"), ("RANK", "0")], "third");
    assert!(trained && told.contains("torchrun has started 2 processes"), "{told}");
    let (trained, told) = said(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")], "none");
    assert!(!trained && told.contains("mpirun has started 2 processes, but this build has no MPI"), "{told}");

    let log = fs::read_to_string(folder.path().join("first/logs/rank-0.txt")).unwrap();
    assert!(log.contains("rank 0 of 1 on cpu"), "{log}");
}

#[test]
fn kiln_is_the_same_program_and_names_itself_in_its_advice() {
    let kiln = |args: &[&str]| {
        let answer = Command::new(env!("CARGO_BIN_EXE_kiln")).args(args).output().unwrap();
        String::from_utf8([answer.stdout, answer.stderr].concat()).unwrap()
    };
    let help = kiln(&["--help"]);
    assert!(help.contains("Usage: kiln [OPTIONS]") && help.contains("gpt2-124m"), "{help}");
    assert!(kiln(&["convert"]).contains("did you mean `kiln export RUN --out DIR`"));
    assert!(kiln(&["man", "nothing"]).contains("`kiln --help` lists them"));
}
