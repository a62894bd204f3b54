//! Tests of the page written for run folders: what it contains, what it must not contain, and what is refused.

use proptest::prelude::*;
use report::{ReportError, write};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CONFIG: &str = "model:\n  type: gpt2\n  n_layer: 2\ntrain:\n  steps: 3\nparallel:\n  gpus: 2\n";

const METRICS: &str = r#"{"parameters":858900}
{"step":1,"loss":5.5,"aux_loss":0.0,"lr":0.001,"grad_norm":9.0,"skipped":false,"tokens":4096,"tokens_per_second":2000.0,"step_seconds":2.0,"data_wait_seconds":0.2,"tflops":1.5,"mfu":0.4,"loss_z":null,"grad_norm_z":null,"checkpoint_seconds":0,"elapsed_seconds":2.0}
{"step":1,"memory":{"activations":{"at_rest":0,"peak":100},"parameters":{"at_rest":40,"peak":40}},"traffic":{"all_gather":{"calls":28,"bytes":1000,"seconds":0.5}},"device":{"in_use":7,"reserved":9}}
{"step":1,"experts":[{"layer":0,"assigned":[1.0,3.0],"max_ratio":1.5,"cv":0.5,"dropped":0.25,"gate_mass":[0.5,1.5]}]}
{"step":2,"loss":4.5,"aux_loss":0.0,"lr":0.002,"grad_norm":null,"skipped":true,"tokens":8192,"tokens_per_second":4000.0,"step_seconds":1.0,"data_wait_seconds":0.1,"tflops":3.0,"mfu":null,"loss_z":0.1,"grad_norm_z":null,"checkpoint_seconds":0.25,"elapsed_seconds":3.25}
{"step":2,"event":"saved runs/gpt2-001/checkpoints/step-2"}
{"step":3,"loss":4.0,"aux_loss":0.0,"lr":0.003,"grad_norm":20.0,"skipped":false,"tokens":12288,"tokens_per_second":3000.0,"step_seconds":1.0,"data_wait_seconds":0.1,"tflops":3.0,"mfu":0.5,"loss_z":-4.5,"grad_norm_z":12.5,"checkpoint_seconds":0,"elapsed_seconds":4.25}
{"step":3,"val_loss":4.25}
{"step":3,"sample":"fn main"}
{"step":3,"a line of":"another kind"}
"#;

fn run(folder: &TempDir, name: &str, config: &str, metrics: impl AsRef<[u8]>) -> PathBuf {
    let run = folder.path().join(name);
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("config.yaml"), config).unwrap();
    fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    run
}

/// The JSON that the page's script reads.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn page(runs: &[PathBuf], folder: &TempDir) -> String {
    let out = folder.path().join("page.html");
    write(runs, &out).unwrap();
    fs::read_to_string(out).unwrap()
}

#[test]
fn the_page_holds_what_the_lines_say() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder, "gpt2-001", CONFIG, METRICS);
    for name in ["step-10", "step-2", "step-3.tmp", "other"] {
        fs::create_dir_all(run.join("checkpoints").join(name)).unwrap();
    }
    let data = &data(&page(&[run], &folder))["runs"][0];
    let expected = serde_json::json!({
        "name": "gpt2-001", "verdict": {"kind": "early", "title": "Too early to tell", "why": "3 steps are too few; a verdict needs 20", "state": "finished"},
        "model": "gpt2, 2 layers", "parameters": 858900, "step": 3, "steps": 3, "tokens": 12288,
        "seconds": 4.25, "loss": 4, "val_loss": 4.25, "best_val": [3, 4.25],
        "tokens_per_second": 3000, "flops": 3_000_000_000_000u64, "mfu": 0.45, "data_wait": 0.1,
        "skipped": 1, "saving": 0.25, "saved": 2, "checkpoints": ["step-2", "step-10"], "notes": [], "samples": [[3, "fn main"]],
        "axis": {"step": [1, 2, 3], "tokens": [4096, 8192, 12288], "seconds": [2, 3.25, 4.25]},
        "spikes": {"loss": [], "grad_norm": [{"step": 3, "value": 20, "z": 12.5}]},
        "memory": [["activations", 0, 100], ["parameters", 40, 40]], "device": [7, 9],
        "traffic": [["all_gather", 28, 1000, 0.5]],
        "experts": [{"layer": 0, "step": [1], "load": [[0.5], [1.5]], "cv": [0.5], "max_ratio": [1.5], "dropped": [0.25]}],
        "config": [["model.type", "gpt2"], ["model.n_layer", "2"], ["train.steps", "3"], ["parallel.gpus", "2"]],
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&data[key], value, "{key}");
    }
    let marks = data["marks"].as_array().unwrap().iter().map(|mark| (mark["step"].as_u64(), mark["kind"].as_str()));
    assert_eq!(marks.collect::<Vec<_>>(), [(Some(2), Some("save")), (Some(2), Some("skip"))]);
    assert_eq!(data["marks"][0]["text"], "saved step-2");
    assert_eq!(data["setups"].as_array().unwrap().len(), 1);
    assert_eq!((&data["setups"][0]["ranks"], &data["setups"][0]["data"]), (&2.into(), &Value::Null));
    assert_eq!(data["series"]["loss"], serde_json::json!({"step": [1, 2, 3], "value": [5.5, 4.5, 4]}));
    assert_eq!(data["series"]["grad_norm"]["value"], serde_json::json!([9, null, 20]));
    assert_eq!(data["series"]["mfu"]["value"], serde_json::json!([40, null, 50]));
    assert_eq!(data["series"]["val_loss"], serde_json::json!({"step": [3], "value": [4.25]}));
    assert_eq!(data["series"].get("aux_loss"), None);
    assert_eq!(data["val_losses"], serde_json::json!({}));
}

#[test]
fn each_set_to_validate_on_has_its_losses() {
    let folder = tempfile::tempdir().unwrap();
    let line = |step: u64, prose: u64| {
        format!("{{\"step\":{step},\"val_loss\":3,\"val_losses\":{{\"code\":2,\"prose\":{prose}}}}}\n")
    };
    let run = run(&folder, "sets", "", &(line(5, 4) + &line(10, 5)));
    let data = &data(&page(&[run], &folder))["runs"][0];
    let series = |values: [u64; 2]| serde_json::json!({"step": [5, 10], "value": values});
    assert_eq!(data["val_losses"], serde_json::json!({"code": series([2, 2]), "prose": series([4, 5])}));
}

#[test]
fn processes_say_how_the_run_was_set_up() {
    let start = |time: &str, step: u64, ranks: u64| {
        format!(
            "{{\"started\":\"2026-11-21T{time}Z\",\"step\":{step},\"version\":\"0.1.0\",\"command\":\"train --gpus {ranks}\",\"host\":\"name\",\"cpu\":\"AMD EPYC\",\
             \"cores\":2,\"device\":\"cpu\",\"ranks\":{ranks},\"strategy\":\"full_shard\",\"data\":\"rust-crates\",\
             \"train_tokens\":3800000,\"val_tokens\":418800,\"bytes_per_token\":1.0,\"parameters\":1900000,\
             \"global_batch_size\":32,\"micro_batch_size\":8,\"seq_len\":128}}\n"
        )
    };
    let resumed = "{\"step\":2,\"event\":\"resumed from runs/a/checkpoints/step-2 on 2 ranks\"}\n";
    let steps = "{\"step\":1,\"loss\":5}\n{\"step\":2,\"val_loss\":3}\n{\"step\":2,\"loss\":4}\n";
    let more = "{\"step\":3,\"loss\":4}\n{\"step\":3,\"val_loss\":4}\n";
    let metrics = [&start("21:45:07", 0, 4), steps, &start("22:00:00", 2, 2), resumed, more].concat();
    let folder = tempfile::tempdir().unwrap();
    let data = &data(&page(&[run(&folder, "a", CONFIG, metrics)], &folder))["runs"][0];
    let setups: Vec<_> =
        data["setups"].as_array().unwrap().iter().map(|setup| (&setup["step"], &setup["ranks"])).collect();
    assert_eq!(setups, [(&0.into(), &4.into()), (&2.into(), &2.into())]);
    let first = &data["setups"][0];
    assert_eq!((&first["started"], &first["bytes_per_token"]), (&"2026-11-21T21:45:07Z".into(), &1.0.into()));
    assert_eq!((&first["version"], &first["command"]), (&"0.1.0".into(), &"train --gpus 4".into()));
    assert_eq!((&first["cpu"], &first["micro_batch_size"]), (&"AMD EPYC".into(), &8.into()));
    assert_eq!((&data["parameters"], &data["best_val"]), (&1_900_000.into(), &serde_json::json!([2, 3])));
    assert_eq!((&data["val_loss"], &data["marks"][0]["kind"]), (&4.into(), &"resume".into()));
    assert_eq!(data["marks"][0]["text"], "resumed from step-2 on 2 ranks");
}

#[test]
fn a_run_of_loss_alone_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let old = run(&folder, "old", "", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"lo");
    let validated = run(&folder, "validated", "", "{\"step\":7,\"val_loss\":4}\n");
    let data = data(&page(&[old, validated], &folder));
    assert_eq!(data["runs"][0]["series"].as_object().unwrap().keys().collect::<Vec<_>>(), ["loss"]);
    assert_eq!((&data["runs"][0]["mfu"], &data["runs"][0]["tokens"]), (&Value::Null, &Value::Null));
    assert_eq!((&data["runs"][0]["best_val"], &data["runs"][0]["samples"]), (&Value::Null, &Value::Array(vec![])));
    assert_eq!(data["runs"][1]["step"], 7);
}

#[test]
fn what_has_no_step_is_a_note_beside_runs_that_have() {
    let folder = tempfile::tempdir().unwrap();
    let empty = run(&folder, "empty", CONFIG, "{\"parameters\":858900}\n");
    let none = folder.path().join("none");
    fs::create_dir(&none).unwrap();
    let file = folder.path().join("report.html");
    fs::write(&file, "").unwrap();
    let good = run(&folder, "good", CONFIG, METRICS);
    let out = folder.path().join("page.html");
    let all = [empty.clone(), none.clone(), file.clone(), good];
    let summary = write(&all, &out).unwrap();
    let expected = [
        format!("{}: no folder, left out", file.display()),
        format!("{}: no step yet, left out", empty.display()),
        format!("{}: no metrics.jsonl, left out", none.display()),
    ];
    assert_eq!((summary.runs, &summary.notes[..]), (1, &expected[..]));
    let data = data(&fs::read_to_string(&out).unwrap());
    assert_eq!((data["runs"].as_array().unwrap().len(), &data["notes"]), (1, &serde_json::json!(expected)));
    assert!(
        matches!(write(&all[..2], &out), Err(ReportError::NothingToShow { .. })),
        "none of them has anything to show"
    );
}

#[test]
fn text_from_files_stays_text() {
    let evil = r#"</script><script>alert(1)</script><!--<script> {{css}} & "q" 'q'"#;
    let folder = tempfile::tempdir().unwrap();
    let plain = page(&[run(&folder, "plain", CONFIG, METRICS)], &folder);
    let config = format!("model:\n  type: {}\n", serde_json::to_string(evil).unwrap());
    let text = serde_json::to_string(evil).unwrap();
    let metrics = format!("{METRICS}{{\"step\":3,\"event\":{text}}}\n{{\"step\":3,\"sample\":{text}}}\n");
    let evil_run = run(&folder, "<b onload='x'>&{{data}}\"", &config, metrics);
    let page = page(&[evil_run], &folder);

    let tags =
        |page: &str| page.matches("<script").count() + page.matches("</script").count() + page.matches("<!--").count();
    assert_eq!(tags(&page), tags(&plain));
    assert!(page.contains("<title>&lt;b onload='x'&gt;&amp;{{data}}&quot;</title>"));
    let run = &data(&page)["runs"][0];
    assert_eq!(run["name"], "<b onload='x'>&{{data}}\"");
    assert_eq!(run["config"][0][1], evil);
    assert_eq!(run["marks"].as_array().unwrap().last().unwrap()["text"], evil);
    assert_eq!(run["samples"][0][1], evil);
}

#[test]
fn the_page_loads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(&[run(&folder, "a", CONFIG, METRICS)], &folder);
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for outside in [
        "http:",
        "https:",
        "url(\"",
        "@import",
        "src=",
        "fetch(",
        "import(",
        "XMLHttpRequest",
        "innerHTML",
        "{{",
        "eval(",
        "connect-src",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_long_run_has_a_small_page_that_shows_its_spike() {
    let folder = tempfile::tempdir().unwrap();
    let line = |step: usize| {
        let loss = if step == 123_457 { 99.5 } else { 2.0 + (step as f64 * 0.7).sin() * 0.123_456_789 };
        let rest = format!(
            "\"lr\":{},\"grad_norm\":{loss},\"tokens\":{},\"step_seconds\":0.123456",
            step as f64 * 1.7e-9,
            step * 4096
        );
        format!("{{\"step\":{step},\"loss\":{loss},\"tokens_per_second\":{},{rest}}}\n", 1234.5 + loss)
    };
    let metrics: String = (1..=200_000).map(line).collect();
    let page = page(&[run(&folder, "long", CONFIG, metrics)], &folder);
    assert!(page.len() < 600_000, "{} bytes", page.len());
    let loss = &data(&page)["runs"][0]["series"]["loss"];
    let values = loss["value"].as_array().unwrap();
    assert!(values.len() <= 2000, "{} points", values.len());
    let spike = values.iter().position(|value| *value == 99.5).unwrap();
    assert_eq!(loss["step"][spike], 123_457);
    assert!(loss["mean"][spike].as_f64().unwrap() < 4.0);
}

#[test]
fn what_cannot_be_shown_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("page.html");
    fs::write(&out, "the page before").unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let torn = run(&folder, "torn", CONFIG, "{\"step\":1,\"loss\":");
    let good = run(&folder, "good", CONFIG, METRICS);
    let message = |runs: &[PathBuf], out: &Path| write(runs, out).unwrap_err().to_string();

    assert!(matches!(write(&[], &out), Err(ReportError::NoRuns)));
    let text = message(&[good.clone(), folder.path().join("none")], &out);
    assert!(text.contains("none: no such folder"), "{text}");
    let text = message(&[good.join("metrics.jsonl")], &out);
    assert!(text.contains("metrics.jsonl: no such folder"), "{text}");
    let text = message(&[empty], &out);
    assert!(text.contains("empty/metrics.jsonl: no such file"), "{text}");
    let text = message(&[torn], &out);
    assert!(text.contains("torn/metrics.jsonl: it has no step yet (0 lines)"), "{text}");
    let text = message(std::slice::from_ref(&good), &folder.path().join("no/where.html"));
    assert!(text.contains("no/where.html: cannot be written") && text.contains("--out"), "{text}");

    assert_eq!(fs::read_to_string(&out).unwrap(), "the page before");
    let summary = write(&[good], &out).unwrap();
    assert_eq!((summary.runs, summary.bytes, summary.notes.len()), (1, fs::read(&out).unwrap().len(), 0));
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains(".tmp")));
}

#[test]
fn what_is_missing_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let broken = run(&folder, "broken", "a: [", "{\"step\":1,\"loss\":5}\n{\"st\n{\"step\":2,\"loss\":4}\n");
    let notes = write(&[broken], &folder.path().join("page.html")).unwrap().notes;
    assert_eq!(notes.len(), 2);
    assert!(notes[0].starts_with("broken: metrics.jsonl: line 2"), "{notes:?}");
    assert!(notes[1].starts_with("broken: config.yaml: "), "{notes:?}");
}

fn any_line() -> impl Strategy<Value = String> {
    let numbers = ["0", "1", "-3", "1e300", "-1e-300", "18446744073709551615", "null", "\"x\"", "[]", "{}", "[1,null]"];
    let keys = [
        "step",
        "loss",
        "val_loss",
        "experts",
        "memory",
        "traffic",
        "event",
        "tokens",
        "elapsed_seconds",
        "grad_norm_z",
        "parameters",
        "started",
        "sample",
        "stages",
    ];
    let layer = r#"[{"layer":1,"assigned":[1,0,null]},{"layer":0,"assigned":[]}]"#;
    let value =
        prop_oneof![6 => prop::sample::select(numbers.to_vec()).prop_map(str::to_owned), 1 => Just(layer.to_owned())];
    let pair = (prop::sample::select(keys.to_vec()), value).prop_map(|(key, value)| format!("\"{key}\":{value}"));
    let object = prop::collection::vec(pair, 0..6).prop_map(|pairs| format!("{{\"step\":1,{}}}", pairs.join(",")));
    prop_oneof![8 => object, 1 => "[ -~]{0,20}"]
}

proptest! {
    #[test]
    fn no_lines_bring_it_down(lines in prop::collection::vec(any_line(), 0..12), config in "[ -~\n]{0,40}") {
        let folder = tempfile::tempdir().unwrap();
        let run = run(&folder, "any", &config, lines.join("\n"));
        let out = folder.path().join("page.html");
        match write(&[run], &out) {
            Ok(_) => drop(data(&fs::read_to_string(out).unwrap())),
            Err(error) => prop_assert!(matches!(error, ReportError::NothingToShow { .. }), "{}", error),
        }
    }
}
