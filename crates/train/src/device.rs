//! The devices of a run's ranks, by name.

#[cfg(feature = "cuda")]
mod cache;
#[cfg(any(test, all(feature = "cuda", not(feature = "cuda-cpp"))))]
mod libdevice;

use crate::words::count;
use burn::tensor::Device;

/// The name of the device that is meant: `auto` is `cuda` where the build has it and the machine has such a device, and
/// `cpu` elsewhere.
pub(crate) fn meant(name: &str) -> &str {
    match name {
        "auto" if has_cuda() => "cuda",
        "auto" => "cpu",
        name => name,
    }
}

/// The device of each rank.
#[derive(Debug, Clone)]
pub struct Devices {
    /// In rank order.
    pub of_rank: Vec<Device>,
    /// How many different ones these are.
    pub distinct: usize,
    /// What they are called.
    pub name: String,
    /// How many there are that a run could have with that name.
    pub here: usize,
    /// Whether nobody has chosen them.
    auto: bool,
}

impl Devices {
    /// Gives each of `ranks` ranks a device of the kind `name` (`cpu`, `cuda`), in turn where there are fewer devices
    /// than ranks; `cuda:1` gives all of them that one, and `auto` CUDA devices where there are any, and else the CPU.
    ///
    /// # Errors
    /// A message, if there is no such device in this build or on this machine, or something that it needs is missing.
    pub fn new(name: &str, ranks: usize) -> Result<Self, String> {
        let auto = name == "auto";
        let name = meant(name);
        let (kind, index) = match name.split_once(':') {
            Some((kind, index)) => {
                let index =
                    index.parse::<usize>().map_err(|_| format!("--device {name}: `{index}` is not a number"))?;
                (kind, Some(index))
            }
            None => (name, None),
        };
        let available = match (kind, index) {
            ("cpu", None) => vec![Device::flex()],
            ("cuda", _) => cuda()?,
            _ => return Err(format!("--device {name}: there is no such device; give auto, cpu, cuda or cuda:N")),
        };
        let chosen = match index {
            None => available,
            Some(i) if i < available.len() => vec![available[i].clone()],
            Some(_) => return Err(format!("--device {name}: there are {} devices, numbered from 0", available.len())),
        };
        let of_rank = chosen.iter().cycle().take(ranks).cloned().collect();
        Ok(Self { of_rank, distinct: chosen.len().min(ranks), name: name.into(), here: chosen.len(), auto })
    }

    /// The numbers of the different ones, as in `cuda:N`.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        match self.name.split_once(':').and_then(|(_, number)| number.parse().ok()) {
            Some(number) => vec![number],
            None => (0..self.distinct).collect(),
        }
    }

    /// How many ranks are on which devices: `4 ranks share 1 device (cpu)`, `1 rank on cpu`.
    pub fn describe(&self) -> String {
        match self.of_rank.len() {
            ranks if self.distinct < ranks => {
                format!("{ranks} ranks share {} ({})", count(self.distinct, "device"), self.name)
            }
            ranks => format!("{} on {}", count(ranks, "rank"), self.name),
        }
    }

    /// A line for the user: why it is these devices, or what is to be known about the first run.
    pub fn note(&self) -> Option<String> {
        match self.name.as_str() {
            "cpu" => (self.auto && cfg!(feature = "cuda")).then(|| "this machine has no CUDA device".into()),
            _ => note_of_cuda(),
        }
    }
}

#[cfg(feature = "cuda")]
fn note_of_cuda() -> Option<String> {
    Some(cache::line())
}

#[cfg(not(feature = "cuda"))]
fn note_of_cuda() -> Option<String> {
    None
}

/// Asked in many places, found out once.
#[cfg(feature = "cuda")]
fn has_cuda() -> bool {
    static HAS_CUDA: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        !Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect::<Vec<_>>().is_empty()
    });
    *HAS_CUDA
}

#[cfg(not(feature = "cuda"))]
fn has_cuda() -> bool {
    false
}

/// The CUDA devices, ready to compile kernels.
#[cfg(feature = "cuda")]
fn cuda() -> Result<Vec<Device>, String> {
    cache::choose();
    let devices: Vec<Device> = Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect();
    if devices.is_empty() {
        return Err("--device cuda: this machine has no CUDA device, or no driver that says so (try nvidia-smi)".into());
    }
    #[cfg(not(feature = "cuda-cpp"))]
    libdevice::find().map_err(|missing| format!("--device cuda: {missing} (`--device cpu` trains on the CPU)"))?;
    Ok(devices)
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Vec<Device>, String> {
    Err("--device cuda: this build has no CUDA; build it with `--features cuda`".into())
}
