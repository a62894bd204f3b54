//! The time of what GPUs offload to their node's CPUs.

use crate::{Cluster, Link};
use serde::{Deserialize, Serialize};

/// Rates between the GPUs of a node and its CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// From each device to the CPU's memory.
    pub link: Link,
    /// Bytes per second between the node's CPUs and their memory, which all its ranks share.
    pub memory_bandwidth: f64,
}

impl Offload {
    /// Returns the seconds in which a rank sends `sent` bytes over its link, and the CPU reads and writes `touched` bytes
    /// for it before or after that, in a run with so many ranks. What the link itself reads and writes in the CPU's
    /// memory is left out.
    ///
    /// ```text
    /// latency + sent / link + touched x ranks of the node / memory_bandwidth
    /// ```
    pub fn seconds(&self, sent: f64, touched: f64, ranks: usize, cluster: &Cluster) -> f64 {
        let sharing = ranks.min(cluster.devices_per_node) as f64;
        let sends = if sent > 0.0 { self.link.latency + sent / self.link.bandwidth } else { 0.0 };
        sends + touched * sharing / self.memory_bandwidth
    }
}
