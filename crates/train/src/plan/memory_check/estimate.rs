//! The memory estimate shown at the start of a run that fits.

use super::available::{self, Available};
use super::need::{self, Machine, Need, Pool};
use super::{gb, table};
use crate::config::Config;
use crate::host::device::Devices;
use crate::host::launch::Launch;

/// The need of the memory that a run fills most.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    need: Need,
    /// `None` if the amount of memory is unknown.
    has: Option<Available>,
}

impl Estimate {
    /// Estimates the row length that needs the most.
    pub fn new(config: &Config, launch: &Launch, devices: &Devices) -> Self {
        let ranks = launch.ranks_here(config.parallel.gpus);
        let machine = Machine { ranks, devices: devices.distinct, threads: launch.processes().is_none() };
        let estimate = |need: Need| {
            let has = match need.pool {
                Pool::Host => available::of_host(),
                Pool::Device => available::of_devices(devices),
            };
            Self { need, has }
        };
        let all = config.by_length().into_iter().flat_map(|config| need::of_run(&config, machine)).map(estimate);
        all.max_by(|a, b| a.share().total_cmp(&b.share())).expect("a run needs memory")
    }

    /// Fraction of the available memory. If that is unknown, a negative value that orders needs and stays below any
    /// fraction.
    fn share(&self) -> f64 {
        let needed = self.need.of_all.total();
        self.has.as_ref().map_or(-1.0 / needed, |has| needed / has.bytes as f64)
    }

    /// `about 0.16 GB per rank, 0.42 GB in all; this machine has 12.1 GB`.
    pub fn line(&self) -> String {
        let Need { ranks, of_rank, of_all, .. } = &self.need;
        let all = if *ranks > 1 { format!(" per rank, {} in all", gb(of_all.total())) } else { String::new() };
        let has = self.has.as_ref().map(|has| format!("; {} {}", has.source, gb(has.bytes as f64)));
        format!("about {}{all}{}", gb(of_rank.total()), has.unwrap_or_default())
    }

    /// The breakdown in GB, per rank and for all ranks that share the memory.
    pub fn table(&self) -> String {
        table(&self.need)
    }
}
