//! A run that is killed, spoilt or moved to other ranks goes on as if nothing had happened, or says what is wrong.

mod common;

use common::{TINY, metrics, program, run, succeed, values};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use train::config::{Config, Source};
use train::{Place, TrainError};

const EVERY_THREE: &[&str] = &["--set=checkpoint.every=3", "--set=train.micro_batch_size=1"];

fn folder_with_text() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(60)).unwrap();
    folder
}

/// Trains in `folder/out`; returns the losses of its steps.
fn losses(folder: &Path, args: &[&[&str]], out: &str) -> Vec<f64> {
    succeed(folder, &[&args.concat(), &["--out", out][..]].concat());
    step_losses(&folder.join(out))
}

/// The losses of steps 1, 2, 3 and so on, each of which must be there once.
fn step_losses(run: &Path) -> Vec<f64> {
    let metrics = metrics(run);
    let steps: Vec<_> = metrics.into_iter().filter(|line| line.get("loss").is_some()).collect();
    assert_eq!(values(&steps, "step"), (1..=steps.len()).map(|step| step as f64).collect::<Vec<_>>());
    values(&steps, "loss")
}

/// Names in the folder of checkpoints.
fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_is_killed_twenty_times_ends_with_the_losses_of_an_undisturbed_one_bit_for_bit() {
    let folder = folder_with_text();
    let args = [TINY, EVERY_THREE, &["--gpus=2", "--steps=120"]];
    let undisturbed = losses(folder.path(), &args, "undisturbed");
    let (mut kills, mut while_saving, mut random) = (0, 0, 0x2545_F491_4F6C_DD1D_u64);
    for round in 0.. {
        let out = format!("killed-{round}");
        let run = folder.path().join(&out);
        let ended = loop {
            let resumes = checkpoints(&run).iter().any(|name| name.starts_with("step-"));
            if !resumes {
                let _ = fs::remove_dir_all(&run); // killed before its first checkpoint
            }
            let mut args = if resumes { vec!["--resume"] } else { args.concat() };
            args.extend(if resumes { vec![out.as_str()] } else { vec!["--out", &out] });
            let mut child = program(folder.path(), &args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            if kills == 20 {
                break child.wait().unwrap();
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            sleep(Duration::from_millis(50 + random % 400));
            // Every other time while a checkpoint is written.
            let saving = || checkpoints(&run).iter().any(|name| name.ends_with(".partial"));
            while kills % 2 == 1 && child.try_wait().unwrap().is_none() && !saving() {}
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if status.success() {
                break status;
            }
            assert_eq!(status.code(), None, "it was killed, and did not fail");
            kills += 1;
            while_saving += usize::from(saving());
        };
        assert!(ended.success(), "{ended}");
        assert_eq!(step_losses(&run), undisturbed);
        assert_eq!(checkpoints(&run), ["step-117", "step-120"]);
        if kills == 20 {
            break;
        }
    }
    assert!(while_saving > 0, "none of the kills hit a checkpoint that was being written");
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

/// Each time it goes on in another layout.
#[test]
fn a_run_that_is_killed_again_and_again_goes_on_in_pipelines_and_out_of_them() {
    let folder = folder_with_text();
    let args = [TINY, EVERY_THREE, &["--steps=90"]];
    let undisturbed = losses(folder.path(), &args, "undisturbed");
    let layouts: [&[&str]; 5] = [
        &["--gpus=4", "--set=parallel.pp=2"],
        &["--gpus=1", "--set=parallel.pp=1"],
        &["--gpus=4", "--set=parallel.pp=4", "--set=parallel.schedule=gpipe"],
        &["--gpus=3", "--set=parallel.pp=1", "--strategy=zero1"],
        &["--gpus=4", "--set=parallel.pp=2", "--set=parallel.schedule=1f1b", "--strategy=ddp"],
    ];
    let run = folder.path().join("run");
    let (mut layouts, mut kills) = (layouts.iter().cycle(), 0);
    loop {
        let auto = ["--resume=auto", "--out=run"];
        let args = [&args.concat(), &auto[..], layouts.next().unwrap()].concat();
        let mut child = program(folder.path(), &args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        // Once it has saved something new, or at its end.
        let newest =
            |names: Vec<String>| names.iter().filter_map(|name| name.strip_prefix("step-")?.parse::<u64>().ok()).max();
        let last = newest(checkpoints(&run));
        while kills < 8 && child.try_wait().unwrap().is_none() && newest(checkpoints(&run)) <= last {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing new is saved");
            sleep(Duration::from_millis(2));
        }
        if kills < 8 {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        if status.success() {
            break;
        }
        assert_eq!(status.code(), None, "it was killed, and did not fail");
        kills += 1;
    }
    assert!(kills >= 5, "killed {kills} times only");
    for (found, expected) in step_losses(&run).iter().zip(&undisturbed) {
        assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}");
    }
    assert_eq!(step_losses(&run).len(), 90);
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
    // TensorBoard is told to forget steps from 7 on, and later from 8: `step`, then `session_log` with START, in the processes' second event.
    let events = contents(&run.join("tb"));
    let starts = |step: u8| {
        let start = [0x10, step, 0x3a, 2, 8, 1];
        events.iter().filter(|(_, bytes)| bytes.windows(start.len()).any(|part| part == start)).count()
    };
    assert_eq!((events.len(), starts(7), starts(8)), (3, 1, 1));
}

#[test]
fn a_run_that_goes_on_keeps_its_configuration_and_its_tokenizer() {
    let folder = folder_with_text();
    let run = folder.path().join("run");
    losses(folder.path(), &[TINY, &["--steps=3", "--set=data.tokenizer=char"]], "run");
    let tokenizer = |step: &str| fs::read(run.join("checkpoints").join(step).join("tokenizer.json")).unwrap();
    // Fewer characters, of which there would be another tokenizer.
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
    assert!(!again(&["--out=run", "--steps=4"]).contains("going on"));
    assert!(again(&["--out=run", "--steps=6"]).contains("going on after step 4 from run/checkpoints/step-4"));
    assert_eq!(step_losses(&folder.path().join("run"))[..4], undisturbed[..4]);

    // As a run leaves it that is killed in its first steps.
    fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    let lines = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let first: Vec<&str> = lines.lines().take_while(|line| !line.starts_with("{\"step\":3")).collect();
    fs::write(folder.path().join("run/metrics.jsonl"), first.join("\n") + "\n{\"st").unwrap();
    assert!(again(&["--out=run", "--steps=6"]).contains("writing run\n"));
    assert_eq!(step_losses(&folder.path().join("run")), undisturbed);

    // Without a folder, that of the model's run which was last trained.
    assert!(again(&["--steps=3"]).contains("writing runs/gpt2-001"));
    assert!(again(&["--steps=6"]).contains("going on after step 3 from runs/gpt2-001/checkpoints/step-3"));
    let other = run(folder.path(), &["--model=deepseek", "--resume=auto", "--out=runs/gpt2-001"]);
    let answer = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && answer.contains("runs/gpt2-001 is a run of another model"), "{answer}");
}

#[test]
fn the_latest_run_is_that_of_the_model_and_not_of_a_name_and_one_without_a_checkpoint_is_not_passed_over() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=2"]], "runs/mine");
    let (_, said) = succeed(folder.path(), &["--model=gpt2", "--resume=latest", "--steps=3"]);
    assert!(said.contains("going on after step 2 from runs/mine/checkpoints/step-2"), "{said}");
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
    // On noise every validation is worse.
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
    // What was looked for before the data was opened: nothing, and then the third step.
    let anew = Place { out: Some(run.clone()), again: true, ..Place::default() };
    let older = Place { resume: Some(third.clone()), newest: Some(third), ..Place::default() };
    for place in [anew, older] {
        let error = train::train(config(8), &place, Default::default()).unwrap_err();
        assert!(matches!(error, TrainError::WentOn { .. }), "{error}");
    }
    assert_eq!(metrics(&run).len(), before);
    let place = Place { resume: Some(sixth.clone()), newest: Some(sixth), ..Place::default() };
    assert_eq!(train::train(config(8), &place, Default::default()).unwrap().steps, 8);
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
    refused(&["--out=mine"], "mine exists and is no empty folder");
    assert_eq!(fs::read_to_string(folder.path().join("mine/config.yaml")).unwrap(), "my: own");

    // A run that has ended and kept no checkpoint, and one that says nothing of a preset.
    losses(folder.path(), &[TINY, &["--steps=2", "--set=checkpoint.keep=0"]], "run");
    let before = contents(&folder.path().join("run"));
    let (said, _) = succeed(folder.path(), &[TINY, &["--steps=2", "--resume=auto", "--out=run"]].concat());
    assert!(said.contains("finished at step 2") && contents(&folder.path().join("run")) == before, "{said}");
    let config = fs::read_to_string(folder.path().join("run/config.yaml")).unwrap();
    fs::write(folder.path().join("run/config.yaml"), config.replace("preset: gpt2", "preset: null")).unwrap();
    refused(&["--steps=3", "--resume=auto", "--out=run"], "run is a run of another model than --model gpt2");
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

/// A checkpoint that cannot be gone on from: what is wrong with it, how it came to be, the arguments beside `--resume run`, and parts
/// of the answer.
type Spoilt = (&'static str, fn(&Path), &'static [&'static str], &'static [&'static str]);

const SPOILT: &[Spoilt] = &[
    (
        "a file cut off",
        |step| cut(&step.join("rank-1.safetensors"), 10),
        &[],
        &["rank-1.safetensors: has ", "older one"],
    ),
    ("a byte changed", |step| flip(&step.join("rank-0.safetensors"), 40), &[], &["rank-0.safetensors: has digest "]),
    ("an index cut off", |step| cut(&step.join("index.json"), 10), &[], &["index.json: not an index"]),
    (
        "an index changed",
        |step| {
            let index = fs::read_to_string(step.join("index.json")).unwrap();
            fs::write(step.join("index.json"), index.replace("\"step\": 3", "\"step\": 2")).unwrap();
        },
        &[],
        &["index.json: was changed"],
    ),
    (
        "a file less",
        |step| fs::remove_file(step.join("rank-1.safetensors")).unwrap(),
        &[],
        &["rank-1.safetensors: No such file"],
    ),
    (
        "a configuration changed",
        |step| {
            let config = fs::read_to_string(step.join("config.yaml")).unwrap();
            fs::write(step.join("config.yaml"), config + "# edited\n").unwrap();
        },
        &[],
        &["config.yaml: has "],
    ),
    ("no checkpoint", |step| fs::remove_dir_all(step).unwrap(), &[], &["the run run has no checkpoint"]),
    ("another model", |_| {}, &["--set=model.n_layer=3"], &["no parameter blocks.2.ln_1.gamma", "another model"]),
    ("another width", |_| {}, &["--set=model.n_embd=32"], &["has shape [", "another model"]),
    (
        "another vocabulary",
        |_| {},
        &["--set=data.tokenizer=char", "--set=model.vocab_size=0"],
        &["ends.wte.weight", "another model"],
    ),
    ("another model's name", |_| {}, &["--model=gpt2"], &["--model gpt2 with --resume", "leave --model out"]),
    (
        "fewer steps than it has made",
        |_| {},
        &["--steps=2"],
        &["run/checkpoints/step-3 is at step 3, beyond", "--steps"],
    ),
];

#[test]
fn a_spoilt_checkpoint_is_answered_with_its_file_and_what_is_wrong_and_is_left_as_it_is() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--gpus=2", "--steps=3"]], "original");
    let mut wrong = vec![];
    for (name, spoil, args, expected) in SPOILT {
        let run_folder = folder.path().join("run");
        let _ = fs::remove_dir_all(&run_folder);
        copy(&folder.path().join("original"), &run_folder);
        spoil(&run_folder.join("checkpoints/step-3"));
        let before = contents(&run_folder.join("checkpoints"));
        let more: &[&str] = if args.iter().any(|arg| arg.starts_with("--steps")) { &[] } else { &["--steps=5"] };
        let output = run(folder.path(), &[&["--resume=run"], more, *args].concat());
        let answer = String::from_utf8_lossy(&output.stderr);
        let fits = output.status.code() == Some(1)
            && expected.iter().all(|part| answer.contains(part))
            && !answer.contains("panicked")
            && contents(&run_folder.join("checkpoints")) == before;
        if !fits {
            wrong.push(format!("{name}: {}, {answer}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong.join("\n"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_the_run_with_its_name_and_is_not_kept_full() {
    let folder = folder_with_text();
    let args = [TINY, &["--gpus=4", "--steps=100000", "--set=checkpoint.every=500", "--out=run"]].concat();
    let child = program(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while fs::metadata(folder.path().join("run/metrics.jsonl")).map_or(0, |metrics| metrics.len()) == 0 {
        sleep(Duration::from_millis(1));
    }
    let partial = folder.path().join("run/checkpoints/.step-500.partial");
    fs::create_dir_all(&partial).unwrap();
    std::os::unix::fs::symlink("/dev/full", partial.join("rank-2.safetensors")).unwrap();
    let output = child.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    let cause =
        "error: rank 2: cannot write run/checkpoints/.step-500.partial/rank-2.safetensors: No space left on device";
    assert!(answer.contains(cause), "{answer}");
    assert_eq!(checkpoints(&folder.path().join("run")), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_rank_that_is_stuck_is_named_and_does_not_keep_the_program_alive() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--gpus=2", "--steps=3"]], "run");
    // Rank 1 will wait for ever for somebody to read what it writes there.
    let log = folder.path().join("run/logs/rank-1.txt");
    fs::remove_file(&log).unwrap();
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let seconds = ["--set=comm.timeout_seconds=3", "--set=comm.init_timeout_seconds=3"];
    let args = [&["--resume=run", "--steps=5"], &seconds[..]].concat();
    let mut child = program(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it waits for ever for rank 1");
        }
        sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    for part in ["no sign of rank 1 within 3s", "rank 1 did not come back within 8s"] {
        assert!(answer.contains(part), "no `{part}` in:\n{answer}");
    }
}

#[test]
fn a_number_that_is_not_finite_stops_the_run_or_skips_the_step_and_says_where() {
    let folder = folder_with_text();
    let diverging =
        ["--gpus=2", "--steps=6", "--set=optim.lr=1e30", "--set=optim.min_lr=0", "--set=checkpoint.every=1"];
    let stop = run(folder.path(), &[TINY, &diverging, &["--out=stop"]].concat());
    let answer = String::from_utf8_lossy(&stop.stderr);
    assert_eq!(stop.status.code(), Some(1), "{answer}");
    for part in [
        "is not finite (loss ",
        " on rank 0",
        "the last good checkpoint is stop/checkpoints/step-",
        "train.on_non_finite",
    ] {
        assert!(answer.contains(part), "no `{part}` in:\n{answer}");
    }
    let (_, skip) =
        succeed(folder.path(), &[TINY, &diverging, &["--set=train.on_non_finite=skip", "--out=skip"]].concat());
    assert!(skip.contains(": skipped: "), "{skip}");
}

fn cut(file: &Path, bytes: u64) {
    let len = fs::metadata(file).unwrap().len();
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(len - bytes).unwrap();
}

fn flip(file: &Path, from_end: usize) {
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, target).map(drop).unwrap() }
    }
}

fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = vec![];
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() { all.extend(contents(&path)) } else { all.push((path.clone(), fs::read(&path).unwrap())) }
    }
    all.sort();
    all
}
