//! The devices of a run's ranks, by name.

#[cfg(any(feature = "cuda", feature = "vulkan", feature = "metal"))]
mod cache;
mod gpus;
#[cfg(any(test, all(feature = "cuda", not(feature = "cuda-cpp"))))]
mod libdevice;

use crate::error::TrainError;
use crate::format::count;
use crate::host::attempt;
use burn::tensor::{Device, Tensor};
use fsdp::{FloatType, Precision};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Resolves a device name: `auto` is the first of `cuda`, `metal` and `vulkan` that the build supports and the machine
/// has a GPU for, or else `cpu`.
pub(crate) fn meant(name: &str) -> &str {
    match name {
        "auto" => gpus::KINDS.into_iter().find(|kind| gpus::has(kind)).unwrap_or("cpu"),
        name => name,
    }
}

/// The identity of the GPU with this number of its kind; `None` if it does not exist.
#[cfg(feature = "vulkan")]
pub(crate) fn identity(kind: &str, number: usize) -> Option<cubecl::ir::DeviceIdentity> {
    gpus::all(kind).ok()?.get(number)?.identity()
}

/// The device of a command that computes on a single one.
///
/// # Errors
/// See [`Devices::new`].
pub(crate) fn of_command(name: &str) -> Result<Device, TrainError> {
    let devices = Devices::new(name, 1)?;
    Ok(devices.of_rank[0].clone())
}

/// How long a device may take to add numbers, which may include the start of its driver.
const COMPUTES: Duration = Duration::from_secs(60);

/// Whether a device still adds numbers. A driver that is stuck is left behind on its thread.
fn computes(device: &Device) -> bool {
    let (device, (done, result)) = (device.clone(), mpsc::channel());
    thread::spawn(move || {
        let sum = || Tensor::<1>::ones([16], &device).sum().try_into_data().ok()?.iter::<f32>().next();
        let _ = done.send(panic::catch_unwind(AssertUnwindSafe(sum)).is_ok_and(|sum| sum == Some(16.0)));
    });
    result.recv_timeout(COMPUTES).unwrap_or(false)
}

/// The device of each rank.
#[derive(Debug, Clone)]
pub struct Devices {
    /// In rank order.
    pub of_rank: Vec<Device>,
    /// Number of distinct devices.
    pub distinct: usize,
    /// Name of the devices.
    pub name: String,
    /// Number of devices on this machine that the name covers.
    pub here: usize,
    /// These devices, with their numbers as in `cuda:N`.
    all: Vec<(usize, Device)>,
    /// Whether the device was chosen automatically.
    auto: bool,
}

impl Devices {
    /// Assigns each of `ranks` ranks a device of the kind `name` (`cpu`, `cuda`, `vulkan`, `metal`), in turn if there
    /// are fewer devices than ranks. `cuda:1` assigns that device to all; `auto` uses GPUs if there are any, or else
    /// the CPU.
    ///
    /// # Errors
    /// If this build or this machine has no such device, or something it needs is missing.
    pub fn new(name: &str, ranks: usize) -> Result<Self, TrainError> {
        let refused = |reason: String| TrainError::Device(format!("--device {name}: {reason}"));
        let auto = name == "auto";
        let name = meant(name);
        let (kind, index) = match name.split_once(':') {
            Some((kind, index)) => {
                let index = index.parse::<usize>().map_err(|_| refused(format!("`{index}` is not a number")))?;
                (kind, Some(index))
            }
            None => (name, None),
        };
        let available = match (kind, index) {
            ("cpu", None) => vec![Device::flex()],
            (kind, _) if gpus::KINDS.contains(&kind) => gpus::all(kind).map_err(TrainError::Device)?,
            _ => {
                return Err(refused(
                    "there is no such device; give auto, cpu, or cuda, vulkan or metal, which may be numbered as in cuda:0"
                        .into(),
                ));
            }
        };
        let mut chosen: Vec<(usize, Device)> = match index {
            None => available.into_iter().enumerate().collect(),
            Some(i) if i < available.len() => vec![(i, available[i].clone())],
            Some(_) => return Err(refused(format!("there are {} devices, numbered from 0", available.len()))),
        };
        // The failure before may be that of a device which the driver still lists.
        if attempt::number() > 1 {
            chosen.retain(|(_, device)| computes(device));
            if chosen.is_empty() {
                return Err(refused("no device computes any more".into()));
            }
        }
        let here = chosen.len();
        Ok(Self { of_rank: vec![], distinct: 0, name: name.into(), here, all: chosen, auto }.for_ranks(ranks))
    }

    /// Assigns the same devices to another number of ranks.
    pub(crate) fn for_ranks(self, ranks: usize) -> Self {
        let of_rank = self.all.iter().cycle().take(ranks).map(|(_, device)| device.clone()).collect();
        Self { of_rank, distinct: self.here.min(ranks), ..self }
    }

    /// `cpu`, `cuda`, `vulkan` or `metal`.
    pub(crate) fn kind(&self) -> &str {
        self.name.split_once(':').map_or(&self.name, |(kind, _)| kind)
    }

    /// The numbers of the distinct devices, as in `cuda:N`.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.all.iter().take(self.distinct).map(|(number, _)| *number)
    }

    /// The placement of ranks: `4 ranks share 1 device (cpu)`, `1 rank on cpu`.
    pub fn describe(&self) -> String {
        match self.of_rank.len() {
            ranks if self.distinct < ranks => {
                format!("{ranks} ranks share {} ({})", count(self.distinct, "device"), self.name)
            }
            ranks => format!("{} on {}", count(ranks, "rank"), self.name),
        }
    }

    /// A line for the user: why these devices were chosen, or a note on the first run.
    pub fn note(&self) -> Option<String> {
        match self.name.as_str() {
            "cpu" => (self.auto && gpus::is_built()).then(|| "this machine has no GPU that this build can use".into()),
            _ => gpus::note(&self.of_rank[0]),
        }
    }

    /// Checks that the devices compute and reduce in these types.
    ///
    /// # Errors
    /// If one does not; the message names the device and the types it supports.
    pub fn check_precision(&self, precision: Precision) -> Result<(), TrainError> {
        for (key, wanted) in [("param", precision.param), ("reduce", precision.reduce)] {
            let has = |of: FloatType| self.of_rank.iter().all(|device| device.supports_dtype(of.dtype()));
            if !has(wanted) {
                let all = [(FloatType::Fp32, "fp32"), (FloatType::Fp16, "fp16"), (FloatType::Bf16, "bf16")];
                let here: Vec<_> = all.into_iter().filter(|(of, _)| has(*of)).map(|(_, name)| name).collect();
                let (_, name) = all.into_iter().find(|(of, _)| *of == wanted).expect("all types are listed");
                return Err(TrainError::Device(format!(
                    "--device {}: it does not compute in {name} (parallel.precision.{key}), but in {}",
                    self.name,
                    here.join(" and ")
                )));
            }
        }
        Ok(())
    }
}
