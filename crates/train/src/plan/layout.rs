//! The layout table: the process groups, the resident bytes per rank that each shards, and the traffic of a step.

#[cfg(test)]
mod tests;

use crate::config::Config;
use crate::format::bytes;
use crate::plan::units::units;
use crate::plan::workload::workload;
use burn::tensor::Device;
use fsdp::{Share, SharesRun, Strategy};
use model::{ExpertLoads, Parallel};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What the ranks of a run shard and exchange, derived from shapes alone. If ranks differ, each figure is the largest
/// of any rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct LayoutTable(Vec<Row>);

/// A process group; if there are several, the last row adds them up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    /// Axes of the mesh, by their configuration names.
    over: String,
    ranks: usize,
    /// Bytes of parameters and optimizer moments.
    at_rest: usize,
    /// Bytes received in a step, by collective.
    received: BTreeMap<&'static str, usize>,
}

impl LayoutTable {
    /// Computes the table, assuming full micro-batches and balanced experts. It is empty for one rank.
    pub fn new(config: &Config) -> Self {
        let (mut rows, mut all) = (vec![], vec![]);
        for shares in shares(config, &different_ranks(config)) {
            let mut sum =
                Row { over: "all".into(), ranks: config.parallel.gpus, at_rest: 0, received: BTreeMap::new() };
            for Share { axes, ranks, at_rest, received } in shares {
                sum.combine(at_rest, &received, |sum, bytes| sum + bytes);
                most(&mut rows, Row { over: axes, ranks, at_rest, received });
            }
            most(&mut all, sum);
        }
        if rows.len() > 1 {
            rows.append(&mut all);
        }
        Self(rows)
    }

    /// Whether there is only one rank.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A rank of each stage; under `block`, every rank.
pub(crate) fn different_ranks(config: &Config) -> Vec<usize> {
    let parallel = &config.parallel;
    match parallel.strategy {
        Strategy::Block => (0..parallel.gpus).collect(),
        // Ranks of a stage differ only by parts that do not divide evenly; the last one has the largest.
        _ => (1..=parallel.pp).map(|stage| stage * (parallel.gpus / parallel.pp) - 1).collect(),
    }
}

/// Adds a row, or merges it into the row of the same group by taking the larger figures.
fn most(rows: &mut Vec<Row>, row: Row) {
    match rows.iter_mut().find(|other| other.over == row.over) {
        Some(other) => other.combine(row.at_rest, &row.received, usize::max),
        None => rows.push(row),
    }
}

impl Row {
    fn combine(&mut self, at_rest: usize, received: &BTreeMap<&'static str, usize>, how: fn(usize, usize) -> usize) {
        self.at_rest = how(self.at_rest, at_rest);
        for (collective, bytes) in received {
            let own = self.received.entry(collective).or_default();
            *own = how(*own, *bytes);
        }
    }
}

/// The shares of each of some ranks.
pub(crate) fn shares(config: &Config, ranks: &[usize]) -> Vec<Vec<Share>> {
    let units = units(config, &ExpertLoads::new(config.moe.as_ref()), &Parallel::default(), &Device::flex());
    let workload = workload(config, ranks[0]);
    let calls = config.family().traffic(&workload);
    let micro_batches = config.micro_batches();
    let (world_size, on_cpu) = (config.parallel.gpus, workload.on_cpu);
    let run = SharesRun { world_size, ranks, micro_batches, calls: &calls, on_cpu };
    units.shares(&config.fsdp(), run).expect("the configuration is validated")
}

impl fmt::Display for LayoutTable {
    /// Writes one line per group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|row| row.over.len()).max().unwrap_or(0).max("process group".len());
        write!(f, "{:<width$}{:>8}{:>19}   received per step", "process group", "ranks", "resident per rank")?;
        for Row { over, ranks, at_rest, received } in &self.0 {
            let resident = if *at_rest > 0 { bytes(*at_rest) } else { "-".into() };
            let received: Vec<_> = received.iter().map(|(name, count)| format!("{name} {}", bytes(*count))).collect();
            write!(f, "\n{over:<width$}{ranks:>8}{resident:>19}   {}", received.join(", "))?;
        }
        Ok(())
    }
}
