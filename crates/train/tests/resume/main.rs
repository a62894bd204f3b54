//! A run that is killed, damaged or moved to other ranks resumes as if nothing had happened, or says what is wrong.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod keeping;

use checkpoint::{Checkpoint, Folder, Kind, Parameter};
use common::{TINY, folder_with_text, metrics, run, succeed, values};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use train::config::{Config, Source};
use train::{RunOptions, TrainError};

const EVERY_THREE: &[&str] = &["--set=checkpoint.every=3", "--set=train.micro_batch_size=1"];

/// Trains in `folder/out`; returns the losses of its steps.
fn losses(folder: &Path, args: &[&[&str]], out: &str) -> Vec<f64> {
    succeed(folder, &[&args.concat(), &["--out", out][..]].concat());
    step_losses(&folder.join(out))
}

/// The losses of steps 1, 2, 3 and so on, each of which must appear once.
fn step_losses(run: &Path) -> Vec<f64> {
    let metrics = metrics(run);
    let steps: Vec<_> = metrics.into_iter().filter(|line| line.get("loss").is_some()).collect();
    assert_eq!(values(&steps, "step"), (1..=steps.len()).map(|step| step as f64).collect::<Vec<_>>());
    values(&steps, "loss")
}

/// Names in the checkpoints folder.
fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_goes_on_at_other_ranks_and_under_another_strategy() {
    let folder = folder_with_text();
    let common = [TINY, EVERY_THREE, &["--steps=12", "--set=train.global_batch_size=12"]].concat();
    let undisturbed = losses(folder.path(), &[&common, &["--gpus=1"]], "undisturbed");
    let moves: &[(&str, &[&str], &[&str])] = &[
        ("4 -> 1", &["--gpus=4"], &["--gpus=1"]),
        ("1 -> 3", &["--gpus=1"], &["--gpus=3"]),
        ("full_shard -> ddp", &["--gpus=4"], &["--gpus=4", "--set=parallel.strategy=ddp"]),
        ("ddp -> zero1", &["--gpus=3", "--set=parallel.strategy=ddp"], &["--gpus=2", "--set=parallel.strategy=zero1"]),
        (
            "hybrid_shard -> block",
            &["--gpus=4", "--set=parallel.strategy=hybrid_shard"],
            &["--gpus=2", "--set=parallel.strategy=block", "--set=parallel.dp_replicate=null"],
        ),
        ("full_shard -> pp 2 x full_shard", &["--gpus=2"], &["--gpus=4", "--set=parallel.pp=2"]),
        (
            "pp 3 -> 1",
            &["--gpus=3", "--set=parallel.pp=3", "--set=parallel.schedule=gpipe"],
            &["--gpus=1", "--set=parallel.pp=1"],
        ),
        (
            "pp 2 x ddp -> interleaved pp 2",
            &["--gpus=4", "--set=parallel.pp=2", "--set=parallel.strategy=ddp"],
            &["--gpus=2", "--set=parallel.schedule=interleaved_1f1b"],
        ),
        ("1 -> tp 2", &["--gpus=1"], &["--gpus=2", "--set=parallel.tp=2"]),
        (
            "tp 2 x full_shard 2 -> pp 2",
            &["--gpus=4", "--set=parallel.tp=2"],
            &["--gpus=2", "--set=parallel.tp=1", "--set=parallel.pp=2"],
        ),
        (
            "pp 2 x tp 2 -> tp 2 in ddp 4",
            &["--gpus=4", "--set=parallel.tp=2", "--set=parallel.pp=2"],
            &["--gpus=4", "--set=parallel.pp=1", "--set=parallel.strategy=ddp"],
        ),
        (
            "cp 2 x tp 2 -> cp 4",
            &["--gpus=4", "--set=parallel.cp=2", "--set=parallel.tp=2"],
            &["--gpus=4", "--set=parallel.cp=4", "--set=parallel.tp=1"],
        ),
        ("cp 2 -> 1", &["--gpus=2", "--set=parallel.cp=2"], &["--gpus=1", "--set=parallel.cp=1"]),
        ("wrapped", &["--gpus=2", "--set=parallel.wrap=size:5000"], &["--gpus=3", "--set=parallel.wrap=block"]),
    ];
    for (i, (name, before, after)) in moves.iter().enumerate() {
        let [first, second] = ["a", "b"].map(|part| format!("{i}{part}"));
        losses(folder.path(), &[&common, before], &first);
        let checkpoint = format!("--resume={first}/checkpoints/step-9");
        succeed(folder.path(), &[&[&checkpoint, "--out", &second][..], after].concat());
        let found = values(&metrics(&folder.path().join(&second)), "loss");
        for (found, expected) in found.iter().zip(&undisturbed[9..]) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{name}: {found}, not {expected}");
        }
        assert_eq!(found.len(), 3, "{name}");
    }
}

#[test]
fn a_run_of_documents_in_rows_of_several_lengths_goes_on_at_other_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let document = |i: usize| format!("{{\"text\": \"{}\"}}\n", "to be or not ".repeat(1 + i * i % 5));
    fs::write(folder.path().join("documents.jsonl"), (0..200).map(document).collect::<String>()).unwrap();
    let data = |arg: &&'static str| if *arg == "--data=text.txt" { "--data=documents.jsonl" } else { arg };
    let tiny: Vec<&str> = TINY.iter().map(data).collect();
    let documents = ["--set=data.document_mask=true", "--set=data.buckets=[8,16]", "--steps=12"];
    let common = [&tiny, EVERY_THREE, &documents].concat();
    let undisturbed = losses(folder.path(), &[&common], "undisturbed");
    losses(folder.path(), &[&common, &["--gpus=2", "--set=parallel.cp=2"]], "a");
    succeed(folder.path(), &["--resume=a/checkpoints/step-9", "--out=b", "--gpus=4", "--set=parallel.tp=2"]);
    let all = metrics(&folder.path().join("b"));
    for (found, expected) in values(&all, "loss").iter().zip(&undisturbed[9..]) {
        assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}");
    }
    let tokens = values(&all, "tokens");
    assert_eq!((tokens.len(), tokens[2]), (3, 12.0 * 4.0 * 16.0), "each step has as many");
}

#[test]
fn a_run_that_went_back_to_an_older_checkpoint_replaces_what_came_after_it() {
    let folder = folder_with_text();
    let first = losses(folder.path(), &[TINY, EVERY_THREE, &["--steps=8"]], "run");
    assert_eq!(checkpoints(&folder.path().join("run")), ["step-6", "step-8"]);
    let (_, said) = succeed(folder.path(), &["--resume=run/checkpoints/step-6", "--steps=7", "--set=optim.lr=5e-4"]);
    assert!(said.contains("run/checkpoints/abandoned/step-8"), "{said}");
    let run = folder.path().join("run");
    assert_eq!(checkpoints(&run), ["abandoned", "step-6", "step-7"]);
    succeed(folder.path(), &["--resume=run", "--steps=10"]);
    let second = step_losses(&run);
    assert_eq!((second.len(), &second[..6]), (10, &first[..6]));
    assert_ne!(second[7], first[7], "step 8 is one of the new course");
    // TensorBoard is instructed to forget steps from 7 on, and later from 8: `step`, then `session_log` with START, in
    // the processes' second event.
    let events = contents(&run.join("tb"));
    let starts = |step: u8| {
        let start = [0x10, step, 0x3a, 2, 8, 1];
        events.iter().filter(|(_, bytes)| bytes.windows(start.len()).any(|part| part == start)).count()
    };
    assert_eq!((events.len(), starts(7), starts(8)), (3, 1, 1));
}

/// A parameter's values or moments in a run's newest checkpoint.
fn values_of(run: &Path, name: &str, kind: Kind) -> Vec<f32> {
    let checkpoint = Checkpoint::open(&Folder::find(run).unwrap()).unwrap();
    let len = checkpoint.index().parameters.iter().find(|of| of.name == name).and_then(Parameter::len).unwrap();
    checkpoint.read(name, kind, 0..len).unwrap()
}

#[test]
fn a_model_with_other_parameters_takes_those_that_fit_and_says_which() {
    let folder = folder_with_text();
    let still = ["--set=optim.lr=1e-30", "--set=optim.min_lr=1e-30"];
    losses(folder.path(), &[TINY, &["--steps=3", "--gpus=2"]], "small");
    let deeper = ["--set=model.n_layer=3", "--seed=7", "--steps=4"];
    let refused = run(folder.path(), &[&["--resume=small", "--out=no"], &deeper[..]].concat());
    let answer = String::from_utf8_lossy(&refused.stderr);
    assert!(answer.contains("no parameter blocks.2.") && answer.contains("with --partial the run takes"), "{answer}");

    // Steps that change no matrix; the initial values of a new model; ranks that hold columns, shards and copies.
    losses(folder.path(), &[TINY, &still, &deeper], "fresh");
    let layouts: [&[&str]; 3] = [&["--gpus=1"], &["--gpus=4", "--set=parallel.tp=2"], &["--gpus=2", "--strategy=ddp"]];
    for (i, layout) in layouts.into_iter().enumerate() {
        let out = format!("deeper-{i}");
        let args = [&["--resume=small", "--partial", "--out", &out][..], &still, &deeper, layout].concat();
        let (_, said) = succeed(folder.path(), &args);
        for part in ["28 parameters of the checkpoint fit", "new, with initial values", "blocks.2.ln_1.gamma [16]"] {
            assert!(said.contains(part), "no `{part}` in {said}");
        }
        let (old, new) = ("blocks.1.attn.c_attn.weight", "blocks.2.attn.c_attn.weight");
        let of = |run: &str, name: &str, kind| values_of(&folder.path().join(run), name, kind);
        assert_eq!(of(&out, old, Kind::Param), of("small", old, Kind::Param));
        assert_eq!(of(&out, new, Kind::Param), of("fresh", new, Kind::Param));
        // A step of AdamW adds a tenth to the mean; the rest was there before, or was 0.
        let norm = |values: Vec<f32>| values.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!(norm(of(&out, old, Kind::ExpAvg)) > 0.0 && norm(of(&out, new, Kind::ExpAvg)) > 0.0);
        assert_eq!(metrics(&folder.path().join(&out)).iter().filter(|line| line.get("loss").is_some()).count(), 1);
        let log = fs::read_to_string(folder.path().join(&out).join("logs/rank-0.txt")).unwrap();
        assert!(log.contains("blocks.2.mlp.c_proj.bias"), "{log}");
    }

    // With another vocabulary, parameters whose shape differs are new, and the old ones are not taken.
    let vocabulary = ["--set=model.vocab_size=300", "--steps=4", "--partial", "--out=wider"];
    let (_, said) = succeed(folder.path(), &[&["--resume=small"], &vocabulary[..]].concat());
    assert!(
        said.contains("but not taken: ends.wte.weight [256, 16]") && said.contains("wte.weight [300, 16]"),
        "{said}"
    );
    let none = run(folder.path(), &["--resume=small", "--partial", "--set=model.n_embd=32", "--out=none", "--steps=4"]);
    let answer = String::from_utf8_lossy(&none.stderr);
    assert!(answer.contains("none of its parameters has name and shape of one of the model's"), "{answer}");
}

#[test]
fn a_run_that_goes_on_keeps_its_configuration_and_its_tokenizer() {
    let folder = folder_with_text();
    let run = folder.path().join("run");
    losses(folder.path(), &[TINY, &["--steps=3", "--set=data.tokenizer=char"]], "run");
    let tokenizer = |step: &str| fs::read(run.join("checkpoints").join(step).join("tokenizer.json")).unwrap();
    // Fewer characters, which would give another tokenizer.
    fs::write(folder.path().join("other.txt"), "jump quickly. ".repeat(99)).unwrap();
    succeed(folder.path(), &["--resume=latest", "--out=run", "--model=gpt2", "--data=other.txt", "--steps=4"]);
    assert!(tokenizer("step-3") == tokenizer("step-4") && !tokenizer("step-4").is_empty());
    let config = fs::read_to_string(run.join("config.yaml")).unwrap();
    assert!(config.contains("n_embd: 16"), "{config}");
}

#[test]
fn a_finished_run_says_so_and_is_left_as_it_is() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=3"]], "run");
    let before = contents(&folder.path().join("run"));
    let output = run(folder.path(), &["--resume=run"]);
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert!(answer.contains("finished at step 3: give more with --steps"), "{answer}");
    let (said, _) = succeed(folder.path(), &["--resume=auto", "--out=run"]);
    assert!(said.contains("finished at step 3"), "for a script it is the end: {said}");
    assert!(contents(&folder.path().join("run")) == before);
}

#[test]
fn one_command_starts_a_run_goes_on_with_it_and_begins_anew_what_died_before_its_first_checkpoint() {
    let folder = folder_with_text();
    let undisturbed = losses(folder.path(), &[TINY, EVERY_THREE, &["--steps=6"]], "undisturbed");
    let again = |more: &[&str]| succeed(folder.path(), &[TINY, EVERY_THREE, &["--resume=auto"], more].concat()).1;
    assert!(!again(&["--out=run", "--steps=4"]).contains("resuming"));
    assert!(again(&["--out=run", "--steps=6"]).contains("resuming after step 4 from run/checkpoints/step-4"));
    assert_eq!(step_losses(&folder.path().join("run"))[..4], undisturbed[..4]);

    // The state of a run killed in its first steps.
    fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    let lines = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let first: Vec<&str> = lines.lines().take_while(|line| !line.starts_with("{\"step\":3")).collect();
    fs::write(folder.path().join("run/metrics.jsonl"), first.join("\n") + "\n{\"st").unwrap();
    assert!(again(&["--out=run", "--steps=6"]).contains("│ folder  run "));
    assert_eq!(step_losses(&folder.path().join("run")), undisturbed);

    // Without a folder, the most recently trained run of the model is used.
    assert!(again(&["--steps=3"]).contains("│ folder  runs/gpt2-001 "));
    assert!(again(&["--steps=6"]).contains("resuming after step 3 from runs/gpt2-001/checkpoints/step-3"));
    let other = run(folder.path(), &["--model=deepseek", "--resume=auto", "--out=runs/gpt2-001"]);
    let answer = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && answer.contains("runs/gpt2-001 is a run of a different model"), "{answer}");
}

#[test]
fn the_latest_run_is_that_of_the_model_and_not_of_a_name_and_one_without_a_checkpoint_is_not_passed_over() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=2"]], "runs/mine");
    let (_, said) = succeed(folder.path(), &["--model=gpt2", "--resume=latest", "--steps=3"]);
    assert!(said.contains("resuming after step 2 from runs/mine/checkpoints/step-2"), "{said}");
    let refused = |args: &[&str], expected: &str| {
        let output = run(folder.path(), args);
        let answer = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && answer.contains(expected), "{answer}");
    };
    refused(&["--model=deepseek", "--resume=latest"], "there is no run of deepseek in runs/");
    losses(folder.path(), &[TINY, &["--steps=1", "--set=checkpoint.keep=0"]], "runs/newer");
    refused(&["--resume=latest", "--steps=4"], "the run runs/newer has no checkpoint");
}

#[test]
fn the_checkpoint_of_the_best_validation_stays() {
    let folder = folder_with_text();
    let diverging = ["--steps=10", "--set=train.val_every=1", "--set=checkpoint.keep=1", "--set=optim.lr=0.5"];
    let (said, _) = succeed(folder.path(), &[TINY, &diverging, &["--out=run"]].concat());
    let run = folder.path().join("run");
    let val_losses = values(&metrics(&run), "val_loss");
    let best = (1..=10).min_by(|a, b| val_losses[a - 1].total_cmp(&val_losses[b - 1])).unwrap();
    assert!(best < 10, "the last one is not the best: {val_losses:?}");
    assert!(said.contains(&format!("after step {best}, kept as run/checkpoints/step-{best}")), "{said}");
    assert_eq!(checkpoints(&run), ["step-10".to_string(), format!("step-{best}")]);
    succeed(folder.path(), &["--resume=run", "--steps=11", "--set=optim.lr=1e-9", "--set=optim.min_lr=0"]);
    assert_eq!(checkpoints(&run), ["step-11".to_string(), format!("step-{best}")]);
}

#[test]
fn the_best_on_other_data_stays_and_is_not_compared_with() {
    let folder = folder_with_text();
    let diverging = ["--steps=10", "--set=train.val_every=1", "--set=checkpoint.keep=1", "--set=optim.lr=0.5"];
    let (said, _) = succeed(folder.path(), &[TINY, &diverging, &["--out=run"]].concat());
    let best = said.split("kept as run/checkpoints/").nth(1).expect(&said).trim().to_string();
    // On noise, every validation is worse.
    let noise: String = (0..3000u32).map(|i| char::from(b' ' + (i * i % 7919 % 94) as u8)).collect();
    fs::write(folder.path().join("noise.txt"), noise).unwrap();
    let run = folder.path().join("run");
    for steps in ["12", "14"] {
        let (_, told) = succeed(folder.path(), &["--resume=run", "--data=noise.txt", "--lr=0.01", "--steps", steps]);
        assert!(told.contains(&format!("saved run/checkpoints/step-{steps}")), "{told}");
        assert!(checkpoints(&run).contains(&best), "{best} is not in {:?}", checkpoints(&run));
    }
}

#[test]
fn a_run_that_another_process_has_gone_on_with_meanwhile_is_left_alone() {
    let folder = folder_with_text();
    succeed(folder.path(), &[TINY, EVERY_THREE, &["--steps=6", "--out=run"]].concat());
    let run = folder.path().join("run");
    let config = |steps: usize| {
        let mut config = Config::load(Source::File(&run.join("config.yaml")), &[]).unwrap();
        config.train.steps = steps;
        config
    };
    let before = metrics(&run).len();
    let [third, sixth] = ["step-3", "step-6"].map(|step| run.join("checkpoints").join(step));
    // What was looked up before the data was opened: nothing, and then the third step.
    let anew = RunOptions { out: Some(run.clone()), again: true, ..RunOptions::default() };
    let older = RunOptions { resume: Some(third.clone()), newest: Some(third), ..RunOptions::default() };
    for options in [anew, older] {
        let error = train::train(config(8), &options, Default::default()).unwrap_err();
        assert!(matches!(error, TrainError::WentOn { .. }), "{error}");
    }
    assert_eq!(metrics(&run).len(), before);
    let options = RunOptions { resume: Some(sixth.clone()), newest: Some(sixth), ..RunOptions::default() };
    assert_eq!(train::train(config(8), &options, Default::default()).unwrap().steps, 8);
}

#[test]
fn a_run_whose_last_checkpoint_could_not_be_written_begins_anew() {
    let folder = folder_with_text();
    let args = [TINY, &["--steps=3", "--set=checkpoint.every=0", "--out=run"]].concat();
    succeed(folder.path(), &args);
    fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    let again = [&args[..], &["--resume=auto"]].concat();
    succeed(folder.path(), &again);
    assert_eq!(checkpoints(&folder.path().join("run")), ["step-3"]);
    let (finished, _) = succeed(folder.path(), &again);
    assert!(finished.contains("finished at step 3"), "{finished}");
}

#[test]
fn a_validation_that_is_no_number_is_not_the_best() {
    let folder = folder_with_text();
    let diverging = ["--steps=3", "--lr=1e30", "--set=optim.warmup_steps=0", "--set=train.val_every=1"];
    let more =
        ["--set=optim.clip_grad_norm=0", "--set=train.on_non_finite=skip", "--set=checkpoint.every=1", "--out=run"];
    succeed(folder.path(), &[TINY, &diverging, &more].concat());
    assert!(metrics(&folder.path().join("run")).iter().any(|line| line.get("val_loss").is_some_and(Value::is_null)));
    succeed(folder.path(), &["inspect", "run"]);
}

#[test]
fn what_is_there_is_not_written_over() {
    let folder = folder_with_text();
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/config.yaml"), "my: own").unwrap();
    let refused = |args: &[&str], expected: &str| {
        let output = run(folder.path(), &[TINY, args].concat());
        let answer = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && answer.contains(expected), "{answer}");
    };
    refused(&["--out=mine"], "mine exists and is not an empty folder");
    losses(folder.path(), &[TINY, &["--steps=1"]], "my run");
    refused(&["--out=my run"], "my run holds a run already: resume it with `train --resume 'my run'`, choose another");
    assert_eq!(fs::read_to_string(folder.path().join("mine/config.yaml")).unwrap(), "my: own");

    // A run that has ended without keeping a checkpoint, and one that names no preset.
    losses(folder.path(), &[TINY, &["--steps=2", "--set=checkpoint.keep=0"]], "run");
    let before = contents(&folder.path().join("run"));
    let (said, _) = succeed(folder.path(), &[TINY, &["--steps=2", "--resume=auto", "--out=run"]].concat());
    assert!(said.contains("finished at step 2") && contents(&folder.path().join("run")) == before, "{said}");
    let config = fs::read_to_string(folder.path().join("run/config.yaml")).unwrap();
    fs::write(folder.path().join("run/config.yaml"), config.replace("preset: gpt2", "preset: null")).unwrap();
    refused(&["--steps=3", "--resume=auto", "--out=run"], "run is a run of a different model than --model gpt2");
}

#[test]
fn a_run_goes_on_from_any_folder() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=2"]], "run");
    let elsewhere = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    succeed(elsewhere.path(), &["--resume", run.to_str().unwrap(), "--steps=3"]);
    assert_eq!(step_losses(&run).len(), 3);
}

#[test]
fn ranks_whose_share_is_padding_go_on_too() {
    let folder = folder_with_text();
    let eight = ["--gpus=8", "--steps=2", "--set=train.global_batch_size=8"];
    losses(folder.path(), &[TINY, &eight], "run");
    succeed(folder.path(), &["--resume=run", "--steps=3"]);
    succeed(folder.path(), &["--resume=run", "--steps=4", "--set=parallel.strategy=ddp"]);
    let (inspected, _) = succeed(folder.path(), &["inspect", "run"]);
    assert!(inspected.contains("step 4, ") && inspected.contains("rank-7.safetensors"), "{inspected}");
}

#[test]
fn a_text_for_a_model_whose_tokenizer_is_not_known_is_refused_until_it_is_given() {
    let folder = folder_with_text();
    let tokens: Vec<u8> = (0..4000u16).flat_map(|i| (i % 251).to_le_bytes()).collect();
    fs::write(folder.path().join("tokens.bin"), tokens).unwrap();
    let tiny: Vec<&str> = TINY.iter().copied().filter(|arg| !arg.starts_with("--data")).collect();
    losses(folder.path(), &[&tiny, &["--data=tokens.bin", "--set=model.vocab_size=256", "--steps=2"]], "run");
    succeed(folder.path(), &["eval", "run", "--data=tokens.bin"]);
    // Whoever prepares a text first names its tokenizer, here that of bytes by a folder.
    fs::write(folder.path().join("text.txt"), "Prepared by another run before. ".repeat(200)).unwrap();
    succeed(folder.path(), &["prepare", "text.txt", "--tokenizer=byte", "--out=prepared"]);
    let other = ["--data=text.txt", "--set=data.tokenizer=prepared", "--steps=1"];
    losses(folder.path(), &[&tiny, &other], "other");
    let all: [&[&str]; 3] =
        [&["eval", "run", "--data=text.txt"], &["--resume=run", "--data=text.txt", "--steps=3"], &["generate", "run"]];
    for args in all {
        let output = run(folder.path(), args);
        let answer = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {answer}");
        assert!(answer.contains("run/checkpoints/step-2 has no tokenizer that can be used"), "{args:?}: {answer}");
    }
    succeed(folder.path(), &["--resume=run", "--data=text.txt", "--steps=3", "--set=data.tokenizer=byte"]);
    succeed(folder.path(), &["generate", "run", "--prompt=The", "--tokens=3"]);
}

#[test]
fn a_folder_in_which_another_process_trains_is_refused() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=3"]], "run");
    let lock = fs::File::open(folder.path().join("run/.lock")).unwrap();
    lock.lock().unwrap();
    let before = contents(&folder.path().join("run"));
    let refused = run(folder.path(), &["--resume=run", "--steps=5"]);
    let answer = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{answer}");
    assert!(answer.contains("another process trains in run: "), "{answer}");
    assert!(contents(&folder.path().join("run")) == before);
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = vec![];
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() { all.extend(contents(&path)) } else { all.push((path.clone(), fs::read(&path).unwrap())) }
    }
    all.sort();
    all
}
