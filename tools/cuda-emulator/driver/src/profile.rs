//! A table of what the kernels of a process did, and a model of the time that a card would take.
//!
//! # Model of time
//!
//! Nothing is measured. For each launch the model takes the largest of three terms:
//!
//! * memory: 32 bytes for each sector that a warp asks for, by the card's bandwidth. It takes every sector from memory,
//!   so a kernel that finds much in the caches can be faster;
//! * tensor cores: their operations by the card's dense peak for the type of their operands;
//! * instructions: warp instructions of PTX by four a cycle on each multiprocessor.
//!
//! The last two count only as many multiprocessors as there are blocks. Latencies, waits, bank conflicts and launches
//! are not in the model, so a card takes longer than the term of tensor cores, and longer than that of memory but for
//! the caches. The term of instructions is no such bound: `ptxas` removes many of those that PTX has, such as `mov`, `cvta`
//! and `ld.param`, and adds others.

use crate::launches::Launch;
use crate::settings::settings;
use crate::spec::{Spec, spec};
use ptx::{Class, Counts, Rate};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Times that the host waited for a card.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// Copies and their bytes: to a card, from a card, on cards.
static COPIES: [[AtomicU64; 2]; 3] = [const { [const { AtomicU64::new(0) }; 2] }; 3];
static ROWS: Mutex<BTreeMap<String, Row>> = Mutex::new(BTreeMap::new());

/// Sums of a kernel's launches.
#[derive(Default)]
struct Row {
    launches: u64,
    counts: Counts,
    host: Duration,
    /// Seconds of the model, and of its terms: memory, tensor cores, instructions.
    model: f64,
    terms: [f64; 3],
    /// Of the last launch: threads of a block, bytes of shared memory, registers, blocks that a multiprocessor holds.
    block: u64,
    shared: u32,
    registers: Option<u32>,
    spilled: u32,
    resident: u32,
}

/// Bytes a second of memory, and dense operations a second of tensor cores by [`Rate`].
fn peaks(spec: &Spec) -> (f64, [f64; Rate::ALL.len()]) {
    match spec.capability.0 {
        8 => (2.039e12, [19.5e12, 156e12, 312e12, 624e12, 1248e12]),
        // Integers of 4 bits have no rate of their own.
        _ => (3.352e12, [66.9e12, 494.7e12, 989.4e12, 1978.9e12, 1978.9e12]),
    }
}

/// Seconds of the terms of the model.
fn terms(spec: &Spec, counts: &Counts, blocks: u64) -> [f64; 3] {
    let (bandwidth, flops) = peaks(spec);
    let multiprocessors = f64::from(spec.multiprocessors);
    let share = (blocks as f64 / multiprocessors).min(1.0);
    let issued = 4.0 * multiprocessors * f64::from(spec.clocks.0) * 1e3;
    [
        counts.sectors as f64 * 32.0 / bandwidth,
        counts.tensor_flops.iter().zip(flops).map(|(&count, rate)| count as f64 / (rate * share)).sum(),
        counts.total() as f64 / (issued * share),
    ]
}

/// Counts a wait of the host, asked for or, as in a free, part of another call.
pub fn waited() {
    WAITS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a copy.
pub fn copied(from_host: bool, to_host: bool, bytes: usize) {
    let [count, sum] = match (from_host, to_host) {
        (true, false) => &COPIES[0],
        (false, true) => &COPIES[1],
        (false, false) => &COPIES[2],
        (true, true) => return,
    };
    count.fetch_add(1, Ordering::Relaxed);
    sum.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Counts a launch that took `host` on this machine.
pub fn launched(launch: &Launch, counts: &Counts, host: Duration) {
    if settings().profile.is_none() {
        return;
    }
    let kernel = launch.function.kernel(&launch.module);
    let product = |sizes: [u32; 3]| sizes.iter().map(|&size| u64::from(size)).product::<u64>();
    let threads = product(launch.sizes.block);
    let terms = terms(spec(), counts, product(launch.sizes.grid));
    let resources = launch.function.resources(&launch.module);
    let mut rows = ROWS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let row = rows.entry(kernel.name.clone()).or_default();
    row.launches += 1;
    row.counts.add(counts);
    row.host += host;
    row.model += terms.iter().copied().fold(0.0, f64::max);
    row.terms.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
    row.block = threads;
    row.shared = kernel.static_shared + launch.sizes.shared;
    row.registers = resources.map(|found| found.registers);
    row.spilled = resources.map_or(0, |found| found.spilled.0 + found.spilled.1);
    let shared = launch.sizes.shared as usize;
    row.resident = crate::launches::blocks(&launch.function, &launch.module, threads as u32, shared, 0);
}

/// The table of all kernels, those that the model gives most time first.
pub fn table() -> String {
    let rows = ROWS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by(|a, b| b.1.model.total_cmp(&a.1.model));
    let mut text = format!("# Emulated {}: counts are exact, times are a model's (not measured)\n", spec().name);
    let classes: Vec<_> = Class::ALL.iter().map(|class| format!("{class:?}").to_lowercase()).collect();
    let _ = writeln!(
        text,
        "model_us\tlimit\tlaunches\tinstructions\tmma_flop\tread_bytes\twritten_bytes\tsectors\tsectors_per_request\t\
         bank_conflicts\tdiverged\tthreads\tshared_bytes\tregisters\tspill_bytes\tblocks_per_sm\thost_ms\t{}\tkernel",
        classes.join("\t")
    );
    for (name, row) in &sorted {
        let c = &row.counts;
        let limits = ["memory", "tensor", "issue"];
        let most = (0..3).max_by(|&a, &b| row.terms[a].total_cmp(&row.terms[b])).unwrap_or(0);
        // Requests of warps: loads, stores and atomics of global memory.
        let requests = c.instructions[Class::Global as usize] + c.instructions[Class::Atomic as usize];
        let per_request = match requests {
            0 => "-".to_owned(),
            _ => format!("{:.1}", c.sectors as f64 / requests as f64),
        };
        let registers = row.registers.map_or("-".to_owned(), |registers| registers.to_string());
        let by_class: Vec<_> = c.instructions.iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "{:.2}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{per_request}\t{}\t{:.2}\t{}\t{}\t{registers}\t{}\t{}\t{:.1}\t{}\t{name}",
            row.model * 1e6,
            limits[most],
            row.launches,
            c.total(),
            c.total_tensor_flops(),
            c.global_read,
            c.global_written,
            c.sectors,
            c.bank_conflicts,
            c.diverged as f64 / c.total().max(1) as f64,
            row.block,
            row.shared,
            row.spilled,
            row.resident,
            row.host.as_secs_f64() * 1e3,
            by_class.join("\t"),
        );
    }
    let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let launches: u64 = sorted.iter().map(|row| row.1.launches).sum();
    let model: f64 = sorted.iter().map(|row| row.1.model).sum();
    let _ = writeln!(
        text,
        "# {launches} launches, {:.2} us by the model; the host waited {} times",
        model * 1e6,
        load(&WAITS)
    );
    for (name, [count, bytes]) in ["to a card", "from a card", "on cards"].iter().zip(&COPIES) {
        let _ = writeln!(text, "# copies {name}: {}, {} bytes", load(count), load(bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_takes_the_largest_term_and_idle_multiprocessors_do_nothing() {
        let spec = spec();
        let mut counts = Counts { sectors: 1_000_000, ..Counts::default() };
        let [memory, tensor, issue] = terms(spec, &counts, 1);
        assert!((memory - 32e6 / peaks(spec).0).abs() < 1e-12);
        assert_eq!((tensor, issue), (0.0, 0.0));
        counts.instructions[0] = 1_000_000;
        let tensor = |rate: Rate| {
            let mut counts = Counts::default();
            counts.tensor_flops[rate as usize] = 1 << 40;
            terms(spec, &counts, 10_000)[1]
        };
        assert!((tensor(Rate::Tf32) / tensor(Rate::Half) - 2.0).abs() < 1e-3);
        assert!((tensor(Rate::Half) / tensor(Rate::Byte) - 2.0).abs() < 1e-3);
        assert!(terms(spec, &counts, 1)[2] > 50.0 * terms(spec, &counts, 10_000)[2]);
    }
}
