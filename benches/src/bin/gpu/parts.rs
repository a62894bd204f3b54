//! The parts of the checks, each in its own process: a kernel that crashes or leaves the GPU unusable ends only that
//! process.

use burn::tensor::{DType, Device};
use moe::kernels::grouped_gemm::Tier;
use serde::Serialize;
use std::fmt;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A part of the checks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GpuCheck {
    /// Routing and permutation.
    Routing,
    /// The operations of `fused`, in one dtype.
    Fused(DType),
    /// One kernel of the grouped product, in one dtype.
    Product(Tier, DType),
    /// A whole layer.
    Layer,
}

impl GpuCheck {
    /// All parts, in the order in which they run.
    pub const ALL: [Self; 10] = [
        Self::Routing,
        Self::Fused(DType::F32),
        Self::Fused(DType::BF16),
        Self::Product(Tier::Simt, DType::F32),
        Self::Product(Tier::Simt, DType::BF16),
        Self::Product(Tier::MultiLevel, DType::F32),
        Self::Product(Tier::MultiLevel, DType::BF16),
        Self::Product(Tier::Wgmma, DType::F32),
        Self::Product(Tier::Wgmma, DType::BF16),
        Self::Layer,
    ];
}

impl fmt::Display for GpuCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Routing => f.write_str("routing"),
            Self::Fused(dtype) => write!(f, "operations-{}", crate::report::dtype_name(*dtype)),
            Self::Product(tier, dtype) => write!(f, "grouped_gemm-{tier}-{}", crate::report::dtype_name(*dtype)),
            Self::Layer => f.write_str("layer"),
        }
    }
}

impl FromStr for GpuCheck {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|part| part.to_string() == name).ok_or_else(|| format!("no part {name:?}"))
    }
}

impl Serialize for GpuCheck {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The operations of `fused`.
    Operations,
    /// The operations that move tokens.
    Routing,
    /// Whole layers of experts.
    Layers,
    /// One kernel of the grouped product.
    Products(Tier),
}

impl Measure {
    /// All measurements in order. The newest kernels come last, so that the others are measured even if these leave the
    /// GPU unusable.
    pub const ALL: [Self; 6] = [
        Self::Operations,
        Self::Routing,
        Self::Layers,
        Self::Products(Tier::Simt),
        Self::Products(Tier::MultiLevel),
        Self::Products(Tier::Wgmma),
    ];
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operations => f.write_str("operations"),
            Self::Routing => f.write_str("routing"),
            Self::Layers => f.write_str("layers"),
            Self::Products(tier) => write!(f, "products-{tier}"),
        }
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|of| of.to_string() == name).ok_or_else(|| format!("nothing to measure is {name:?}"))
    }
}

/// How a part ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// The device or the build does not support it, for this reason.
    Skipped(String),
    Failed(String),
}

/// The outcome of a part, and what it printed.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    pub outcome: Outcome,
    pub lines: Vec<String>,
}

/// Most time that a part may take, including the compilation of kernels.
const LIMIT: Duration = Duration::from_secs(500);

/// The words that a tier prints before the reason why it cannot run.
const CANNOT: &str = "cannot run here: ";

/// Runs a part in a separate process and prints its lines.
pub fn check(part: GpuCheck, device: &str, smoke: bool) -> Result<Checked, String> {
    let failed = |error: std::io::Error| format!("check {part}: {error}");
    let mut output = std::env::temp_dir();
    output.push(format!("kiln-gpu-{}-{part}", std::process::id()));
    let mut file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&output).map_err(failed)?;
    let (stdout, stderr) = (file.try_clone().map_err(failed)?, file.try_clone().map_err(failed)?);
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["--device", device, "--part", &part.to_string()])
        .args(smoke.then_some("--smoke"))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .map_err(failed)?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break Some(status),
            None if start.elapsed() > LIMIT => {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut text = vec![];
    file.rewind().and_then(|()| file.read_to_end(&mut text)).map_err(failed)?;
    let _ = std::fs::remove_file(output);
    let text = String::from_utf8_lossy(&text);
    let wrong = text.lines().find(|line| line.starts_with("FAIL"));
    let cannot = text.lines().find_map(|line| line.split_once(CANNOT)).filter(|_| wrong.is_none());
    let outcome = match (status, cannot) {
        (Some(status), _) if status.success() => Outcome::Passed,
        (Some(_), Some((_, why))) => Outcome::Skipped(why.trim().into()),
        (Some(_), None) if wrong.is_some() => Outcome::Failed("wrong results".into()),
        (Some(status), None) => Outcome::Failed(status.to_string()),
        (None, _) => Outcome::Failed(format!("not done after {} s", LIMIT.as_secs())),
    };
    let ours = |line: &&str| !matches!(outcome, Outcome::Passed | Outcome::Skipped(_)) || line.starts_with("ok ");
    let lines: Vec<String> = text.lines().filter(ours).map(Into::into).collect();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(Checked { outcome, lines })
}

/// The device of this name.
///
/// # Errors
/// A message if this build or this machine lacks the device.
pub fn open(name: &str) -> Result<Device, String> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("flex", "0") => Ok(Device::flex()),
        #[cfg(feature = "cpu-jit")]
        ("cpu", "0") => Ok(Device::cpu()),
        #[cfg(feature = "cuda")]
        ("cuda", index) => {
            let index: usize = index.parse().map_err(|_| format!("--device {name}: `{index}` is not a number"))?;
            let all = std::panic::catch_unwind(|| Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec());
            let all = all.map_err(|panic| format!("CUDA does not start: {}", crate::timer::message(&*panic)))?;
            all.into_iter().nth(index).ok_or(format!("--device {name}: this machine has no such CUDA device"))
        }
        _ => Err(format!("--device {name}: this build has no such device; see benches/gpu/README.md")),
    }
}
