//! Training on a Vulkan or CUDA device, compared with the CPU.
//!
//! The tests run on the device that `KILN_KERNEL_DEVICE` names, `vulkan` or `cuda`, like the tests of kernels.
//! `scripts/check-kernels.sh` provides Mesa's software driver and an emulated card for them.
#![cfg(any(feature = "cuda", feature = "vulkan"))]

mod common;

use common::{TINY, TINY_EXPERTS, metrics, program, run, succeed, values};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tempfile::{TempDir, tempdir};

/// On NVIDIA GPUs a run computes in bf16 unless configured otherwise.
const FP32: &str = "--set=parallel.precision.param=fp32";

/// A folder with a text, and the device to train on; `None` without one.
fn folder() -> Option<(TempDir, String)> {
    let device = std::env::var("KILN_KERNEL_DEVICE").unwrap_or_default();
    if !["cuda", "vulkan"].contains(&device.as_str()) {
        eprintln!("skipped: KILN_KERNEL_DEVICE is neither vulkan nor cuda");
        return None;
    }
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "To be, or not to be, that is the question. ".repeat(60)).unwrap();
    Some((folder, device))
}

/// Whether to run what takes minutes.
fn every_layout() -> bool {
    std::env::var("KILN_ALL_LAYOUTS").as_deref() == Ok("1")
}

/// The training losses of a run in `out`.
fn losses(folder: &Path, args: &[&str], out: &str) -> Vec<f64> {
    let out_flag = format!("--out={out}");
    succeed(folder, &[args, &[&out_flag]].concat());
    values(&metrics(&folder.join(out)), "loss")
}

#[track_caller]
fn near(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let far = found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    println!("losses differ by {far:.1e} at most");
    assert!(far <= tolerance, "losses differ by {far}: {found:?} and {expected:?}");
}

/// The README's command, with its steps reduced to 20, and to 2 on emulated cards.
#[test]
fn the_readmes_command_has_the_cpus_losses() {
    let Some((folder, device)) = folder() else { return };
    let steps = if device == "cuda" { 2 } else { 20 };
    let steps_flag = format!("--steps={steps}");
    let command = ["--model=deepseek", "--gpus=4", &steps_flag, "--set=train.sample_tokens=0", FP32];
    let [found, cpu] =
        [&*device, "cpu"].map(|device| losses(folder.path(), &[&command[..], &["--device", device]].concat(), device));
    assert!(cpu.len() == steps && (steps < 20 || cpu[19] < cpu[0] - 0.3), "{cpu:?}");
    near(&found, &cpu, 1e-4);
}

/// Every kind of parallelism, with one card per rank if there are four (`KILN_EMULATED_CARDS=4`). `KILN_ALL_LAYOUTS=1`
/// runs all layouts, which takes minutes.
#[test]
fn layouts_have_the_cpus_losses() {
    let Some((folder, device)) = folder() else { return };
    let all = every_layout();
    let layouts: [(&[&str], &[&str], bool); 13] = [
        (TINY, &["pp=2", "tp=2"], true),
        (TINY_EXPERTS, &["ep=4"], true),
        (TINY_EXPERTS, &["cp=2", "tp=2"], all),
        (TINY_EXPERTS, &["tp=2", "ep=2"], all),
        (TINY_EXPERTS, &["pp=2", "ep=2"], all),
        (TINY_EXPERTS, &["strategy=block"], all),
        (TINY_EXPERTS, &["activation_checkpointing=full"], all),
        (TINY, &["strategy=ddp"], all),
        (TINY, &["strategy=zero1"], all),
        (TINY, &["strategy=shard_grad_op"], all),
        (TINY, &["strategy=hybrid_shard"], all),
        (TINY, &["pp=2", "schedule=zero_bubble"], all),
        (TINY, &["cp=2"], all),
    ];
    for (number, (model, layout, _)) in layouts.iter().enumerate().filter(|(_, (.., taken))| *taken) {
        let layout: Vec<String> = layout.iter().map(|setting| format!("--set=parallel.{setting}")).collect();
        let settings: Vec<&str> = layout.iter().map(String::as_str).collect();
        let args = [*model, &["--gpus=4", "--steps=4", FP32], &settings[..]].concat();
        let [found, cpu] = [&*device, "cpu"].map(|device| {
            let out = format!("{number}-{device}");
            losses(folder.path(), &[&args[..], &["--device", device]].concat(), &out)
        });
        println!("{settings:?}");
        near(&found, &cpu, 1e-4);
    }
}

/// Both models, in fp32, in bf16 if the device supports it, and in fp16 with its loss scale; on two ranks, and with
/// `KILN_ALL_LAYOUTS=1` also on one and four.
#[test]
fn both_models_train_in_every_dtype() {
    let Some((folder, device)) = folder() else { return };
    let bf16: &[_] = if device == "cuda" { &[("bf16", 1e-2)] } else { &[] };
    let ranks: &[usize] = if every_layout() { &[1, 2, 4] } else { &[2] };
    for (name, model) in [("gpt2", TINY), ("deepseek", TINY_EXPERTS)] {
        for (dtype, tolerance) in [&[("fp32", 1e-4), ("fp16", 1e-3)], bf16].concat() {
            for ranks in ranks {
                let (gpus, precision) = (format!("--gpus={ranks}"), format!("--set=parallel.precision.param={dtype}"));
                let told: &[&str] = if dtype == "bf16" { &[] } else { &[&precision] };
                // On an emulated card, measuring 16-bit products takes minutes, while another rank waits.
                let args = [model, &[&gpus, "--steps=10", "--set=comm.timeout_seconds=1800"], told].concat();
                let [found, cpu] = [&*device, "cpu"].map(|device| {
                    let out = format!("{name}-{dtype}-{ranks}-{device}");
                    losses(folder.path(), &[&args[..], &["--device", device]].concat(), &out)
                });
                println!("{name} in {dtype} on {ranks} ranks");
                near(&found, &cpu, tolerance);
            }
        }
    }
}

#[test]
fn bf16_is_refused_by_name_where_the_device_has_none() {
    let Some((folder, device)) = folder() else { return };
    if device != "vulkan" {
        eprintln!("skipped: bf16 is there on {device}");
        return;
    }
    let args = [TINY, &["--device=vulkan", "--set=parallel.precision.param=bf16", "--out=run"]].concat();
    let output = run(folder.path(), &args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !folder.path().join("run").exists(), "{stderr}");
    for part in ["--device vulkan", "bf16 (parallel.precision.param)", "fp32 and fp16"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

/// A run resumes a checkpoint from another device.
#[test]
fn checkpoints_go_from_device_to_device() {
    let Some((folder, device)) = folder() else { return };
    let device = &*device;
    let model = [TINY_EXPERTS, &["--gpus=2", "--steps=12", "--set=checkpoint.every=6", FP32]].concat();
    for (first, second) in [(device, "cpu"), ("cpu", device)] {
        let (run, onward) = (format!("on-{first}"), format!("from-{first}"));
        let whole = losses(folder.path(), &[&model[..], &["--device", first]].concat(), &run);
        let resume = ["--resume", &format!("{run}@6"), "--device", second];
        near(&losses(folder.path(), &resume, &onward), &whole[6..], 1e-4);
        let generate = ["generate", &run, "--prompt=To be", "--tokens=8", "--temperature=0", "--device"];
        let written = [first, second].map(|device| succeed(folder.path(), &[&generate[..], &[device]].concat()).0);
        assert_eq!(written[0], written[1]);
    }
}

/// Of four emulated cards: which one computes, and what a user reads where there is none, or too little memory.
#[test]
fn a_card_is_chosen_by_number_and_what_does_not_fit_is_refused() {
    let Some((folder, device)) = folder() else { return };
    if device != "cuda" || std::env::var("KILN_EMULATED_CARDS").as_deref() != Ok("4") {
        eprintln!("skipped: there are no four emulated cards");
        return;
    }
    let failure = |args: &[&str], memory: &str| {
        let mut command = program(folder.path(), &[TINY, args].concat());
        let output = command.env("KILN_EMULATED_MEMORY", memory).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{stderr}");
        stderr
    };
    let (_, stderr) =
        succeed(folder.path(), &[TINY, &["--gpus=2", "--steps=1", "--device=cuda:1", "--out=one"]].concat());
    assert!(stderr.contains("2 ranks share 1 device (cuda:1)"), "{stderr}");
    let absent = failure(&["--device=cuda:4", "--out=absent"], "2G");
    assert!(absent.contains("--device cuda:4: there are 4 devices, numbered from 0"), "{absent}");

    let refused = failure(&["--device=cuda", "--out=refused"], "64K");
    for part in ["of memory, and a device has", "GB per rank", "--force tries all the same"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let forced = failure(&["--device=cuda", "--out=forced", "--force"], "2M");
    for part in
        ["out of device memory", "The device has too little memory. What helps: a smaller train.micro_batch_size"]
    {
        assert!(forced.contains(part), "{part}: {forced}");
    }
}

#[test]
fn a_run_is_evaluated_on_the_device() {
    let Some((folder, device)) = folder() else { return };
    succeed(folder.path(), &[TINY_EXPERTS, &["--steps=2", "--device=cpu", "--out=run"]].concat());
    let losses = [&*device, "cpu"].map(|device| {
        let (report, _) = succeed(folder.path(), &["eval", "run", "--data=text.txt", "--json", "--device", device]);
        serde_json::from_str::<serde_json::Value>(&report).unwrap()["loss"].as_f64().unwrap()
    });
    near(&losses[..1], &losses[1..], 1e-4);
}

/// What the emulated card says of a run of this many steps: the allocations that are not freed, and how often the host
/// has waited. One such run at a time has a cache of measured kernels that no other test uses: a run that finds its cache
/// in use takes another one, possibly an empty one, and measures kernels again.
fn emulated(folder: &Path, args: &[&str], steps: usize) -> (Vec<String>, usize) {
    let (steps, profile) = (format!("--steps={steps}"), folder.join(format!("profile-{steps}")));
    let mut command = program(folder, &[args, &["--device=cuda", &steps, &format!("--out=run-{steps}")]].concat());
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    command.env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated"));
    let output = command.env("KILN_EMULATED_LEAKS", "1").env("KILN_EMULATED_PROFILE", &profile).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let held = stderr.lines().filter(|line| line.contains(" allocations of card ")).map(str::to_owned).collect();
    let profile = fs::read_to_string(profile).unwrap();
    let (_, waits) = profile.split_once("the host waited ").unwrap();
    (held, waits.split(' ').next().unwrap().parse().unwrap())
}

/// Collectives of two data ranks and messages between two stages.
#[cfg(feature = "nccl")]
#[test]
fn nccl_gives_the_cpus_losses() {
    use burn::tensor::{Device, DeviceType};

    let Some((folder, device)) = folder() else { return };
    if device != "cuda" || Device::enumerate(DeviceType::Cuda).into_iter().count() < 4 {
        eprintln!("skipped: there are no four CUDA cards");
        return;
    }
    let args = [TINY, &["--gpus=4", "--steps=4", FP32, "--set=parallel.pp=2", "--set=parallel.strategy=full_shard"]];
    let [by_nccl, cpu] =
        [["--device=cuda", "--set=comm.nccl=true"], ["--device=cpu", "--set=comm.nccl=false"]].map(|engine| {
            losses(folder.path(), &[&args.concat()[..], &engine].concat(), engine[0].trim_start_matches("--device="))
        });
    near(&by_nccl, &cpu, 1e-4);
}

/// Two processes with a card each. There is one order to add two numbers in, so NCCL's sums have the bits of MPI's.
#[cfg(all(feature = "nccl", feature = "mpi"))]
#[test]
fn processes_have_the_same_losses_by_nccl_and_by_mpi() {
    use burn::tensor::{Device, DeviceType};

    let Some((folder, device)) = folder() else { return };
    let cards = || Device::enumerate(DeviceType::Cuda).into_iter().count();
    if device != "cuda" || cards() < 2 {
        eprintln!("skipped: there are no two CUDA cards");
        return;
    }
    let [by_nccl, by_mpi] = [true, false].map(|nccl| {
        let (nccl, out) = (format!("--set=comm.nccl={nccl}"), format!("--out=nccl-{nccl}"));
        let program = program(folder.path(), &[TINY, &["--device=cuda", "--steps=4", FP32, &nccl, &out]].concat());
        let mut command = test_kit::mpirun(2);
        command.arg(program.get_program()).args(program.get_args()).current_dir(folder.path());
        let output = command.envs(program.get_envs().filter_map(|(key, value)| Some((key, value?)))).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        values(&metrics(&folder.path().join(&out["--out=".len()..])), "loss")
    });
    assert_eq!(by_nccl.len(), 4);
    assert_eq!(by_nccl, by_mpi);
}

/// Whether the cards are emulated; real ones neither count waits nor report what was not freed.
fn is_emulated(device: &str) -> bool {
    device == "cuda" && std::env::var_os("KILN_EMULATED_CARDS").is_some()
}

/// The memory that CubeCL keeps for each card when a run ends does not depend on its steps.
#[test]
fn the_memory_of_a_card_does_not_grow_with_the_steps() {
    let Some((folder, _)) = folder().filter(|(_, device)| is_emulated(device)) else { return };
    // The first run measures kernels.
    let [_, few, many] =
        [1, 6, 12].map(|steps| emulated(folder.path(), &[TINY_EXPERTS, &["--gpus=2"]].concat(), steps).0);
    assert_eq!(few.len(), 2, "a line for each card: {few:?}");
    assert_eq!(few, many);
}

/// The host waits once in a step, for the loss and the norm, and with experts a second time, for their loads.
#[test]
fn a_step_waits_for_the_card_once() {
    for (model, per_step) in [(TINY, 1), (TINY_EXPERTS, 2)] {
        let Some((folder, _)) = folder().filter(|(_, device)| is_emulated(device)) else { return };
        // The first run measures kernels.
        let [_, few, many] = [1, 6, 18].map(|steps| emulated(folder.path(), model, steps).1);
        let most = 12 * per_step + 2; // CubeCL frees memory now and then
        assert!((12..=most).contains(&(many - few)), "{} waits in 12 steps", many - few);
    }
}
