//! Which checkpoints are kept, which one a name means, and which one is used if the newest is damaged.

use super::failures::flip;
use super::{EVERY_THREE, checkpoints, losses, step_losses};
use crate::common::{TINY, folder_with_text, metrics, program, run, succeed, values, wait_for_metrics};
use checkpoint::{Checkpoint, Folder, Index, Kind, Piece, Values, Written, write_rank};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;

#[track_caller]
fn refused(folder: &Path, args: &[&str], expected: &str) {
    let output = run(folder, args);
    let answer = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && answer.contains(expected), "{args:?}: {answer}");
}

#[test]
fn a_checkpoint_is_named_by_its_step_or_as_the_best() {
    let folder = folder_with_text();
    let diverging = ["--steps=10", "--set=train.val_every=1", "--set=checkpoint.keep=1", "--set=optim.lr=0.5"];
    let (said, _) = succeed(folder.path(), &[TINY, &diverging, &["--out=run"]].concat());
    let best = said.split("kept as run/checkpoints/step-").nth(1).expect(&said).trim().to_string();
    let (by_step, by_folder) = (format!("run@{best}"), format!("run/checkpoints/step-{best}"));
    let eval = |name: &str| succeed(folder.path(), &["eval", name]).0;
    assert_ne!(eval(&by_folder), eval("run"));
    assert_eq!([eval("run@best"), eval(&by_step)], [eval(&by_folder), eval(&by_folder)]);
    succeed(folder.path(), &["generate", "run@best", "--prompt=The", "--tokens=3"]);
    succeed(folder.path(), &["export", "run@best", "--out=hf"]);
    assert!(succeed(folder.path(), &["inspect", "run@best"]).0.contains(&format!("step-{best}: step {best},")));

    let there =
        format!("run/checkpoints: there is no checkpoint of step 99: there are those of steps {best} and 10 (RUN@10)");
    for name in ["run@99", "run/checkpoints/step-99"] {
        refused(folder.path(), &["eval", name], &there);
        refused(folder.path(), &["--resume", name], &there);
    }
    let which = format!("after the @, give `best` or a step: there are those of steps {best} and 10 (RUN@10)");
    refused(folder.path(), &["eval", "run@x"], &format!("run@x: {which}"));
    refused(folder.path(), &["--resume=run@"], &format!("run@: {which}"));
    refused(folder.path(), &["eval", "nothing@best"], "there is no run nothing: ");
    let (_, told) = succeed(folder.path(), &["--resume=run@best", "--out=other", "--steps=11"]);
    assert!(told.contains(&format!("resuming after step {best} from {by_folder}")), "{told}");

    refused(folder.path(), &["--resume=."], "there is no checkpoint: name one of the runs in it: ./other, ./run");

    losses(folder.path(), &[TINY, &["--steps=2", "--set=checkpoint.keep_best=false"]], "plain");
    refused(folder.path(), &["eval", "plain@best"], "the checkpoint of step 2 knows no best validation");
    // A folder may have such a name.
    fs::rename(folder.path().join("plain"), folder.path().join("run@best")).unwrap();
    assert!(succeed(folder.path(), &["inspect", "run@best"]).0.contains("step-2: step 2,"));
}

#[test]
fn auto_passes_over_damaged_checkpoints_and_says_so() {
    let folder = folder_with_text();
    let undisturbed = losses(folder.path(), &[TINY, EVERY_THREE, &["--steps=12"]], "undisturbed");
    let auto = |steps: &'static str| [TINY, EVERY_THREE, &["--resume=auto", "--out=run", "--gpus=2", steps]].concat();
    succeed(folder.path(), &auto("--steps=9"));
    let newest = folder.path().join("run/checkpoints/step-9");
    flip(&newest.join("rank-1.safetensors"), 40);
    refused(folder.path(), &["--resume=run", "--steps=12"], "rank-1.safetensors: has digest ");
    refused(
        folder.path(),
        &["inspect", "run"],
        "take the one before (run@6); in training, `--resume auto --out run` takes",
    );
    let (_, told) = succeed(folder.path(), &auto("--steps=12"));
    for part in [
        "warning: run/checkpoints/step-9 is damaged and is skipped: run/checkpoints/step-9/rank-1.safetensors: has digest ",
        "resuming after step 6 from run/checkpoints/step-6",
        "a checkpoint of later steps is now run/checkpoints/abandoned/step-9",
    ] {
        assert!(told.contains(part), "no `{part}` in: {told}");
    }
    let found = step_losses(&folder.path().join("run"));
    for (found, expected) in found.iter().zip(&undisturbed) {
        assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}");
    }
    assert_eq!(found.len(), 12);
    fs::write(folder.path().join("run/checkpoints/step-12/config.yaml"), "").unwrap();
    refused(folder.path(), &["eval", "run"], "config.yaml: has ");
    // If none is intact, nothing restarts over what might still be repaired.
    for name in checkpoints(&folder.path().join("run")).iter().filter(|name| name.starts_with("step-")) {
        fs::remove_file(folder.path().join("run/checkpoints").join(name).join("index.json")).unwrap();
    }
    let all = "checkpoints of run are damaged:\n  cannot read run/checkpoints/step-12/index.json: ";
    refused(folder.path(), &auto("--steps=13"), all);
    refused(folder.path(), &["--resume=run", "--steps=13"], "the run's other checkpoints are damaged too");
    assert_eq!(step_losses(&folder.path().join("run")), found);
}

/// Rewrites the checkpoint `from` as that of a run `to` whose parameter `name` is not finite, as an older version could
/// have saved it.
fn with_nan(from: &Path, to: &Path, name: &str) {
    let (checkpoint, folder) = (Checkpoint::open(from).unwrap(), Folder::of_run(to));
    let index = checkpoint.index();
    let mut pieces: Vec<(Piece, Values)> = vec![];
    for parameter in &index.parameters {
        let (of, shape, len) = (parameter.name.clone(), parameter.shape.clone(), parameter.len().unwrap());
        let read = |kind| checkpoint.read(&of, kind, 0..len).unwrap();
        let (param, mean) = (read(Kind::Param), if of == name { vec![f32::NAN; len] } else { read(Kind::ExpAvg) });
        let values = move |kind| if kind == Kind::ExpAvg { mean.clone() } else { param.clone() };
        let piece = Piece { name: of, shape, region: None, offset: 0, len, has_moments: true };
        pieces.push((piece, Box::new(values)));
    }
    let partial = folder.partial(index.step);
    write_rank(&partial, 0, &pieces, &Written::default()).unwrap();
    // The moments take the parameter's place.
    let entry = partial.join("rank-0.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
    let piece = json["pieces"].as_array_mut().unwrap().iter_mut().find(|piece| piece["name"] == name).unwrap();
    piece["at"].as_array_mut().unwrap().swap(0, 1);
    fs::write(&entry, json.to_string()).unwrap();
    let extra: Vec<_> =
        index.extra().iter().map(|file| (file.name.clone(), checkpoint.read_file(&file.name).unwrap())).collect();
    folder.commit(Index { world_size: 1, ..index.clone() }, &extra).unwrap();
}

#[test]
fn a_checkpoint_with_a_parameter_that_is_not_finite_is_not_used() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=3"]], "run");
    let name = "blocks.0.attn.c_attn.weight";
    with_nan(&folder.path().join("run/checkpoints/step-3"), &folder.path().join("nan"), name);
    let answer = format!(
        "nan/checkpoints/step-3: parameter {name} is not finite (it has the value NaN); the run has no other checkpoint"
    );
    refused(folder.path(), &["eval", "nan"], &answer);
    refused(folder.path(), &["generate", "nan", "--prompt=The"], &answer);
    refused(folder.path(), &["export", "nan", "--out=hf"], &answer);
    refused(folder.path(), &["--resume=nan", "--steps=5", "--gpus=2"], &answer);
    refused(folder.path(), &["export", "nan", "--full-state=all.safetensors"], &answer);
    assert!(!folder.path().join("hf").exists() && !folder.path().join("all.safetensors").exists());
}

#[test]
fn checkpoints_are_made_by_time_and_milestones_and_an_imported_model_stay() {
    let folder = folder_with_text();
    let names = |args: &[&str], out: &str| {
        losses(folder.path(), &[TINY, &["--gpus=2", "--set=checkpoint.every=0"], args], out);
        checkpoints(&folder.path().join(out))
    };
    // Every step takes longer than this, and all of them together take less.
    let always = ["--steps=4", "--set=checkpoint.every_minutes=1e-9", "--set=checkpoint.keep=9"];
    assert_eq!(names(&always, "always"), ["step-1", "step-2", "step-3", "step-4"]);
    assert_eq!(names(&["--steps=4", "--set=checkpoint.every_minutes=1e9"], "never"), ["step-4"]);
    let milestones =
        ["--steps=9", "--set=checkpoint.every=1", "--set=checkpoint.keep_every=3", "--set=checkpoint.keep=1"];
    assert_eq!(names(&milestones, "milestones"), ["step-3", "step-6", "step-9"]);

    succeed(folder.path(), &["export", "milestones", "--out=hf"]);
    succeed(folder.path(), &["import", "--hf=hf", "--out=imported"]);
    let args =
        ["--resume=imported", "--data=text.txt", "--steps=5", "--set=checkpoint.every=1", "--set=train.seq_len=16"];
    let short = ["--set=train.global_batch_size=4", "--set=train.sample_tokens=0", "--set=data.tokenizer=byte"];
    let (planned, _) = succeed(folder.path(), &[&args[..], &short, &["--dry-run"]].concat());
    succeed(folder.path(), &[&args[..], &short].concat());
    assert_eq!(checkpoints(&folder.path().join("imported")), ["step-0", "step-4", "step-5"]);
    assert!(planned.contains("each; at most 4 at once"), "the newest two, one under way, and step-0: {planned}");
}

#[test]
fn a_run_without_better_validations_ends_early_and_counts_on_when_it_is_resumed() {
    let folder = folder_with_text();
    let constant = ["--set=optim.lr=0.5", "--set=optim.warmup_steps=0", "--set=optim.schedule=constant"];
    let patient = ["--set=train.val_every=1", "--set=train.patience=3", "--set=checkpoint.keep_best=false", "--gpus=2"];
    let args = [TINY, &constant, &patient].concat();
    let (said, told) = succeed(folder.path(), &[&args[..], &["--steps=40", "--out=whole"]].concat());
    let losses = values(&metrics(&folder.path().join("whole")), "val_loss");
    let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap() + 1;
    let (ended, lowest) = (best + 3, losses[best - 1]);
    assert!(ended < 40 && losses.len() == ended, "{losses:?}");
    let expected = format!(
        "ended early after step {ended}: 3 validations without a lower loss (train.patience); the lowest was {lowest:.4} after step {best}"
    );
    assert!(told.contains(&expected) && said.contains(&format!(" after {ended} steps;")), "{told}{said}");
    assert!(checkpoints(&folder.path().join("whole")).contains(&format!("step-{ended}")));

    let steps = format!("--steps={}", ended - 1);
    succeed(folder.path(), &[&args[..], &[&steps, "--out=parts"]].concat());
    let (_, told) = succeed(folder.path(), &["--resume=parts", "--steps=40"]);
    assert!(told.contains(&expected), "{told}");
    // The run has ended: more patience resumes it, and a script that restarts it repeatedly is done.
    refused(folder.path(), &["--resume=parts"], &format!("ended early at step {ended}, after 3 validations without"));
    let (said, _) = succeed(folder.path(), &[&args[..], &["--steps=40", "--resume=auto", "--out=parts"]].concat());
    assert!(said.contains("ended early at step "), "{said}");
    let (_, told) = succeed(folder.path(), &["--resume=parts", "--set=train.patience=4"]);
    assert!(told.contains(&format!("resuming after step {ended}")), "{told}");
}

#[test]
fn metrics_that_are_deleted_are_begun_anew_and_a_folder_that_is_gone_ends_the_run() {
    let folder = folder_with_text();
    let args = [TINY, &["--steps=1000000", "--set=checkpoint.every=0", "--gpus=2", "--out=run"]].concat();
    let run = folder.path().join("run");
    let mut child = program(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_metrics(&mut child, &run, |text| text.contains("\"loss\""));
    fs::remove_file(run.join("metrics.jsonl")).unwrap();
    wait_for_metrics(&mut child, &run, |text| !text.is_empty());
    fs::rename(&run, folder.path().join("moved")).unwrap();
    let output = child.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    for part in [
        "warning: run/metrics.jsonl was deleted during the run: a new one begins with step ",
        ": the run folder run is gone, deleted or moved while the run went on",
    ] {
        assert!(answer.contains(part), "no `{part}` in:\n{answer}");
    }
    assert!(!run.exists() && !metrics(&folder.path().join("moved")).is_empty());
}
