//! What the program prints and the files it leaves.

mod common;

use common::{TINY, folder_with_text, metrics, program, succeed, values, wait_for_metrics};
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use test_kit::{assert_close, reference, stored_floats, stored_ints};
use train::config::{Config, Source};

#[test]
fn logits_are_those_of_transformers() {
    for name in ["gpt2-a", "deepseek-v3-yarn"] {
        let folder = tempfile::tempdir().unwrap();
        let (model, out) = (reference(name), folder.path().join("logits.safetensors"));
        let bytes = fs::read(model.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let (tokens, shape) = stored_ints(&tensors, "tokens");
        let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let sequences: Vec<String> = ids.chunks(shape[1]).map(|ids| ids.join(",")).collect();

        let args = [
            "logits",
            "--hf",
            model.to_str().unwrap(),
            "--tokens",
            &sequences.join(";"),
            "--out",
            "logits.safetensors",
        ];
        let (stdout, _) = succeed(folder.path(), &args);
        let shape = tensors.tensor("logits").unwrap().shape().to_vec();
        assert_eq!(stdout, format!("wrote logits {shape:?} to logits.safetensors\n"));
        let written = fs::read(&out).unwrap();
        let written = SafeTensors::deserialize(&written).unwrap();
        assert_eq!(written.tensor("logits").unwrap().shape(), shape);
        assert_close(name, &stored_floats(&written, "logits"), &stored_floats(&tensors, "logits"), 1e-4);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the file is left");
    }
}

/// Either all ranks or none save a checkpoint for the best validation.
#[test]
fn ranks_to_which_no_validation_window_falls_agree_with_the_others() {
    let folder = folder_with_text();
    let train = [
        "--gpus=4",
        "--steps=6",
        "--out=run",
        "--set=train.seq_len=100",
        "--set=model.n_positions=100",
        "--set=train.val_every=1",
        "--set=checkpoint.every=4",
    ];
    let (_, stderr) = succeed(folder.path(), &[TINY, &train].concat());
    assert!(stderr.contains("228 for validation"), "two windows for four ranks: {stderr}");
    assert_eq!(values(&metrics(&folder.path().join("run")), "val_loss").len(), 6);
    assert!(folder.path().join("run/checkpoints/step-6").is_dir());
}

#[test]
fn a_run_tells_what_it_does_and_its_folder_reproduces_it_bit_for_bit() {
    let folder = folder_with_text();
    let train = [
        "--gpus=2",
        "--steps=6",
        "--set=train.val_every=4",
        "--set=data.tokenizer=char",
        "--set=train.sample_tokens=30",
    ];
    let (stdout, stderr) = succeed(folder.path(), &[TINY, &train, &["--out=first"]].concat());
    for part in [
        "│ model   gpt2 (2 layers of width 16): ",
        "│ data    2.3K tokens of text.txt, 228 for validation; vocabulary 28 ",
        "│ run     6 steps of 4 x 16 tokens: 384 tokens, 0.19 epochs ",
        "│ layout  2 ranks share 1 device (cpu), full_shard ",
        "│ memory  about 0.0",
        "│ folder  first ",
        "\nstep 6/6  loss ",
        "rank 0, MB at most: ",
    ] {
        assert!(stderr.contains(part), "no `{part}` in:\n{stderr}");
    }
    assert!(!stderr.contains("MB received"), "that is for the log:\n{stderr}");
    let log = fs::read_to_string(folder.path().join("first/logs/rank-0.txt")).unwrap();
    assert!(log.contains("rank 0, MB received: all_gather "), "{log}");
    let sample = stdout
        .split_once("--- sample ---\n")
        .and_then(|(_, rest)| rest.split_once("\n--------------\n"))
        .expect("a sample")
        .0;
    assert!(
        sample.chars().count() == 30 && sample.chars().all(|c| "The five boxing wizards jump quickly.".contains(c)),
        "{sample}"
    );

    let first = metrics(&folder.path().join("first"));
    let keys = |line: &serde_json::Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let step = "aux_loss checkpoint_seconds data_wait_seconds elapsed_seconds grad_norm grad_norm_z loss loss_z lr mfu skipped step \
                step_seconds tflops tokens tokens_per_second";
    let kinds: Vec<String> = first.iter().map(keys).collect();
    let process = "bytes_per_token command cores cpu data device global_batch_size host layout micro_batch_size parameters ranks seq_len started step \
                   strategy train_tokens val_tokens version";
    let (usage, validation, sample_of, event) = ("memory step traffic", "step val_loss", "sample step", "event step");
    // The time at which a checkpoint completes varies.
    let (events, rest): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|kind| kind == event);
    assert_eq!(events.len(), 2, "the best validation's and the last step's checkpoint");
    assert_eq!(rest, [process, step, usage, step, step, step, validation, step, step, usage, validation, sample_of]);
    assert_eq!(values(&first, "tokens"), [64.0, 128.0, 192.0, 256.0, 320.0, 384.0]);
    assert!(stdout.starts_with(&format!(
        "validation loss {:.4} after 6 steps; metrics are in first\n",
        values(&first, "val_loss")[1]
    )));

    let (again, _) = succeed(folder.path(), &["--config=first/config.yaml", "--out=second"]);
    let second = metrics(&folder.path().join("second"));
    for key in ["loss", "val_loss", "grad_norm", "lr"] {
        assert_eq!(values(&first, key), values(&second, key), "{key}");
    }
    assert_eq!(stdout.replace("first", "second"), again, "the sample is the same too");
    let config = |run: &str| fs::read_to_string(folder.path().join(run).join("config.yaml")).unwrap();
    assert_eq!(config("first"), config("second"));
}

#[test]
fn every_model_trains_on_bytes_and_on_characters() {
    let deepseek: &[&str] = &[
        "--model=deepseek",
        "--data=text.txt",
        "--set=model.hidden_size=16",
        "--set=model.num_hidden_layers=2",
        "--set=moe.moe_intermediate_size=8",
        "--set=train.seq_len=16",
        "--set=train.global_batch_size=4",
        "--set=train.sample_tokens=5",
        "--set=train.val_batches=1",
    ];
    for model in [TINY, deepseek] {
        for (tokenizer, vocab_size) in [("byte", 256.0f64), ("char", 28.0)] {
            let folder = folder_with_text();
            let tokenizer = format!("--set=data.tokenizer={tokenizer}");
            succeed(folder.path(), &[model, &[&tokenizer, "--steps=30", "--out=run"]].concat());
            let metrics = metrics(&folder.path().join("run"));
            let (losses, val) = (values(&metrics, "loss"), values(&metrics, "val_loss"));
            assert!((losses[0] - vocab_size.ln()).abs() < 0.2, "{} starts at {}", model[0], losses[0]);
            assert!(losses[29] < losses[0] - 0.1 && val[0] < losses[0] - 0.1, "{}: {losses:?} {val:?}", model[0]);
        }
    }
}

#[test]
fn flags_count_more_than_set_and_the_lowest_learning_rate_follows_the_highest() {
    let folder = tempfile::tempdir().unwrap();
    let config = |args: &[&str]| {
        let (yaml, _) = succeed(folder.path(), &[&["config"], args].concat());
        fs::write(folder.path().join("a.yaml"), &yaml).unwrap();
        assert_eq!(succeed(folder.path(), &["config", "--config=a.yaml"]).0, yaml);
        Config::load(Source::File(&folder.path().join("a.yaml")), &[]).unwrap()
    };
    assert_eq!(config(&[]), Config::default());
    let given = ["--model=deepseek", "--set=train.steps=5", "--set=optim.lr=1", "--set=parallel.strategy=zero1"];
    let flags =
        ["--steps=1e3", "--lr=5e-5", "--batch-size=64", "--seq-len=32", "--strategy=ddp", "--gpus=2", "--seed=1"];
    let Config { train, optim, parallel, .. } = config(&[&given[..], &flags].concat());
    assert_eq!((train.steps, train.global_batch_size, train.seq_len, train.seed), (1000, 64, 32, 1));
    assert_eq!((parallel.strategy.name(), parallel.gpus), ("ddp", 2));
    // The preset's minimum is 1e-4, for the lr of 1 that --set gives.
    assert_eq!((optim.lr, optim.min_lr), (5e-5, 5e-9));
    for (set, min_lr) in [("--set=optim.beta1=0.5", 5e-6), ("--set=optim.min_lr=1e-6", 1e-6)] {
        assert_eq!(config(&["--model=gpt2", "--lr=5e-5", set]).optim.min_lr, min_lr);
    }
}

#[test]
fn presets_are_listed_with_their_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let (table, _) = succeed(folder.path(), &["presets"]);
    let (help, _) = succeed(folder.path(), &["--help"]);
    for (name, parameters) in [("gpt2-124m", "124.4M"), ("deepseek", "1.9M"), ("deepseek-v3", "671.0B")] {
        assert!(
            table.lines().any(|line| line.split_whitespace().take(2).eq([name, parameters])),
            "{name} in:\n{table}"
        );
        assert!(help.contains(&format!("  {name} ")), "{name} in:\n{help}");
    }
}

#[test]
fn numbers_too_large_for_the_data_mean_all_of_it() {
    let folder = folder_with_text();
    let largest = ["--set=train.val_batches=18446744073709551615", "--set=optim.warmup_steps=18446744073709551615"];
    succeed(folder.path(), &[TINY, &largest, &["--steps=1", "--out=largest"]].concat());
    succeed(folder.path(), &[TINY, &["--set=train.val_batches=0", "--steps=1", "--out=all"]].concat());
    let val_loss = |run: &str| values(&metrics(&folder.path().join(run)), "val_loss")[0];
    assert!((val_loss("largest") - val_loss("all")).abs() < 0.05, "the same but for a step of another learning rate");
}

#[test]
fn runs_without_a_folder_get_one_each_even_when_they_start_together() {
    let folder = folder_with_text();
    let start = |_| program(folder.path(), TINY).arg("--steps=2").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let runs: Vec<Child> = (0..6).map(|run| start(run).unwrap()).collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    let names = fs::read_dir(folder.path().join("runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    assert_eq!(Vec::from_iter(&names), ["gpt2-001", "gpt2-002", "gpt2-003", "gpt2-004", "gpt2-005", "gpt2-006"]);
    for name in names {
        assert_eq!(values(&metrics(&folder.path().join("runs").join(name)), "tokens"), [64.0, 128.0]);
    }
}

#[test]
fn block_says_which_rank_computes_what_and_the_log_what_it_takes() {
    let folder = folder_with_text();
    let block = ["--gpus=2", "--steps=3", "--set=parallel.strategy=block", "--set=metrics.every=2", "--out=run"];
    let (_, stderr) = succeed(folder.path(), &[TINY, &block].concat());
    for part in
        ["rank 0: embedding to blocks.0 (", "rank 1: blocks.1 to head (", "parameters 0.", "process group", "dp_shard "]
    {
        assert!(stderr.contains(part), "no `{part}` in:\n{stderr}");
    }
    let metrics = metrics(&folder.path().join("run"));
    let over: Vec<_> = metrics[0]["layout"].as_array().unwrap().iter().map(|group| &group["over"]).collect();
    assert_eq!(over, ["dp_shard", "world", "all"]);
    let usages: Vec<_> = metrics.iter().filter(|line| line.get("memory").is_some()).collect();
    assert_eq!(usages.len(), 3, "after the first step, every second, and the last");
    for usage in usages {
        let bytes = |category: &str, when: &str| usage["memory"][category][when].as_u64().unwrap();
        assert!(bytes("gathered", "at_rest") == 0 && bytes("gathered", "peak") > 0);
        assert_eq!(bytes("optimizer", "at_rest"), 2 * bytes("parameters", "at_rest"));
        assert!(usage["traffic"]["gather"]["calls"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_prints() {
    let folder = folder_with_text();
    let args = [TINY, &["--steps=40", "--out=run"]].concat();
    let mut run = program(folder.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((run.stdout.take(), run.stderr.take()));
    assert!(run.wait().unwrap().success());
    assert_eq!(values(&metrics(&folder.path().join("run")), "loss").len(), 40);
}

#[test]
fn an_interrupted_run_ends_after_its_step_with_whole_lines_of_metrics() {
    let folder = folder_with_text();
    let mut run = start(folder.path(), &["--steps=1000000", "--gpus=2"]);
    wait_for_lines(&mut run, folder.path(), 3);
    let status = send("-INT", &mut run);
    assert_eq!(status.code(), Some(130));
    let metrics = metrics(&folder.path().join("run"));
    let steps = values(&metrics, "loss").len();
    assert!(steps > 0 && values(&metrics, "val_loss").is_empty());
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut run.stdout.take().unwrap(), &mut printed).unwrap();
    assert_eq!(printed, format!("stopped after {steps} steps; metrics are in run\n"));
}

#[test]
fn what_ends_a_job_or_a_terminal_is_the_first_ctrl_c_and_nohup_still_means_to_go_on() {
    let folder = folder_with_text();
    for signal in ["-TERM", "-HUP"] {
        let _ = fs::remove_dir_all(folder.path().join("run"));
        let mut run = start(folder.path(), &["--steps=1000000", "--gpus=2", "--quiet"]);
        wait_for_lines(&mut run, folder.path(), 3);
        assert_eq!(send(signal, &mut run).code(), Some(130), "{signal}");
        let mut printed = String::new();
        std::io::Read::read_to_string(&mut run.stdout.take().unwrap(), &mut printed).unwrap();
        assert!(printed.contains("; resume with `") && printed.ends_with(" --resume run`\n"), "{signal}: {printed}");
        let steps = values(&metrics(&folder.path().join("run")), "loss").len();
        assert!(folder.path().join(format!("run/checkpoints/step-{steps}/index.json")).is_file(), "{signal}");
    }
    let _ = fs::remove_dir_all(folder.path().join("run"));
    let train = program(folder.path(), &[TINY, &["--steps=1000000", "--out=run"]].concat());
    let mut nohup = Command::new("nohup");
    nohup.arg(train.get_program()).args(train.get_args()).current_dir(folder.path());
    train.get_envs().for_each(|(name, value)| _ = value.map(|value| nohup.env(name, value)));
    let mut run = nohup.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_lines(&mut run, folder.path(), 3);
    assert!(Command::new("kill").args(["-HUP", &run.id().to_string()]).status().unwrap().success());
    let lines = metrics(&folder.path().join("run")).len();
    wait_for_lines(&mut run, folder.path(), lines + 200);
    assert_eq!(send("-TERM", &mut run).code(), Some(130));
}

#[test]
fn a_pipeline_ends_with_the_model_of_one_rank() {
    let folder = folder_with_text();
    let sample = |args: &[&str]| {
        let out = format!("--out={}", args.join("").replace(['=', '-', '.'], ""));
        let (said, _) =
            succeed(folder.path(), &[TINY, &["--steps=3", "--set=train.sample_tokens=30", &out], args].concat());
        said.split("--- sample ---").nth(1).expect(&said).to_string()
    };
    let one = sample(&["--gpus=1"]);
    assert_eq!(sample(&["--gpus=4", "--set=parallel.pp=4"]), one);
    assert_eq!(sample(&["--gpus=4", "--set=parallel.pp=2", "--set=parallel.strategy=zero1"]), one);
}

#[test]
fn a_ranks_log_tells_its_own_figures() {
    let folder = folder_with_text();
    succeed(folder.path(), &[TINY, &["--gpus=2", "--steps=1", "--out=run"]].concat());
    let log = fs::read_to_string(folder.path().join("run/logs/rank-1.txt")).unwrap();
    assert!(log.contains("rank 1, MB at most: ") && !log.contains("rank 0"), "{log}");
}

#[test]
fn above_16_ranks_only_rank_0_logs_each_step() {
    let folder = folder_with_text();
    let run = |ranks: &str, more: &[&str]| {
        let args = [ranks, "--steps=1", "--out=run", "--set=train.global_batch_size=17", "--set=checkpoint.keep=0"];
        succeed(folder.path(), &[TINY, &args, more].concat());
        let logs = fs::read_dir(folder.path().join("run/logs")).unwrap().count();
        let first = fs::read_to_string(folder.path().join("run/logs/rank-0.txt")).unwrap();
        assert!(first.contains("step 1 loss "), "{first}");
        fs::remove_dir_all(folder.path().join("run")).unwrap();
        logs
    };
    assert_eq!(run("--gpus=16", &["--set=train.global_batch_size=16"]), 16);
    assert_eq!(run("--gpus=17", &[]), 1);
    assert_eq!(run("--gpus=17", &["--set=metrics.all_logs=true"]), 17);
}

#[test]
fn an_interrupted_validation_ends_too() {
    let folder = folder_with_text();
    // A validation on all of a long text, in windows of one sequence, takes minutes.
    fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(200_000)).unwrap();
    let mut run = start(folder.path(), &["--steps=1", "--set=train.val_batches=0", "--set=train.global_batch_size=1"]);
    wait_for_lines(&mut run, folder.path(), 1);
    let status = send("-INT", &mut run);
    assert_eq!(status.code(), Some(130));
    assert!(values(&metrics(&folder.path().join("run")), "val_loss").is_empty());
}

/// Starts a run in the background, in the folder `run`, with the default SIGHUP handling of a terminal's programs, even
/// if the tests themselves run under `nohup`.
fn start(folder: &Path, args: &[&str]) -> Child {
    use std::os::unix::process::CommandExt;
    let args = [TINY, args, &["--out=run"]].concat();
    let mut command = program(folder, &args);
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        })
    };
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait_for_lines(child: &mut Child, folder: &Path, lines: usize) {
    wait_for_metrics(child, &folder.join("run"), |text| text.lines().count() >= lines);
}

/// Sends a signal (`-INT` is what Ctrl-C sends) and waits for the end.
fn send(signal: &str, run: &mut Child) -> ExitStatus {
    let sent = Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let started = Instant::now();
    loop {
        if let Some(status) = run.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > Duration::from_secs(300) {
            run.kill().unwrap();
            panic!("it goes on");
        }
        sleep(Duration::from_millis(5));
    }
}
