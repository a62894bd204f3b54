use crate::words::count;
use burn::tensor::Device;

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
}

impl Devices {
    /// Gives each of `ranks` ranks a device of the kind `name` (`cpu`, `cuda`), in turn where there are fewer devices than ranks;
    /// `cuda:1` gives all of them that one.
    ///
    /// # Errors
    /// A message, if there is no such device in this build or on this machine.
    pub fn new(name: &str, ranks: usize) -> Result<Self, String> {
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
            _ => return Err(format!("--device {name}: there is no such device; give cpu, cuda or cuda:N")),
        };
        let chosen = match index {
            None => available,
            Some(i) if i < available.len() => vec![available[i].clone()],
            Some(_) => return Err(format!("--device {name}: there are {} devices, numbered from 0", available.len())),
        };
        let of_rank = chosen.iter().cycle().take(ranks).cloned().collect();
        Ok(Self { of_rank, distinct: chosen.len().min(ranks), name: name.into(), here: chosen.len() })
    }

    /// The numbers of the different ones, as in `cuda:N`.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        match self.name.split_once(':').and_then(|(_, number)| number.parse().ok()) {
            Some(number) => vec![number],
            None => (0..self.distinct).collect(),
        }
    }

    /// A line for the user where ranks share devices.
    pub fn sharing(&self) -> Option<String> {
        let ranks = self.of_rank.len();
        let shared = || format!("{ranks} ranks share {} ({})", count(self.distinct, "device"), self.name);
        (self.distinct < ranks).then(shared)
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Vec<Device>, String> {
    let devices: Vec<Device> = Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect();
    if devices.is_empty() { Err("--device cuda: this machine has no CUDA device".into()) } else { Ok(devices) }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Vec<Device>, String> {
    Err("--device cuda: this build has no CUDA; build it with `--features cuda`".into())
}
