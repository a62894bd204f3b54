//! What each piece of work does when its turn has come.

use super::nodes::Nodes;
use super::random::Random;
use super::work::{UserData, Work};
use crate::abi::{CUdeviceptr, CUhostFn, CUstream, CUstreamCallback};
use crate::card::{card_of, report};
use crate::contexts::Context;
use crate::copy;
use crate::errors::{Answer, Code};
use crate::launches::Launch;
use crate::profile;
use crate::settings::settings;
use crate::spec::spec;
use std::sync::Arc;
use std::time::Instant;

/// How a piece of work ended.
pub enum Outcome {
    /// It is done.
    Done,
    /// It met a fault, which ends its context.
    Failed(Code),
    /// The rest is a function of the client.
    OnHost(Box<dyn FnOnce() + Send>),
}

impl From<Result<(), Code>> for Outcome {
    fn from(result: Result<(), Code>) -> Self {
        match result {
            Ok(()) => Outcome::Done,
            Err(code) => Outcome::Failed(code),
        }
    }
}

/// Reads `width` bytes of a card or of pinned memory.
fn value(at: CUdeviceptr, width: usize) -> Result<u64, Code> {
    let mut bytes = [0; 8];
    copy::read(at, &mut bytes[..width])?;
    Ok(u64::from_le_bytes(bytes))
}

impl Work {
    /// Whether it can start as far as it itself is concerned.
    pub fn is_ready(&self) -> bool {
        let Work::WaitValue { at, value: wanted, width, compare } = self else { return true };
        let Ok(found) = value(*at, *width) else { return true };
        let difference = if *width == 4 {
            i64::from((found as u32).wrapping_sub(*wanted as u32) as i32)
        } else {
            found.wrapping_sub(*wanted) as i64
        };
        match compare {
            0 => difference >= 0,
            1 => difference == 0,
            2 => found & wanted != 0,
            _ => !(found | wanted) & (u64::MAX >> (64 - 8 * width)) != 0,
        }
    }

    /// Does it.
    pub fn run(&self, context: &Arc<Context>) -> Outcome {
        match self {
            Work::Nothing => Outcome::Done,
            Work::Record(stamp) => {
                stamp.take();
                Outcome::Done
            }
            Work::Launch(launch) => run_kernel(launch).into(),
            Work::Copy(copy) => copy.run().into(),
            Work::Fill { to, len, rows, pitch, pattern } => fill(*to, *len, *rows, *pitch, pattern).into(),
            Work::Free(address) => match card_of(*address).map(|card| card.free(*address)) {
                Some(Ok(())) => Outcome::Done,
                _ => Outcome::Failed(Code::ILLEGAL_ADDRESS),
            },
            Work::Host(function, data) => {
                let (function, data) = (*function, *data);
                // SAFETY: the client gave the function and its argument for this call.
                Outcome::OnHost(Box::new(move || unsafe { call(function, data) }))
            }
            Work::Callback(stream, function, data) => {
                let (stream, function, data) = (*stream, *function, *data);
                // SAFETY: as above.
                Outcome::OnHost(Box::new(move || unsafe { call_back(function, stream, data) }))
            }
            Work::WaitValue { at, width, .. } => value(*at, *width).map(|_| ()).into(),
            Work::WriteValue { at, value, width } => copy::write(*at, &value.to_le_bytes()[..*width]).into(),
            Work::Graph(nodes) => run_graph(nodes, context),
            Work::RecordEvent(_) | Work::WaitEvent(_) => unreachable!("a launch queues the nodes of such a graph"),
        }
    }
}

/// What the launch checks.
fn options() -> ptx::Options {
    let set = settings();
    let checked = |name: &str| !set.checks.iter().any(|off| off == name);
    let default = ptx::Options::default();
    ptx::Options {
        uninitialised: checked("uninitialised"),
        races: checked("races"),
        global_races: checked("global_races"),
        divergent_barriers: checked("divergent_barriers"),
        partial_stores: checked("partial_stores"),
        shared_bounds: checked("shared_bounds"),
        exited_barriers: set.checks.iter().any(|on| on == "+exited_barriers"),
        seed: (set.seed != 0).then_some(set.seed),
        threads: set.threads,
        multiprocessors: spec().multiprocessors as u32,
        ..default
    }
}

/// Runs a kernel to its end, in the context that has it: a node of a graph may name another than the stream's.
fn run_kernel(launch: &Launch) -> Answer {
    let context = &launch.module.context;
    context.check()?;
    let kernel = launch.function.kernel(&launch.module);
    let given = ptx::Launch {
        grid: launch.sizes.grid,
        block: launch.sizes.block,
        cluster: launch.sizes.cluster.unwrap_or([1; 3]),
        dynamic_shared: launch.sizes.shared,
        params: &launch.params,
    };
    let start = Instant::now();
    match ptx::launch(kernel, given, &context.card().memory, &options()) {
        Ok(counts) => {
            profile::launched(launch, &counts, start.elapsed());
            Ok(())
        }
        Err(fault) => {
            let code = report(&format!("kernel '{}' on card {}", kernel.name, context.card), &fault);
            // The worker knows only the stream's context, whose work has failed too.
            context.fail(code);
            Err(code)
        }
    }
}

unsafe fn call(function: CUhostFn, data: UserData) {
    // SAFETY: the caller's.
    unsafe { function(data.0) }
}

unsafe fn call_back(function: CUstreamCallback, stream: CUstream, data: UserData) {
    // SAFETY: the caller's.
    unsafe { function(stream, 0, data.0) }
}

fn fill(to: CUdeviceptr, len: u64, rows: u64, pitch: u64, pattern: &[u8]) -> Result<(), Code> {
    (0..rows).try_for_each(|row| copy::fill(to + row * pitch, len, pattern))
}

/// Runs nodes in an order that the seed chooses among those that their edges allow.
fn run_graph(nodes: &Nodes, context: &Arc<Context>) -> Outcome {
    let mut random = Random(settings().seed);
    let mut done = vec![false; nodes.len()];
    for _ in 0..nodes.len() {
        let ready: Vec<_> = (0..nodes.len())
            .filter(|&node| !done[node] && nodes[node].after.iter().all(|&before| done[before]))
            .collect();
        let node = ready[random.below(ready.len())];
        while !nodes[node].work.is_ready() {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        match nodes[node].work.run(context) {
            Outcome::Done => {}
            Outcome::OnHost(call) => call(),
            failed => return failed,
        }
        done[node] = true;
    }
    Outcome::Done
}
