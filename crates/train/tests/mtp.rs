//! A model with multi-token prediction from training to export: it is resumed, drafts its own text, and is loaded
//! again.

mod common;

use common::{metrics, succeed, values};
use std::path::Path;

/// A DeepSeek of a megabyte that learns in seconds to guess two bytes ahead.
const MODEL: &[&str] = &[
    "--model=deepseek",
    "--set=model.num_hidden_layers=2",
    "--set=model.hidden_size=64",
    "--set=model.mtp_depth=2",
    "--set=moe.moe_intermediate_size=64",
    "--set=moe.score_func=sigmoid",
    "--set=moe.selection_bias=true",
    "--set=moe.bias_update_speed=0.001",
    "--set=train.seq_len=64",
    "--set=train.global_batch_size=16",
    "--set=train.val_batches=1",
    "--set=train.sample_tokens=8",
    "--set=optim.lr=3e-3",
];

/// The text, and the percentage of drafted tokens that were accepted.
fn generate(folder: &Path, args: &[&str]) -> (String, Option<f64>) {
    let prompt = ["generate", "run", "--prompt=pub fn ", "--tokens=200"];
    let (text, told) = succeed(folder, &[&prompt[..], args].concat());
    let share = told.split_once("accepted (").map(|(_, share)| share.split_once('%').unwrap().0.parse().unwrap());
    (text, share)
}

#[test]
fn a_trained_model_drafts_its_text_and_is_the_same_after_export_and_import() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    succeed(folder, &[MODEL, &["--steps=150", "--gpus=2", "--out=run"]].concat());
    let greedy = generate(folder, &["--temperature=0"]);
    for sampling in [&["--temperature=0"][..], &["--temperature=0.8"]] {
        let (expected, none) = generate(folder, sampling);
        let (found, share) = generate(folder, &[sampling, &["--speculative"]].concat());
        println!("{sampling:?}: {share:?}% accepted");
        assert_eq!((found, none), (expected, None));
        assert!(share.unwrap() > 5.0, "{share:?}% of the drafts of a trained model");
    }
    let (written, _) = succeed(folder, &["export", "run", "--out=hf"]);
    assert!(written.contains(" of them copies or zeros that the format asks for\n"), "{written}");
    succeed(folder, &["import", "--hf=hf", "--out=again"]);
    std::fs::rename(folder.join("run"), folder.join("before")).unwrap();
    std::fs::rename(folder.join("again"), folder.join("run")).unwrap();
    let (found, share) = generate(folder, &["--temperature=0", "--speculative", "--tokenizer=byte"]);
    assert_eq!(found, greedy.0);
    assert!(share.unwrap() > 20.0);
}

#[test]
fn a_run_goes_on_in_a_pipeline_with_the_losses_of_an_undisturbed_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let short = ["--set=checkpoint.every=5", "--set=train.micro_batch_size=4"];
    succeed(folder, &[MODEL, &short, &["--steps=10", "--out=whole"]].concat());
    let expected = values(&metrics(&folder.join("whole")), "loss");
    let step = folder.join("whole/checkpoints/step-5");
    let resume = format!("--resume={}", step.display());
    succeed(folder, &[&resume, "--gpus=2", "--set=parallel.pp=2", "--out=resumed"]);
    let found = values(&metrics(&folder.join("resumed")), "loss");
    let found = &found[found.len() - 5..];
    for (found, expected) in found.iter().zip(&expected[5..]) {
        assert!((found - expected).abs() < 1e-5 * expected, "{found} and {expected}");
    }
}
