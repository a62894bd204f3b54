//! Available memory.

use crate::host::device::Devices;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory available to a run, and where that figure comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    pub bytes: u64,
    /// "this machine has", "the limit of this container leaves"
    pub source: &'static str,
}

/// Free memory of the fullest of a run's devices; `None` if unknown.
pub fn of_devices(devices: &Devices) -> Option<Available> {
    let kind = devices.kind();
    let each = devices.numbers().map(|number| of_gpu(kind, number)).collect::<Option<Vec<_>>>()?;
    let least = each.into_iter().min_by_key(|available| available.bytes)?;
    let source = if least.source == "the device has" { "a device has" } else { least.source };
    Some(Available { source, ..least })
}

/// Free memory on the device of a run's rank 0, given the device's name; `None` if unknown.
pub fn of_rank_0(device: &str) -> Option<Available> {
    match crate::host::device::meant(device).split_once(':') {
        None if crate::host::device::meant(device) == "cpu" => of_host(),
        None => of_gpu(crate::host::device::meant(device), 0),
        Some((kind, number)) => of_gpu(kind, number.parse().ok()?),
    }
}

/// Free memory of a GPU according to its driver, because Burn does not report a device's size. Unknown for Metal.
fn of_gpu(kind: &str, number: usize) -> Option<Available> {
    let _ = number; // unused in builds without GPU backends
    match kind {
        // In the context that Burn will also use.
        #[cfg(feature = "cuda")]
        "cuda" => {
            let (free, _total) = cudarc::driver::CudaContext::new(number).ok()?.mem_get_info().ok()?;
            Some(Available { bytes: free as u64, source: "the device has" })
        }
        #[cfg(feature = "vulkan")]
        "vulkan" => match crate::host::device::identity("vulkan", number)?.physical {
            Some(card) => Some(Available { bytes: super::vulkan::free(card.pci_address?)?, source: "the device has" }),
            None => of_host(),
        },
        _ => None,
    }
}

/// Free and reclaimable CPU memory; `None` if the system does not report it (only Linux does).
pub fn of_host() -> Option<Available> {
    of_linux(Path::new("/"))
}

/// The memory that a process watches while it trains: its devices, and for one process of a machine the machine's.
pub struct Watched {
    kind: String,
    /// The numbers of the devices.
    numbers: Vec<usize>,
    machine: bool,
}

impl Watched {
    /// `local_rank` is the number of this process on its machine, where `devices` are those of all processes; `None` for
    /// a process by itself.
    pub fn new(devices: &Devices, local_rank: Option<usize>) -> Self {
        let all: Vec<usize> = devices.numbers().collect();
        let mine = local_rank.map(|rank| vec![all[rank % all.len()]]);
        Self { kind: devices.kind().into(), numbers: mine.unwrap_or(all), machine: local_rank.unwrap_or(0) == 0 }
    }

    /// The used fraction of the fullest of it, and what it is a fraction of. `None` where nothing reports it.
    pub fn fullest(&self) -> Option<(f64, String)> {
        let machine = fullest().filter(|_| self.machine).map(|(used, of)| (used, of.to_owned()));
        let device =
            |number: &usize| Some((used_of_gpu(&self.kind, *number)?, format!("the memory of {}:{number}", self.kind)));
        let devices = self.numbers.iter().filter_map(device);
        devices.chain(machine).max_by(|(a, _), (b, _)| a.total_cmp(b))
    }
}

/// The used fraction of a GPU's memory. Unknown but for CUDA.
fn used_of_gpu(kind: &str, number: usize) -> Option<f64> {
    let _ = number; // unused in builds without CUDA
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => {
            let (free, total) = cudarc::driver::CudaContext::new(number).ok()?.mem_get_info().ok()?;
            Some(1.0 - free as f64 / total.max(1) as f64)
        }
        _ => None,
    }
}

/// The fullest of the machine's memory and the limits of this process's control groups: the used fraction, and what it is
/// a fraction of. `None` if the system does not report it.
fn fullest() -> Option<(f64, &'static str)> {
    fullest_of_linux(Path::new("/"))
}

fn fullest_of_linux(root: &Path) -> Option<(f64, &'static str)> {
    let used = |memory: &Limited| 1.0 - memory.left as f64 / memory.limit.max(1) as f64;
    let fullest = limits(root)?.into_iter().max_by(|a, b| used(a).total_cmp(&used(b)))?;
    let of = if fullest.is_machine { "this machine's memory" } else { "the memory limit of this container" };
    Some((used(&fullest), of))
}

/// [`of_host`] for a Linux whose files are under `root`: the smaller of the kernel's own estimate and what remains below
/// the limits of this process's control groups. A container is killed at its own limit, not at the machine's.
fn of_linux(root: &Path) -> Option<Available> {
    let least = limits(root)?.into_iter().min_by_key(|memory| (memory.left, !memory.is_machine))?;
    let source = if least.is_machine { "this machine has" } else { "the limit of this container leaves" };
    Some(Available { bytes: least.left, source })
}

/// Memory with a limit.
struct Limited {
    left: u64,
    limit: u64,
    is_machine: bool,
}

/// The machine's memory, and the limits of this process's control groups.
fn limits(root: &Path) -> Option<Vec<Limited>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo")?;
    let bytes = |name: &str| Some(field(&machine, name)?.saturating_mul(1024));
    let left = bytes("MemAvailable:")?;
    let mut limits = vec![Limited { left, limit: bytes("MemTotal:").unwrap_or(left), is_machine: true }];
    for line in read("proc/self/cgroup").unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, version) = match controllers {
            "" => ("sys/fs/cgroup", &V2),
            _ if controllers.split(',').any(|controller| controller == "memory") => ("sys/fs/cgroup/memory", &V1),
            _ => continue,
        };
        // Inside a container the path may be the host's; the group itself is then the base. Limits of parent groups
        // also apply.
        let group: PathBuf = root.join(base).join(path.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|group| group.starts_with(root.join(base)));
        limits.extend(groups.filter_map(|group| version.limited(group)));
    }
    Some(limits)
}

/// File names of a control group version.
struct Version {
    limit: &'static str,
    usage: &'static str,
    /// Key in `memory.stat` of the droppable file cache, which counts as used.
    cache: &'static str,
}

const V1: Version =
    Version { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", cache: "total_inactive_file" };
const V2: Version = Version { limit: "memory.max", usage: "memory.current", cache: "inactive_file" };

impl Version {
    /// A group's limit, and what remains below it; `None` if there is no limit (`max`) or no such group.
    fn limited(&self, group: &Path) -> Option<Limited> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, used) = (number(self.limit)?, number(self.usage)?);
        let cache = read("memory.stat").and_then(|stat| field(&stat, self.cache)).unwrap_or(0);
        Some(Limited { left: limit.saturating_sub(used.saturating_sub(cache)), limit, is_machine: false })
    }
}

/// The number after `name` in lines of a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    words.find_map(|mut words| if words.next() == Some(name) { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn machine(of: &[(&str, &str)]) -> Option<Available> {
        of_linux(files(of).path())
    }

    #[test]
    fn the_fullest_of_machine_and_container_is_named_with_its_share() {
        let group = ("proc/self/cgroup", "0::/a\n");
        let (limit, used) = (("sys/fs/cgroup/a/memory.max", "1000\n"), ("sys/fs/cgroup/a/memory.current", "930\n"));
        let stat = ("sys/fs/cgroup/a/memory.stat", "inactive_file 10\n");
        assert_eq!(fullest_of_linux(files(&[MEMINFO]).path()), Some((0.5, "this machine's memory")));
        let container = fullest_of_linux(files(&[MEMINFO, group, limit, used, stat]).path());
        assert_eq!(container, Some((0.92, "the memory limit of this container")));
        assert_eq!(fullest_of_linux(files(&[]).path()), None);
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");

    #[test]
    fn without_a_limit_it_is_what_the_kernel_says() {
        let expected = Some(Available { bytes: 1_024_000, source: "this machine has" });
        assert_eq!(machine(&[MEMINFO]), expected);
        let (group, limit) = (("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n"));
        assert_eq!(machine(&[MEMINFO, group, limit, ("sys/fs/cgroup/a/memory.current", "5\n")]), expected);
        assert_eq!(machine(&[("proc/meminfo", "MemTotal: 2000 kB\n")]), None);
        assert_eq!(machine(&[]), None, "another system");
    }

    #[test]
    fn a_containers_limit_counts_also_one_above() {
        let expected = Some(Available { bytes: 700, source: "the limit of this container leaves" });
        let version_2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "500\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 300\ninactive_file 200\n"),
        ];
        assert_eq!(machine(&version_2), expected);
        // Inside a container without a control group namespace, the path is the host's and the group is at the base.
        let version_1 = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 200\n"),
        ];
        assert_eq!(machine(&version_1), expected);
    }
}
