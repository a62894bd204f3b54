//! Counts the calls, bytes and seconds of a rank's communication.

use crate::Collective;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The traffic of a rank by group axes and call name. A communicator shares it with all groups split off from it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Table>>);

type Table = BTreeMap<(Arc<str>, &'static str), Traffic>;

/// The cost of a call for this rank.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Bytes received from other ranks.
    pub bytes: usize,
    /// Messages without tensor data that it sent.
    pub control: usize,
}

/// Calls of one collective on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls.
    pub calls: u64,
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// Messages without tensor data that this rank sent, so that all ranks agree on the calls
    /// ([`Engine::control_messages`](crate::Engine)).
    pub control: u64,
    /// Time spent in the calls, including waiting for others.
    pub time: Duration,
}

/// The [`Traffic`] of one rank by call name. It prints as a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrafficTable(pub BTreeMap<&'static str, Traffic>);

impl Meter {
    pub fn add(&self, axes: &Arc<str>, collective: Collective, cost: Cost, time: Duration) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let traffic = Traffic { calls: 1, bytes: cost.bytes as u64, control: cost.control as u64, time };
        table.entry((axes.clone(), collective.name())).or_default().add(traffic);
    }

    /// Returns the traffic of all groups together.
    pub fn table(&self) -> TrafficTable {
        let mut all = TrafficTable::default();
        for ((_, name), traffic) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            all.0.entry(*name).or_default().add(*traffic);
        }
        all
    }

    pub fn by_axes(&self) -> BTreeMap<String, TrafficTable> {
        let mut by_axes = BTreeMap::<String, TrafficTable>::new();
        for ((axes, name), traffic) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            by_axes.entry(axes.to_string()).or_default().0.insert(*name, *traffic);
        }
        by_axes
    }
}

impl Traffic {
    fn add(&mut self, more: Self) {
        self.calls += more.calls;
        self.bytes += more.bytes;
        self.control += more.control;
        self.time += more.time;
    }
}

impl fmt::Display for TrafficTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16}{:>10}{:>14}{:>10}{:>12}", "collective", "calls", "MB received", "seconds", "MB/s")?;
        for (name, traffic) in &self.0 {
            let (megabytes, seconds) = (traffic.bytes as f64 / 1e6, traffic.time.as_secs_f64());
            let speed = if seconds > 0.0 { megabytes / seconds } else { 0.0 };
            write!(f, "\n{name:<16}{:>10}{megabytes:>14.1}{seconds:>10.2}{speed:>12.0}", traffic.calls)?;
        }
        Ok(())
    }
}
