//! The results: lines while running, and JSON at the end.

use crate::cases::{ProductCase, Sizes};
use crate::parts::{Checked, GpuCheck, Outcome};
use crate::timer::METHOD;
use burn::tensor::DType;
use serde::Serialize;
use std::path::PathBuf;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// `operation`, `routing`, `layer` or `grouped_gemm`
    pub group: &'static str,
    pub op: String,
    /// The kernel that was forced; `chosen` if the device chooses.
    pub tier: String,
    /// Name of the model.
    pub shape: &'static str,
    pub rows: usize,
    /// `balanced`, `zipf`, `routed` if a router chooses, `none` if there are no experts.
    pub skew: String,
    pub dtype: String,
    pub seconds: f64,
    /// Floating-point operations that the result needs; 0 if bytes are measured.
    pub flops: f64,
    /// Bytes that must at least be read and written; 0 if operations are counted.
    pub bytes: f64,
}

/// A check or measurement without a result.
#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    pub what: String,
    pub why: String,
    /// Whether this is a failure.
    pub failed: bool,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    pub device: String,
    /// The device as the user names it.
    pub device_kind: String,
    pub commit: String,
    pub smoke: bool,
    pub method: &'static str,
    pub checks: Vec<(GpuCheck, Checked)>,
    pub cases: Vec<ProductCase>,
    /// The sizes of the measurements.
    pub sizes: Option<Sizes>,
    pub records: Vec<Record>,
    pub missing: Vec<Missing>,
    /// Where it is written as it grows, because a kernel may end the process.
    #[serde(skip)]
    file: Option<PathBuf>,
}

impl Report {
    pub fn new(device: String, device_kind: &str, commit: &str, smoke: bool, file: Option<PathBuf>) -> Self {
        Self {
            device,
            device_kind: device_kind.into(),
            commit: commit.into(),
            smoke,
            method: METHOD,
            checks: vec![],
            cases: vec![],
            sizes: None,
            records: vec![],
            missing: vec![],
            file,
        }
    }

    /// The dtype of measurements: bf16, but f32 on CPUs, not all of which round to bf16.
    pub fn dtype(&self) -> DType {
        if self.device_kind.starts_with("cuda") { DType::BF16 } else { DType::F32 }
    }

    pub fn checked(&mut self, part: GpuCheck, checked: Checked) {
        match &checked.outcome {
            Outcome::Passed => {}
            Outcome::Skipped(why) => self.missing(format!("check {part}"), why.clone(), false),
            Outcome::Failed(why) => self.missing(format!("check {part}"), why.clone(), true),
        }
        self.checks.push((part, checked));
    }

    pub fn outcome(&self, part: GpuCheck) -> Option<&Outcome> {
        self.checks.iter().find(|(of, _)| *of == part).map(|(_, checked)| &checked.outcome)
    }

    pub fn missing(&mut self, what: String, why: String, failed: bool) {
        println!("{} {what}: {why}", if failed { "FAIL " } else { "skip " });
        self.missing.push(Missing { what, why, failed });
    }

    /// Adds a measurement, or the reason why there is none.
    pub fn measured(&mut self, record: Record, seconds: Result<f64, String>) {
        let Record { group, op, tier, shape, rows, skew, dtype, flops, bytes, .. } = &record;
        let name = format!("{group} {op} {tier} {shape} {rows} {skew} {dtype}");
        match seconds {
            Ok(seconds) => {
                let speed = match *flops {
                    0.0 => format!("{:.3} GB/s", bytes / seconds * 1e-9),
                    flops => format!("{:.3} TFLOP/s", flops / seconds * 1e-12),
                };
                println!("time  {name}: {:.3} ms, {speed}", seconds * 1e3);
                self.records.push(Record { seconds, ..record });
            }
            Err(why) => self.missing(name, why, true),
        }
        // An error of writing is reported at the end.
        let _ = self.write();
    }

    pub fn succeeded(&self) -> bool {
        self.missing.iter().all(|missing| !missing.failed)
    }

    /// Writes the report if there is a file for it.
    pub fn write(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// The name that PyTorch and the tables use.
pub fn dtype_name(dtype: DType) -> &'static str {
    if dtype == DType::BF16 { "bf16" } else { "f32" }
}
