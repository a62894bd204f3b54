//! `train plan`: figures, files, and what is refused.

mod common;

use common::{run, succeed};
use serde_json::Value;
use std::fs;
use tempfile::tempdir;

fn figures(args: &[&str]) -> Value {
    let (json, _) = succeed(tempdir().unwrap().path(), &[&["plan", "--json"], args].concat());
    serde_json::from_str(&json).unwrap()
}

#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).unwrap_or_else(|| panic!("{path} in {value}")).as_f64().unwrap()
}

/// A pipeline waits for its stages, and with more micro-batches for a smaller part of the step. More devices need less
/// memory each.
#[test]
fn layouts_differ_as_they_should() {
    let of = |gpus: &str, batch: &str, pp: &str| {
        figures(&["--model=llama3-8b", "--gpus", gpus, "--batch-size", batch, "--set", &format!("parallel.pp={pp}")])
    };
    let bubble = |figures: &Value| number(figures, "/time/bubble") / number(figures, "/time/step");
    let (few, many) = (of("8", "16", "4"), of("8", "128", "4"));
    // (p - 1) / (m + p - 1) for equal stages: 3/11 and 3/67.
    assert!((0.2..0.4).contains(&bubble(&few)), "{few}");
    assert!((0.02..0.12).contains(&bubble(&many)), "{many}");
    let memory = |gpus| number(&of(gpus, "128", "1"), "/memory/most");
    assert!(memory("8") > 1.5 * memory("64"));
}

/// The timeline is written in both formats, for a rank of each stage.
#[test]
fn timelines_are_written() {
    let folder = tempdir().unwrap();
    let args = [
        "plan",
        "--model=gpt2",
        "--gpus=4",
        "--set=parallel.pp=2",
        "--cluster=cpu",
        "--trace=t.json",
        "--svg=t.svg",
        "--html=t.html",
    ];
    let (text, _) = succeed(folder.path(), &args);
    assert!(text.contains("tokens/s") && text.contains("memory of the ranks of a node"), "{text}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(named("rank 1, stage 0") && named("rank 3, stage 1"), "{trace}");
    assert!(events.iter().any(|event| event["ph"] == "X" && event["name"] == "F0.0"));
    let svg = fs::read_to_string(folder.path().join("t.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("rank 3, stage 1"));
    let page = fs::read_to_string(folder.path().join("t.html")).unwrap();
    for part in ["rank 3, stage 1", "activations: at most", "8 ranks: ", "tokens/s"] {
        assert!(page.contains(part), "no {part} in {page}");
    }
}

/// What the search finds is planned again with the settings that it gives, and takes as long.
#[test]
fn found_layouts_are_those_that_were_simulated() {
    let args = ["--model=deepseek-7b", "--gpus=8", "--batch-size=64", "--cluster=h100-sxm"];
    let found = figures(&[&args[..], &["--find"]].concat());
    let best = &found["best"].as_array().unwrap()[0];
    // The file that it prints is a configuration of the same run.
    let folder = tempdir().unwrap();
    let (text, _) = succeed(folder.path(), &[&["plan"], &args[..], &["--find"]].concat());
    fs::write(folder.path().join("found.yaml"), text.split_once("# train --config FILE\n").unwrap().1).unwrap();
    let (text, _) = succeed(folder.path(), &["plan", "--config=found.yaml", "--cluster=h100-sxm", "--json"]);
    let of_file: Value = serde_json::from_str(&text).unwrap();
    let again = planned_with(&args, &best["set"]);
    let (step, planned) = (number(best, "/time/step"), number(&again, "/time/step"));
    assert!((step / planned - 1.0).abs() < 0.01, "{step} and {planned}: {best}");
    assert_eq!(best["memory"], again["memory"]);
    assert_eq!(of_file, again);
    let kept = ["--set=parallel.tp=2", "--set=parallel.dp_replicate=2"];
    let found = figures(&[&args[..], &["--find"], &kept].concat());
    let best = found["best"].as_array().unwrap();
    let is_kept = |set: &Value| set["parallel.tp"] == 2 && set["parallel.dp_replicate"] == 2;
    assert!(best.iter().all(|layout| is_kept(&layout["set"])), "{found}");
    let again = planned_with(&args, &best[0]["set"]);
    assert_eq!(best[0]["memory"], again["memory"]);
    assert!((number(&best[0], "/time/step") / number(&again, "/time/step") - 1.0).abs() < 0.01, "{again}");
}

/// The figures of a plan with settings that a search has found.
fn planned_with(args: &[&str], set: &Value) -> Value {
    let setting = |(key, value): (&String, &Value)| format!("--set={key}={}", value.to_string().trim_matches('"'));
    let settings: Vec<String> = set.as_object().unwrap().iter().map(setting).collect();
    figures(&[args, &settings.iter().map(String::as_str).collect::<Vec<_>>()].concat())
}

/// What is offloaded is in the memory of a node's CPUs, on whatever machine that is planned; both memories count.
#[test]
fn offloaded_shards_need_the_memory_of_the_cpus() {
    let args = ["--model=llama3-8b", "--gpus=8", "--set=train.micro_batch_size=1"];
    let offload = &["--set=parallel.cpu_offload=true"][..];
    let (kept, offloaded) = (figures(&args), figures(&[&args[..], offload].concat()));
    assert!(kept["memory"]["host"].is_null());
    assert!(number(&offloaded, "/memory/most") < number(&kept, "/memory/most"));
    // 16 bytes of each of 8 billion parameters, and 12 of a checkpoint.
    assert!(number(&offloaded, "/memory/host") > 28.0 * 8e9, "{offloaded}");
    assert_eq!(offloaded["memory"]["fits"], true);
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("small.yaml"), "base: h100-sxm\nhost_memory: 64e9\n").unwrap();
    let plan = |more: &str| run(folder.path(), &[&["plan", "--cluster=small.yaml", more], &args[..], offload].concat());
    let text = String::from_utf8(plan("--set=train.seed=1").stdout).unwrap();
    for part in ["memory of a node's CPUs: ", "of 64.0 GB", "This does not fit", "What would help"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let refused = String::from_utf8(plan("--find").stderr).unwrap();
    assert!(refused.contains("of a node's CPU memory, and a node has 64.0 GB"), "{refused}");
    let (printed, _) = succeed(folder.path(), &["plan", "--cluster=small.yaml", "--print-cluster"]);
    assert!(printed.contains("host_memory: 64000000000") && printed.contains("name: h100-sxm"), "{printed}");
}

/// A run receives the bytes that are planned for it, and its timeline has the operations that are planned for each rank.
#[test]
fn a_run_is_compared_with_its_plan() {
    let (folder, data) = (tempdir().unwrap(), test_kit::text_folder(300));
    let data = format!("--data={}", data.path().join("text.txt").display());
    let layout = ["--model=gpt2", "--gpus=4", "--set=parallel.pp=2"];
    let few = ["--steps=5", "--quiet", "--out=run", "--set=train.sample_tokens=0", "--set=metrics.profile_steps=2"];
    succeed(folder.path(), &[&layout[..], &few, &["--device=cpu", &data]].concat());
    let (text, _) = succeed(folder.path(), &["plan", "--run=run", "--cluster=cpu"]);
    for name in ["all_gather", "reduce_scatter", "recv"] {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}, received")))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(row.trim_end().ends_with(" 0%"), "{row}");
    }
    succeed(folder.path(), &["report", "run"]);
    let page = fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(page.contains("recv, received in a step"), "the report has what was planned");
    let other = run(folder.path(), &["plan", "--run=run"]);
    assert!(
        String::from_utf8(other.stderr).unwrap().contains("the run computed on the CPU, and cluster h100-sxm has GPUs")
    );

    let (text, _) = succeed(folder.path(), &["profile", "run"]);
    assert!(text.contains("step 4 of 4 ranks") && text.contains("waiting for stages"), "{text}");
    let names = |path: &str| -> Vec<String> {
        let trace: Value = serde_json::from_str(&fs::read_to_string(folder.path().join(path)).unwrap()).unwrap();
        let is_run =
            |event: &&Value| event["ph"] == "X" && event["name"].as_str().is_some_and(|name| name.contains('.'));
        let of_rank = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == 1).filter(is_run);
        of_rank.map(|event| event["name"].as_str().unwrap().rsplit(": ").next().unwrap().to_string()).collect()
    };
    let settings = [&["plan"], &layout[..], &["--cluster=cpu", "--trace=plan.json", &data]].concat();
    succeed(folder.path(), &settings);
    let runs =
        |names: Vec<String>| -> Vec<String> { names.into_iter().filter(|name| name.starts_with(['F', 'B'])).collect() };
    // The plan has a rank of each stage, the profile all ranks: its rank 1 is the last of stage 0.
    let planned = fs::read_to_string(folder.path().join("plan.json")).unwrap();
    assert!(planned.contains("rank 1, stage 0"), "{planned}");
    let trace: Value = serde_json::from_str(&planned).unwrap();
    let of_stage_0 =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["pid"] == 0 && event["ph"] == "X");
    let of_stage_0 = of_stage_0.map(|event| event["name"].as_str().unwrap().to_string()).collect();
    let (planned, measured) = (runs(of_stage_0), runs(names("run/profile/trace.json")));
    assert!(!planned.is_empty() && planned == measured, "{planned:?}, {measured:?}");
    // Files of ranks that there are no more, and steps that not all ranks have timed.
    let of_rank = |rank: usize| folder.path().join(format!("run/profile/rank-{rank}.json"));
    fs::write(of_rank(7), r#"{"rank": 7, "stage": 1, "steps": []}"#).unwrap();
    let mut one: Value = serde_json::from_str(&fs::read_to_string(of_rank(2)).unwrap()).unwrap();
    one["steps"].as_array_mut().unwrap().pop();
    fs::write(of_rank(2), one.to_string()).unwrap();
    let (text, _) = succeed(folder.path(), &["profile", "run"]);
    assert!(text.contains("step 3 of 4 ranks"), "{text}");
    let refused = |args: &[&str], message: &str| {
        let output = run(folder.path(), &[&["profile", "run"], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(message), "{args:?}: {stderr}");
    };
    refused(&["--step=4"], "not all ranks have timed step 4: give one of 3\n");
    refused(&["--trace=x", "--svg=./x"], "--trace and --svg would both write ./x");
    fs::create_dir(folder.path().join("empty")).unwrap();
    for (name, message) in [("absent", "there is no folder absent"), ("empty", "empty has no profile: run it with")] {
        let output = run(folder.path(), &["profile", name]);
        assert!(String::from_utf8(output.stderr).unwrap().contains(message));
    }
}

/// A sweep has a row for each value, that of a plan with this value, and tells which values cannot be.
#[test]
fn a_sweep_is_a_plan_for_each_value() {
    let sweep = figures(&["--model=llama3-8b", "--sweep=parallel.gpus=8,16,24576"]);
    let rows = sweep.as_array().unwrap();
    assert_eq!(rows[0]["plan"], figures(&["--model=llama3-8b", "--gpus=8"]));
    assert_eq!(rows[1]["plan"], figures(&["--model=llama3-8b", "--gpus=16"]));
    assert!(rows[2]["error"].as_str().is_some_and(|error| error.contains("24576")), "{sweep}");
    let sweep = figures(&["--model=llama3-8b", "--gpus=8", "--sweep=train.seq_len=1024,many"]);
    let error = sweep[1]["error"].as_str().unwrap();
    assert!(error.contains("`train.seq_len` is \"many\" in --sweep: give a whole number"), "{error}");
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("mine.yaml"), "name: mine\nnodes: 0\n").unwrap();
    for (args, message) in [
        (&["--model=gpt2", "--cluster=h100"][..], "there is no cluster `h100`: give one of a100-40"),
        (&["--model=gpt2", "--cluster=none.yaml"], "none.yaml: No such file"),
        (&["--model=gpt2", "--cluster=mine.yaml"], "mine.yaml: missing field"),
        (
            &["--model=gpt2", "--gpus=4096", "--batch-size=4096", "--cluster=cpu"],
            "the run has 4096 ranks, and cluster cpu has room for 64",
        ),
        (&["--model=gpt2", "--gpus=4", "--set=parallel.pp=3"], "parallel.pp"),
        (&["--model=deepseek-v3", "--gpus=8", "--find"], "the smallest needs"),
        (&["--model=gpt2", "--batch-size=1000000", "--set=train.micro_batch_size=1"], "at most 32768"),
        (&["--run=x", "--model=gpt2"], "leave the options of training out"),
        (&["--measure=x.yaml", "--model=gpt2"], "leave the other options of training out"),
        (&["--measure=absent/x.yaml"], "there is no folder absent"),
        (&["--model=gpt2", "--out=x"], "plan starts no run, so --out has no effect"),
        (&["--model=gpt2", "--cluster=cpu", "--set=parallel.cpu_offload=true"], "the ranks compute on the CPU"),
        (&["--model=gpt2", "--cluster=."], ".: give the path of a file that ends with .yaml or .yml"),
        (&["--measure=x"], "give the file a name that ends with .yaml"),
        (&["--measure=mine.yaml"], "mine.yaml exists and is no cluster"),
        (&["--model=gpt2", "--sweep=parallel.pp"], "give a key and its values"),
        (&["--model=gpt2", "--sweep=parallel.pq=1,2"], "unknown key `parallel.pq` in --sweep"),
        (&["--model=gpt2", "--gpus=4", "--sweep=parallel.pp=3,8"], "parallel.pp=8: parallel.pp is 8"),
        (&["--model=gpt2", "--sweep=parallel.pp=1,2", "--sweep=parallel.tp=1,2"], "--sweep parallel.pp and --sweep"),
        (&["--model=gpt2", "--sweep=train.seq_len=64,128", "--seq-len=64"], "train.seq_len and --seq-len set the same"),
        (&["--model=gpt2", "--sweep=optim.lr=1e-3,1e-4", "--lr=1e-3"], "--sweep optim.lr and --lr set the same key"),
        (&["--model=gpt2", "--sweep=parallel.pp=1,2", "--set=parallel={pp: 2}"], "parallel.pp and --set set the same"),
        (&["--model=gpt2", "--svg=t.svg", "--html=./t.svg"], "--svg and --html would both write ./t.svg"),
        (&["--run=absent"], "absent/config.yaml"),
        (&["--model=gpt2", "--svg=absent/t.svg"], "there is no folder absent"),
    ] {
        let output = run(folder.path(), &[&["plan"], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(message), "{args:?}: {stderr}");
    }
}
