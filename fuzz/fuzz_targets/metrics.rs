//! Fuzzes the page of a run. The input is the metrics, a zero byte, and the configuration.
#![no_main]

use std::fs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (metrics, config) = bytes.split_at(end);
    let run = fuzz::path("run");
    let _ = fs::create_dir(&run);
    fs::write(run.join("metrics.jsonl"), metrics).expect("memory has room");
    fs::write(run.join("config.yaml"), config.get(1..).unwrap_or_default()).expect("memory has room");
    let _ = report::write(&[run.clone()], &run.join("report.html"));
});
