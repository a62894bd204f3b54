//! A supervised run goes on by itself after failures, with the losses of one that was not disturbed, or says why not.

mod chaos;
#[path = "../common/mod.rs"]
mod common;

use chaos::outside::in_memory;
use common::{TINY, folder_with_text, metrics, program, succeed, values, wait_for_metrics, wait_until};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Four ranks and a checkpoint every three steps.
const RUN: &[&str] = &[
    "--gpus=4",
    "--set=checkpoint.every=3",
    "--set=train.micro_batch_size=1",
    "--set=train.global_batch_size=12",
    "--set=train.val_every=0",
];

/// Trains in `folder/out` with faults on purpose.
fn with_faults(folder: &Path, faults: &str, args: &[&[&str]], out: &str) -> Output {
    let [output] = all_with_faults(folder, [(faults, args, out)]);
    output
}

/// Trains in several folders at the same time, because a run that fails mostly waits for its restart. Each must print
/// less than the 64 KiB that a pipe holds.
fn all_with_faults<const N: usize>(folder: &Path, runs: [(&str, &[&[&str]], &str); N]) -> [Output; N] {
    let started = runs.map(|(faults, args, out)| {
        let args = [&[TINY, RUN].concat()[..], &args.concat(), &["--out", out]].concat();
        let mut command = program(folder, &args);
        command.env("KILN_FAULTS", faults).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    started.map(|child| child.wait_with_output().unwrap())
}

/// The losses of a run of 14 steps without faults.
fn undisturbed(folder: &Path) -> Vec<f64> {
    succeed(folder, &[TINY, RUN, &["--steps=14", "--out=undisturbed"]].concat());
    losses(&folder.join("undisturbed"))
}

/// Trains 14 steps in `folder/run` with faults on purpose, which the run must survive; returns what it says.
#[track_caller]
fn survive(folder: &Path, faults: &str, args: &[&str]) -> String {
    let output = with_faults(folder, faults, &[&["--steps=14"], args], "run");
    let told = said(&output);
    assert!(output.status.success(), "{told}");
    told
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// The losses of steps 1, 2, 3 and so on, each of which must appear once.
fn losses(run: &Path) -> Vec<f64> {
    let steps: Vec<Value> = metrics(run).into_iter().filter(|line| line.get("loss").is_some()).collect();
    assert_eq!(values(&steps, "step"), (1..=steps.len()).map(|step| step as f64).collect::<Vec<_>>());
    values(&steps, "loss")
}

fn events(run: &Path) -> Vec<String> {
    metrics(run).iter().filter_map(|line| Some(line.get("event")?.as_str()?.to_string())).collect()
}

/// Nothing of a supervisor is left, and the newest checkpoint is whole.
fn check_folder(folder: &Path, out: &str) {
    let run = folder.join(out);
    assert!(!run.join(".supervisor").exists());
    let partial = |entry: fs::DirEntry| entry.file_name().to_string_lossy().contains("partial");
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap().flatten();
    assert!(!checkpoints.into_iter().any(partial), "an incomplete checkpoint is left");
    succeed(folder, &["inspect", out]);
}

#[test]
fn a_run_survives_a_panic_a_kill_and_a_rank_that_hangs_with_the_losses_of_an_undisturbed_one() {
    let folder = folder_with_text();
    let expected = undisturbed(folder.path());
    let faults = "panic:step=5,rank=2,attempt=1; kill:step=8,rank=1,attempt=2; hang:step=11,rank=3,attempt=3";
    let said = survive(folder.path(), faults, &["--restarts=3", "--set=comm.timeout_seconds=4"]);
    let run = folder.path().join("run");
    assert_eq!(losses(&run), expected);
    let events = events(&run);
    // Rank 0 may not have noted the last step when another rank in its process begins the next one.
    for (number, why) in [
        (1, "rank 2 panicked: KILN_FAULTS has a panic in step 5"),
        (2, "the process was killed by SIGKILL"),
        (3, "likely cause: rank 3 never entered all_reduce"),
    ] {
        let is_it = |event: &String| event.starts_with(&format!("restart {number} of 3, after")) && event.contains(why);
        assert!(events.iter().any(is_it), "no restart {number} because {why} in {events:?}\n{said}");
    }
    // The calls of the ranks when one of them hung name it, and where it was.
    let hung = "rank 3 never entered all_reduce number ";
    assert!(said.contains(hung) && said.contains("in step 11 (start)"), "{said}");
    let (doctor, _) = succeed(folder.path(), &["doctor", "run"]);
    for part in ["run: 14 steps of 14 made", "restart 3 of 3", &format!("likely cause: {hung}"), "since"] {
        assert!(doctor.contains(part), "no `{part}` in {doctor}");
    }
    check_folder(folder.path(), "run");
}

#[test]
fn a_run_that_has_lost_devices_goes_on_with_fewer_ranks_and_then_with_all() {
    let folder = folder_with_text();
    let undisturbed = undisturbed(folder.path());
    let faults = "lost:step=5,rank=3,back=4; lost:step=8,rank=2,attempt=2,back=4; panic:step=11,rank=0,attempt=3";
    let steps = ["--steps=14", "--restarts=3"];
    let [survived, refused] = all_with_faults(
        folder.path(),
        [(faults, &[&steps, &["--set=resilience.min_gpus=2"]], "run"), ("lost:step=5,rank=3", &[&steps], "refused")],
    );
    assert!(survived.status.success(), "{}", said(&survived));
    let run = folder.path().join("run");
    for (found, expected) in losses(&run).iter().zip(undisturbed) {
        assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}");
    }
    let events = events(&run);
    let ranks: Vec<&str> = events.iter().filter_map(|event| event.split_once(" on ")).map(|(_, ranks)| ranks).collect();
    assert_eq!(ranks, ["3 ranks", "2 ranks", "4 ranks"], "{events:?}");

    let told = said(&refused);
    let expected = "3 of the run's 4 ranks can start, and it needs 4: bring the devices or machines back";
    assert!(refused.status.code() == Some(1) && told.contains(expected), "{told}");
    check_folder(folder.path(), "refused");
}

#[test]
fn ranks_that_hold_the_whole_state_save_it_when_another_one_is_lost() {
    let folder = folder_with_text();
    let expected = undisturbed(folder.path());
    let rare = ["--set=checkpoint.every=100", "--restarts=1", "--set=resilience.min_gpus=2"];
    for (layout, fault) in [
        (&["--strategy=ddp"][..], "panic:step=9,rank=0,attempt=1"),
        (&["--strategy=hybrid_shard"], "panic:step=9,rank=3,attempt=1"),
        (&["--strategy=ddp"], "lost:step=9,rank=1"),
    ] {
        let told = survive(folder.path(), fault, &[layout, &rare].concat());
        let saved = "the remaining ranks hold the whole state after step 8: saved run/checkpoints/step-8";
        assert!(told.contains(saved) && told.contains("s, from run/checkpoints/step-8"), "{told}");
        for (found, expected) in losses(&folder.path().join("run")).iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}, with {layout:?}");
        }
        let saved = "saved run/checkpoints/step-8 from what the remaining ranks held";
        let lines = metrics(&folder.path().join("run"));
        let steps: Vec<f64> =
            values(&lines.into_iter().filter(|line| line["event"] == saved).collect::<Vec<_>>(), "step");
        assert_eq!(steps, [8.0]);
        check_folder(folder.path(), "run");
        fs::remove_dir_all(folder.path().join("run")).unwrap();
    }
    // Nobody else has the shards of rank 2.
    let lost = survive(folder.path(), "panic:step=9,rank=2,attempt=1", &rare);
    assert!(!lost.contains("the remaining ranks") && lost.contains("from the beginning"), "{lost}");
    assert_eq!(losses(&folder.path().join("run")), expected);

    // All shards are there, and a person resumes.
    let alone =
        with_faults(folder.path(), "error:step=5,rank=1", &[&["--steps=9", "--set=checkpoint.every=100"]], "alone");
    assert!(said(&alone).contains("after step 4: saved alone/checkpoints/step-4"), "{}", said(&alone));
    succeed(folder.path(), &["--resume=alone", "--steps=14"]);
    assert_eq!(losses(&folder.path().join("alone")), expected);
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_run_goes_on_from_a_checkpoint_in_memory_that_is_newer_than_that_on_disk() {
    let folder = folder_with_text();
    let expected = undisturbed(folder.path());
    let memory = ["--restarts=1", "--set=resilience.memory_every=1", "--set=checkpoint.every=100"];
    let told = survive(folder.path(), "kill:step=9,rank=2,attempt=1", &memory);
    let recovered =
        |line: &str| line.strip_prefix("recovered the checkpoint of step ")?.strip_suffix(" from memory")?.parse().ok();
    let step: usize = told.lines().find_map(recovered).unwrap_or_else(|| panic!("{told}"));
    // The last one may not be whole.
    assert!((6..=8).contains(&step), "{told}");
    assert_eq!(losses(&folder.path().join("run")), expected);
    check_folder(folder.path(), "run");
    assert!(in_memory(&folder.path().join("run")).is_empty(), "memory is left full");
    let refused = with_faults(folder.path(), "", &[&["--set=resilience.memory_every=1", "--steps=1"]], "refused");
    let warning = "warning: resilience.memory_every is without effect: give resilience.restarts too";
    assert!(said(&refused).contains(warning), "{}", said(&refused));
}

#[test]
fn a_run_without_memory_goes_on_with_smaller_micro_batches_and_one_that_is_nan_again_and_again_skips_the_step() {
    let folder = folder_with_text();
    let batch = ["--steps=8", "--gpus=2", "--set=train.micro_batch_size=4"];
    succeed(folder.path(), &[TINY, RUN, &batch, &["--out=undisturbed"]].concat());
    let undisturbed = losses(&folder.path().join("undisturbed"));
    let dynamic = ["--restarts=2", "--set=resilience.dynamic_batch=true"];
    let rare = ["--set=checkpoint.every=100"];
    let skip = ["--restarts=3", "--set=resilience.skip_non_finite=true"];
    let faults = "oom:step=5,rank=1,attempt=1; oom:step=5,rank=0,attempt=2";
    let [run, small, full, nan] = all_with_faults(
        folder.path(),
        [
            (faults, &[&batch, &dynamic], "run"),
            ("oom:step=5,rank=1", &[&batch, &dynamic, &["--restarts=9"]], "small"),
            ("nearly_full:step=5,rank=1,attempt=1", &[&batch, &dynamic, &rare], "full"),
            ("nan:step=5,rank=1", &[&batch, &skip], "nan"),
        ],
    );
    let told = said(&run);
    assert!(run.status.success(), "{told}");
    for part in [
        "error: the process could not allocate memory in step 5",
        "train.micro_batch_size is 2 instead of 4, with the same global batch",
        "train.micro_batch_size is 1 instead of 2",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    for (found, expected) in losses(&folder.path().join("run")).iter().zip(&undisturbed) {
        assert!((found - expected).abs() <= 1e-6 * expected, "{found}, not {expected}");
    }
    let told = said(&small);
    let expected = " does not fit into memory with one sequence at a time:\n";
    assert!(small.status.code() == Some(1) && told.contains(expected) && told.contains("activations"), "{told}");

    // Before memory is full: no step is made again.
    let told = said(&full);
    assert!(full.status.success() && told.contains("warning: rank 1: step 5: 95% of "), "{told}");
    let restart = "s, from full/checkpoints/step-5; train.micro_batch_size is 2 instead of 4";
    assert!(told.contains("step 5 is the last one with this micro-batch") && told.contains(restart), "{told}");
    for (found, expected) in losses(&folder.path().join("full")).iter().zip(&undisturbed) {
        assert!((found - expected).abs() <= 1e-6 * expected, "{found}, not {expected}");
    }

    let told = said(&nan);
    assert!(nan.status.success() && told.contains("step 5 will be skipped if it is not finite again"), "{told}");
    let events = events(&folder.path().join("nan"));
    assert!(events.iter().any(|event| event.starts_with("skipped: ")), "{events:?}");
    let finite: Vec<f64> =
        metrics(&folder.path().join("nan")).iter().filter_map(|line| line["loss"].as_f64()).collect();
    assert_eq!((finite.len(), &finite[..4]), (7, &undisturbed[..4]));
}

#[test]
fn a_restart_of_a_resumed_run_keeps_what_it_had_and_begins_where_the_run_did() {
    let folder = folder_with_text();
    succeed(folder.path(), &[TINY, RUN, &["--steps=10", "--out=run"]].concat());
    let run = folder.path().join("run");
    let before = losses(&run);
    let resumed =
        |faults: &str, args: &[&str]| program(folder.path(), args).env("KILN_FAULTS", faults).output().unwrap();
    let output = resumed("panic:step=11,rank=2,attempt=1", &["--resume=run", "--steps=12", "--restarts=1"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!((losses(&run).len(), &losses(&run)[..10]), (12, &before[..]));
    // From an older checkpoint, which fails before it saves another one: not from the newer one of the older course.
    let branch = ["--resume=run/checkpoints/step-10", "--steps=13", "--restarts=1", "--set=checkpoint.every=50"];
    let output = resumed("panic:step=12,rank=2,attempt=1", &branch);
    let told = said(&output);
    assert!(output.status.success() && told.contains(", from run/checkpoints/step-10"), "{told}");
    assert_eq!(losses(&run).len(), 13);
    check_folder(folder.path(), "run");
}

/// Starts a supervised run that takes long, and waits for its second step.
fn start(folder: &Path, out: &str) -> std::process::Child {
    let args = [TINY, RUN, &["--steps=100", "--restarts=2", "--set=checkpoint.every=0", "--out", out]].concat();
    let mut child = program(folder, &args)
        .env("KILN_FAULTS", "slow:step=1,ms=200")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_metrics(&mut child, &folder.join(out), |text| text.contains("{\"step\":2,"));
    child
}

/// The process that a supervisor has started.
fn attempt_of(supervisor: &std::process::Child) -> String {
    let children = format!("/proc/{0}/task/{0}/children", supervisor.id());
    fs::read_to_string(children).unwrap().trim().to_string()
}

fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_to_supervisor_and_process_stops_the_run_after_its_step_and_a_second_supervisor_is_refused() {
    let folder = folder_with_text();
    let mut supervisor = start(folder.path(), "run");
    let second = with_faults(folder.path(), "", &[&["--resume=auto", "--steps=100", "--restarts=2"]], "run");
    let told = said(&second);
    assert!(second.status.code() == Some(1) && told.contains("another process"), "{told}");

    // SIGUSR1 asks for the ranks' calls, and disturbs nobody.
    kill("-USR1", &supervisor.id().to_string());
    let records =
        || fs::read_dir(folder.path().join("run/logs/flight")).is_ok_and(|mut entries| entries.next().is_some());
    wait_until(&mut supervisor, records);
    let attempt = attempt_of(&supervisor);
    kill("-TERM", &supervisor.id().to_string());
    kill("-TERM", &attempt);
    let output = supervisor.wait_with_output().unwrap();
    let told = said(&output);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(!told.contains("restart 1"), "{told}");
    check_folder(folder.path(), "run");
    let (doctor, _) = succeed(folder.path(), &["doctor", "run"]);
    for part in ["The last calls of ranks 0, 1, 2 and 3", "  the run was healthy as far as the records show"] {
        assert!(doctor.contains(part) && !doctor.contains("likely cause"), "no `{part}` in {doctor}");
    }
}

#[test]
fn a_rank_that_is_slow_is_named() {
    let folder = folder_with_text();
    let output = with_faults(folder.path(), "slow:step=1,rank=2,ms=200", &[&["--steps=21"]], "run");
    assert!(said(&output).contains("warning: rank 2 is a straggler: it computed "), "{}", said(&output));
}

#[test]
fn what_no_restart_can_help_is_not_restarted() {
    let folder = folder_with_text();
    let fails = |faults: &str, args: &[&str], out: &str| {
        let output = with_faults(folder.path(), faults, &[&["--steps=8", "--restarts=9"], args], out);
        assert_eq!(output.status.code(), Some(1));
        said(&output)
    };
    let told = fails("panic:step=5,rank=1", &[], "loop");
    assert!(told.contains("step 5 has failed 3 times in a row in the same way, so no restart will help"), "{told}");
    assert!(told.contains("resume with `"), "{told}");
    check_folder(folder.path(), "loop");
    let told = fails("panic:stp=5", &[], "typo");
    assert!(told.contains("KILN_FAULTS has `panic:stp=5`, which has an unknown key"), "{told}");
    let told = fails("", &["--set=model.n_head=5"], "invalid");
    assert!(!told.contains("restart 1"), "{told}");
    assert!(!folder.path().join("typo").exists() && !folder.path().join("invalid").exists());
}
