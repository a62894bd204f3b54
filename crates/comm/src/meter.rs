//! Counts the calls, bytes and seconds of a rank's communication.

use crate::{Collective, Engine};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Add;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The traffic of a rank by group axes and call name. A communicator shares it with all groups split off from it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<Table>>);

type Table = BTreeMap<(Arc<str>, &'static str), Traffic>;

/// What a call cost a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes received from the other ranks of this machine.
    pub inside: usize,
    /// Bytes received from other machines.
    pub across: usize,
    /// Messages without tensor data that this rank sent, so that all ranks agree on the call.
    pub control: usize,
}

impl Cost {
    /// Returns the cost of receiving bytes from ranks of an engine's group; those from the rank itself cost nothing.
    pub fn received(engine: &(impl Engine + ?Sized), bytes_from: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let (me, mut cost) = (engine.rank(), Self::default());
        for (from, bytes) in bytes_from.into_iter().filter(|(from, _)| *from != me) {
            let here = engine.machine(from) == engine.machine(me);
            *(if here { &mut cost.inside } else { &mut cost.across }) += bytes;
        }
        cost
    }

    /// Returns the cost of receiving so many bytes from each other rank.
    pub fn from_each(engine: &(impl Engine + ?Sized), bytes: usize) -> Self {
        Self::received(engine, (0..engine.world_size()).map(|from| (from, bytes)))
    }

    /// Returns the bytes received from all other ranks.
    pub fn bytes(self) -> usize {
        self.inside + self.across
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        let Self { inside, across, control } = self;
        Self { inside: inside + more.inside, across: across + more.across, control: control + more.control }
    }
}

/// Calls of one collective on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of calls.
    pub calls: u64,
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// How many of these bytes came from other machines.
    pub across: u64,
    /// Messages without tensor data that this rank sent, so that all ranks agree on the calls ([`Cost::control`]).
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
        let (bytes, across, control) = (cost.bytes() as u64, cost.across as u64, cost.control as u64);
        let traffic = Traffic { calls: 1, bytes, across, control, time };
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
        self.across += more.across;
        self.control += more.control;
        self.time += more.time;
    }
}

impl fmt::Display for TrafficTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spans_machines = self.0.values().any(|traffic| traffic.across > 0);
        write!(f, "{:<16}{:>10}{:>14}{:>10}{:>12}", "collective", "calls", "MB received", "seconds", "MB/s")?;
        if spans_machines {
            write!(f, "{:>12}", "MB across")?;
        }
        for (name, traffic) in &self.0 {
            let (megabytes, seconds) = (traffic.bytes as f64 / 1e6, traffic.time.as_secs_f64());
            let speed = if seconds > 0.0 { megabytes / seconds } else { 0.0 };
            write!(f, "\n{name:<16}{:>10}{megabytes:>14.1}{seconds:>10.2}{speed:>12.0}", traffic.calls)?;
            if spans_machines {
                write!(f, "{:>12.1}", traffic.across as f64 / 1e6)?;
            }
        }
        Ok(())
    }
}
