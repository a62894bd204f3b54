//! Killed runs, damaged checkpoints, full disks, stuck ranks, and non-finite numbers.

use super::{EVERY_THREE, checkpoints, contents, losses, step_losses};
use crate::common::{TINY, TINY_EXPERTS, folder_with_text, metrics, program, run, succeed, wait_for_metrics};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn a_run_that_is_killed_twenty_times_ends_with_the_losses_of_an_undisturbed_one_bit_for_bit() {
    let folder = folder_with_text();
    let args = [TINY, EVERY_THREE, &["--gpus=2", "--steps=120"]];
    let undisturbed = losses(folder.path(), &args, "undisturbed");
    let (mut kills, mut while_saving, mut random) = (0, 0, 0x2545_F491_4F6C_DD1D_u64);
    'rounds: for round in 0.. {
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
            // A killed process may have written all of its last checkpoint, which the next one completes; then there is
            // nothing left to resume.
            let is_finished = || checkpoints(&run).iter().any(|name| name == "step-120");
            if kills == 20 {
                match child.wait().unwrap() {
                    ended if !ended.success() && is_finished() => continue 'rounds,
                    ended => break ended,
                }
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            sleep(Duration::from_millis(50 + random % 400));
            // Every other kill happens while a checkpoint is being written.
            let saving = || checkpoints(&run).iter().any(|name| name.ends_with(".partial"));
            while kills % 2 == 1 && child.try_wait().unwrap().is_none() && !saving() {}
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if status.success() {
                break status;
            }
            assert!(status.code().is_none() || is_finished(), "it was killed, and did not fail");
            kills += 1;
            while_saving += usize::from(saving());
            if is_finished() {
                continue 'rounds;
            }
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
fn a_run_that_is_killed_again_and_again_goes_on_in_pipelines_and_out_of_them() {
    let layouts: [&[&str]; 5] = [
        &["--gpus=4", "--set=parallel.pp=2"],
        &["--gpus=1", "--set=parallel.pp=1"],
        &["--gpus=4", "--set=parallel.pp=4", "--set=parallel.schedule=gpipe"],
        &["--gpus=3", "--set=parallel.pp=1", "--strategy=zero1"],
        &["--gpus=4", "--set=parallel.pp=2", "--set=parallel.schedule=1f1b", "--strategy=ddp"],
    ];
    killed_again_and_again(TINY, 90, &layouts);
}

#[test]
fn a_run_that_is_killed_again_and_again_goes_on_wherever_its_experts_are() {
    let layouts: [&[&str]; 8] = [
        &["--gpus=4", "--set=parallel.pp=2", "--set=parallel.ep=2"],
        &["--gpus=4", "--set=parallel.pp=1", "--set=parallel.tp=2", "--set=parallel.ep=4"],
        &["--gpus=2", "--set=parallel.ep=1"],
        &["--gpus=1", "--set=parallel.pp=1", "--set=parallel.ep=1", "--set=parallel.tp=1"],
        &["--gpus=4", "--set=parallel.ep=4", "--strategy=ddp"],
        &["--gpus=4", "--set=parallel.ep=2", "--strategy=full_shard"],
        &["--gpus=4", "--set=parallel.ep=1"],
        &["--gpus=4", "--set=parallel.pp=2", "--set=parallel.ep=2", "--strategy=zero1"],
    ];
    killed_again_and_again(TINY_EXPERTS, 40, &layouts);
}

/// The run resumes in another layout each time.
#[track_caller]
fn killed_again_and_again(model: &[&str], steps: usize, layouts: &[&[&str]]) {
    let folder = folder_with_text();
    let steps_arg = format!("--steps={steps}");
    let args = [model, EVERY_THREE, &[&steps_arg]];
    let undisturbed = losses(folder.path(), &args, "undisturbed");
    let run = folder.path().join("run");
    let (mut layouts, mut kills) = (layouts.iter().cycle(), 0);
    loop {
        let auto = ["--resume=auto", "--out=run"];
        let args = [&args.concat(), &auto[..], layouts.next().unwrap()].concat();
        let mut child = program(folder.path(), &args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        // Killed once it has saved a new checkpoint, or at its end.
        let newest =
            |names: Vec<String>| names.iter().filter_map(|name| name.strip_prefix("step-")?.parse::<u64>().ok()).max();
        let last = newest(checkpoints(&run));
        while kills < 8 && child.try_wait().unwrap().is_none() && newest(checkpoints(&run)) <= last {
            assert!(started.elapsed() < Duration::from_secs(300), "nothing new is saved");
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
    assert_eq!(step_losses(&run).len(), steps);
}

/// A checkpoint that cannot be resumed from: what is wrong, the function that spoils it, the arguments next to
/// `--resume run`, and parts of the answer.
type Spoilt = (&'static str, fn(&Path), &'static [&'static str], &'static [&'static str]);

const SPOILT: &[Spoilt] = &[
    (
        "a file cut off",
        |step| cut(&step.join("rank-1.safetensors"), 10),
        &[],
        &["rank-1.safetensors: has ", "the run has no other checkpoint"],
    ),
    (
        "a byte changed",
        |step| flip(&step.join("rank-0.safetensors"), 40),
        &[],
        &["error: rank ", "rank-0.safetensors: has digest "],
    ),
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
    (
        "a configuration emptied",
        |step| fs::write(step.join("config.yaml"), "").unwrap(),
        &[],
        &["config.yaml: has 0 bytes", "the run has no other checkpoint: train it from the start"],
    ),
    ("no checkpoint", |step| fs::remove_dir_all(step).unwrap(), &[], &["the run run has no checkpoint"]),
    (
        "another model",
        |_| {},
        &["--set=model.n_layer=3"],
        &["no parameter blocks.2.ln_1.gamma", "belongs to a different model"],
    ),
    ("another width", |_| {}, &["--set=model.n_embd=32"], &["has shape [", "belongs to a different model"]),
    (
        "another vocabulary",
        |_| {},
        &["--set=data.tokenizer=char", "--set=model.vocab_size=0"],
        &["ends.wte.weight", "belongs to a different model"],
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

/// The run was killed after all ranks had written the checkpoint, but before it got its name.
#[test]
fn a_checkpoint_that_only_lacks_its_name_is_gone_on_from() {
    let folder = folder_with_text();
    let undisturbed = losses(folder.path(), &[TINY, EVERY_THREE, &["--steps=8"]], "undisturbed");
    for (how, said) in [("--resume=run", "resuming after step 6"), ("--resume=auto", "resuming after step 6")] {
        let run = folder.path().join("run");
        let _ = fs::remove_dir_all(&run);
        losses(folder.path(), &[TINY, EVERY_THREE, &["--steps=6"]], "run");
        fs::rename(run.join("checkpoints/step-6"), run.join("checkpoints/.step-6.partial")).unwrap();
        let config: Vec<&str> = if how == "--resume=auto" { [TINY, EVERY_THREE].concat() } else { vec![] };
        let (_, told) = succeed(folder.path(), &[&config[..], &[how, "--out=run", "--steps=8"]].concat());
        assert!(told.contains(said), "{told}");
        assert_eq!(step_losses(&run)[..6], undisturbed[..6]);
        assert_eq!(checkpoints(&run), ["step-6", "step-8"]);
    }
}

/// Somebody else's run folder, with links to files of whoever unpacks it.
#[test]
fn links_in_a_run_folder_are_not_followed_to_files_that_are_not_the_runs() {
    use std::os::unix::fs::symlink;
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=3", "--set=data.tokenizer=char"]], "original");
    let [mine, mine_too] = ["mine.txt", "mine"].map(|name| folder.path().join(name));
    fs::create_dir(&mine_too).unwrap();
    fs::write(mine_too.join("rank-0.txt"), "mine").unwrap();
    let run_folder = folder.path().join("run");
    // The name of the link, its target, and a part of the answer; with `None`, the run continues and the link is
    // replaced.
    let links: &[(&str, &Path, Option<&str>)] = &[
        (".lock", &mine, Some(".lock: it is a symbolic link, which Kiln does not follow; remove it")),
        ("logs/rank-0.txt", &mine, Some("logs/rank-0.txt: it is a symbolic link")),
        ("metrics.jsonl", &mine, None),
        ("metrics.jsonl.partial", &mine, None),
        ("config.yaml.partial", &mine, None),
        ("tokenizer/tokenizer.json", &mine, None),
        ("tokenizer/tokenizer.json.partial", &mine, None),
        ("logs", &mine_too, Some("run/logs: is a symbolic link, and Kiln writes and removes files in it")),
        ("tokenizer", &mine_too, Some("run/tokenizer: is a symbolic link")),
        ("tb", &mine_too, Some("run/tb: is a symbolic link")),
        ("checkpoints/abandoned", &mine_too, None),
    ];
    for (name, target, answer) in links {
        let _ = fs::remove_dir_all(&run_folder);
        copy(&folder.path().join("original"), &run_folder);
        fs::write(&mine, "{\"step\":1}\n").unwrap();
        let link = run_folder.join(name);
        let _ = if link.is_dir() { fs::remove_dir_all(&link) } else { fs::remove_file(&link) };
        symlink(target, &link).unwrap();
        let output = run(folder.path(), &["--resume=run", "--steps=4"]);
        let said = String::from_utf8_lossy(&output.stderr);
        match answer {
            Some(answer) => assert!(output.status.code() == Some(1) && said.contains(answer), "{name}: {said}"),
            None => assert!(output.status.success(), "{name}: {said}"),
        }
        assert_eq!(fs::read_to_string(&mine).unwrap(), "{\"step\":1}\n", "{name}");
        assert_eq!(contents(&mine_too), [(mine_too.join("rank-0.txt"), b"mine".to_vec())], "{name}");
    }
    // Checkpoints elsewhere; the run itself may be reached through a link.
    let _ = fs::remove_dir_all(&run_folder);
    copy(&folder.path().join("original"), &run_folder);
    fs::rename(run_folder.join("checkpoints"), folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), run_folder.join("checkpoints")).unwrap();
    let output = run(folder.path(), &["--resume=run", "--steps=4"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("run/checkpoints: is a symbolic link, and Kiln writes and removes files in it"), "{said}");
    symlink(folder.path().join("original"), folder.path().join("linked")).unwrap();
    succeed(folder.path(), &["--resume=linked", "--steps=4"]);
    assert!(folder.path().join("original/checkpoints/step-4").is_dir());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_a_checkpoint_and_ends_only_a_run_whose_last_one_it_is() {
    let folder = folder_with_text();
    // The checkpoint of step `full` meets a full disk. Later steps are slow, so that the run still trains when the third
    // attempt to write it has failed.
    let start = |steps: &str, out: &str, full: u64| {
        let out = format!("--out={out}");
        let args = [TINY, &["--gpus=4", steps, "--set=checkpoint.every=200", &out]].concat();
        let mut command = program(folder.path(), &args);
        command.env("KILN_FAULTS", "slow:step=201,ms=35");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let run = folder.path().join(&out[6..]);
        wait_for_metrics(&mut child, &run, |text| !text.is_empty());
        let partial = run.join(format!("checkpoints/.step-{full}.partial"));
        fs::create_dir_all(&partial).unwrap();
        std::os::unix::fs::symlink("/dev/full", partial.join("rank-2.safetensors")).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), checkpoints(&run))
    };
    // At the same time, because both mostly wait between attempts.
    let (run, last) = std::thread::scope(|threads| {
        let run = threads.spawn(|| start("--steps=400", "run", 200));
        let last = start("--steps=240", "last", 240);
        (run.join().unwrap(), last)
    });
    let (code, said, kept) = run;
    let cause = "cannot write run/checkpoints/.step-200.partial/rank-2.safetensors: No space left on device";
    let warning = format!("warning: rank 2: the checkpoint of step 200 is skipped after three attempts: {cause}");
    assert!(code == Some(0) && said.contains(&warning), "{said}");
    assert_eq!(kept, ["step-400"]);
    let (code, said, kept) = last;
    let cause = "error: rank 2: cannot write last/checkpoints/.step-240.partial/rank-2.safetensors: No space left";
    assert!(code == Some(1) && said.contains(cause), "{said}");
    // The link is where the rank's own file would be. All ranks still hold their state, which goes into one file.
    assert_eq!(kept, ["step-200", "step-240"]);

    // A file size limit is reported in the same way, and does not kill the run.
    let limited = program(folder.path(), &[TINY, &["--steps=1", "--out=limited"]].concat());
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 32; exec \"$0\" \"$@\""]).arg(limited.get_program()).args(limited.get_args());
    let output = shell.envs(limited.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = output.current_dir(folder.path()).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert!(answer.contains("step-1.partial/rank-0.safetensors: File too large"), "{answer}");
    assert_eq!(checkpoints(&folder.path().join("limited")), [""; 0]);
}

#[test]
fn a_rank_that_is_stuck_is_named_and_does_not_keep_the_program_alive() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--gpus=2", "--steps=3"]], "run");
    // Rank 1 will wait forever for a reader of what it writes there.
    let log = folder.path().join("run/logs/rank-1.txt");
    fs::remove_file(&log).unwrap();
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let seconds = ["--set=comm.timeout_seconds=3", "--set=comm.init_timeout_seconds=3"];
    let args = [&["--resume=run", "--steps=5"], &seconds[..]].concat();
    let mut child = program(folder.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(300) {
            child.kill().unwrap();
            panic!("it waits for ever for rank 1");
        }
        sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    for part in ["no sign of rank 1 within 3s", "rank 1 did not return within 8s"] {
        assert!(answer.contains(part), "no `{part}` in:\n{answer}");
    }
}

#[test]
fn a_number_that_is_not_finite_stops_the_run_or_skips_the_step_and_says_where() {
    for (i, model) in [TINY, TINY_EXPERTS, &[TINY_EXPERTS, &["--set=parallel.ep=2"]].concat()].into_iter().enumerate() {
        let folder = folder_with_text();
        let diverging =
            ["--gpus=2", "--steps=6", "--set=optim.lr=1e30", "--set=optim.min_lr=0", "--set=checkpoint.every=1"];
        let stop = run(folder.path(), &[model, &diverging, &["--out=stop"]].concat());
        let answer = String::from_utf8_lossy(&stop.stderr);
        assert_eq!(stop.status.code(), Some(1), "model {i}: {answer}");
        for part in [
            "is not finite (loss ",
            if i == 0 { " on rank 0" } else { "blocks." },
            "the last good checkpoint is stop/checkpoints/step-",
            "train.on_non_finite",
        ] {
            assert!(answer.contains(part), "model {i}: no `{part}` in:\n{answer}");
        }
        let (_, skip) =
            succeed(folder.path(), &[model, &diverging, &["--set=train.on_non_finite=skip", "--out=skip"]].concat());
        assert!(skip.contains(": skipped: "), "model {i}: {skip}");
    }
}

#[test]
fn a_run_that_skips_every_step_ends_with_an_error_and_keeps_what_it_had_saved() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--steps=4", "--set=checkpoint.every=2"]], "run");
    // The next values read are finite, but nothing computed from them is.
    let diverging = ["--set=optim.lr=1e30", "--set=optim.min_lr=0", "--set=optim.warmup_steps=0"];
    let skip = ["--resume=run", "--steps=40", "--set=train.on_non_finite=skip", "--set=train.max_skips=3"];
    let output = run(folder.path(), &[&skip[..], &diverging, &["--set=checkpoint.every=2"]].concat());
    let answer = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    for part in [
        ": skipped: the output of ",
        "3 steps in a row were skipped (train.max_skips); the last good checkpoint is run/checkpoints/step-",
        "--set train.max_skips=N",
    ] {
        assert!(answer.contains(part), "no `{part}` in:\n{answer}");
    }
    let steps = metrics(&folder.path().join("run"));
    let skipped: Vec<_> = steps.iter().filter(|line| line["skipped"] == true).map(|line| &line["step"]).collect();
    let first = skipped[0].as_u64().unwrap();
    assert_eq!(skipped, [first, first + 1, first + 2], "the last one has its line too");
    let newest = |name: &String| name["step-".len()..].parse::<u64>().unwrap() < first;
    assert!(checkpoints(&folder.path().join("run")).iter().all(newest), "none is of a skipped step");

    // A run so short that it makes no step at all.
    let none = ["--steps=2", "--set=train.on_non_finite=skip", "--set=train.z_loss_coef=3e38", "--out=none"];
    let output = run(folder.path(), &[TINY, &none].concat());
    let answer = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && answer.contains("all of the run's 2 steps were skipped"), "{answer}");
    assert_eq!(checkpoints(&folder.path().join("none")), [""; 0]);
}

#[test]
fn parameters_that_are_not_finite_are_not_saved() {
    let folder = folder_with_text();
    losses(folder.path(), &[TINY, &["--gpus=2", "--steps=2"]], "run");
    let diverging = ["--set=optim.lr=1e38", "--set=optim.min_lr=0", "--set=optim.weight_decay=1e3"];
    for how in ["stop", "skip"] {
        let on_non_finite = format!("--set=train.on_non_finite={how}");
        let steps = ["--resume=run", &on_non_finite, "--steps=6", "--set=checkpoint.every=1"];
        let output = run(folder.path(), &[&steps[..], &diverging].concat());
        let answer = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{answer}");
        for part in [
            "the checkpoint of step 3 is not saved, because parameter ",
            "is not finite (it has the value ",
            "; the last good checkpoint is run/checkpoints/step-2: lower optim.lr",
        ] {
            assert!(answer.contains(part), "no `{part}` in:\n{answer}");
        }
        assert_eq!(checkpoints(&folder.path().join("run")), ["step-2"]);
    }
}

fn cut(file: &Path, bytes: u64) {
    let len = fs::metadata(file).unwrap().len();
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(len - bytes).unwrap();
}

pub(super) fn flip(file: &Path, from_end: usize) {
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
