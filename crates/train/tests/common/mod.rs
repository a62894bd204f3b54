//! Helpers shared by the tests of the program.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
pub use test_kit::tiny::{TINY, TINY_EXPERTS};

/// A folder with a `text.txt` of 2280 bytes: 28 different characters without line ends. The last 228 bytes are the
/// validation split.
pub fn folder_with_text() -> TempDir {
    test_kit::text_folder(60)
}

/// The program, to run in `folder`; run by the one that `KILN_TEST_RUNNER` names, if that is set.
pub fn program(folder: &Path, args: &[&str]) -> Command {
    let exe = env!("CARGO_BIN_EXE_train");
    let mut command = Command::new(std::env::var_os("KILN_TEST_RUNNER").unwrap_or_else(|| exe.into()));
    if command.get_program() != exe {
        command.arg(exe);
    }
    command.current_dir(folder).args(args).env_remove("RUST_BACKTRACE");
    command.env("KILN_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kiln-cache"));
    command
}

/// Runs the program in `folder`.
pub fn run(folder: &Path, args: &[&str]) -> Output {
    program(folder, args).output().expect("cargo has built the program")
}

/// Runs the program in `folder` and returns its stdout and stderr; it must succeed.
#[track_caller]
pub fn succeed(folder: &Path, args: &[&str]) -> (String, String) {
    let output = run(folder, args);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "train {}: {}\n{stderr}", args.join(" "), output.status);
    (stdout, stderr)
}

/// The lines of a run's `metrics.jsonl`, each of which must be complete.
#[track_caller]
pub fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Waits until `reached` returns true.
///
/// # Panics
/// If the program ends first, or after five minutes.
#[track_caller]
pub fn wait_until(child: &mut Child, reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        assert!(started.elapsed() < Duration::from_secs(300), "what the test waits for does not come");
        sleep(Duration::from_millis(2));
    }
}

/// The same for the text of a run's `metrics.jsonl`, which is empty before the file exists.
#[track_caller]
pub fn wait_for_metrics(child: &mut Child, run: &Path, reached: impl Fn(&str) -> bool) {
    wait_until(child, || reached(&fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default()));
}

/// The values of `key` in the lines that have it.
pub fn values(metrics: &[Value], key: &str) -> Vec<f64> {
    metrics.iter().filter_map(|line| line.get(key)).map(|value| value.as_f64().unwrap()).collect()
}
