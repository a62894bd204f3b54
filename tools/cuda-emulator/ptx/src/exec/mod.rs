//! Launches: blocks run on several host threads, the warps of a block in turn.

mod access;
mod atomic;
mod barrier;
mod bulk;
mod calls;
mod cells;
mod clock;
mod copies;
mod cta;
mod env;
mod exchange;
mod frames;
mod machine;
mod mbarrier;
mod memory;
mod pending;
mod phase;
mod products;
mod releases;
mod run;
mod shared;
mod shared_access;
mod span;
mod special;
mod strong;
mod suspects;
mod tensor;
mod trace;
mod transfer;
mod turns;
mod undefined;
mod unwritten;
mod warp;
mod watch;
mod wgmma;
mod worker;

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::options::{Counts, Launch, Options};
use cta::Cluster;
use env::Env;
use worker::Worker;

/// Warp instructions until a host thread looks after another block.
const BUDGET: u64 = 50_000;
/// How long one host thread works alone before others help.
const ALONE: Duration = Duration::from_micros(150);

impl Env<'_> {
    /// Runs clusters until there are none left, or until `until`; their counts.
    fn work(&self, worker: &mut Worker, next: &AtomicU64, until: Option<Instant>) -> Result<bool, Fault> {
        let all = self.clusters();
        let (mut open, mut idle): (VecDeque<Cluster>, Vec<Cluster>) = (VecDeque::new(), Vec::new());
        loop {
            if self.stop.load(Relaxed) {
                return Ok(true);
            }
            if open.is_empty() && until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            // A block that runs long may wait for one that has not begun: so begin others meanwhile.
            let number = if next.load(Relaxed) < all { next.fetch_add(1, Relaxed) } else { all };
            let mut cluster = if number < all {
                match idle.pop() {
                    Some(mut cluster) => {
                        cluster.reuse(self, number);
                        cluster
                    }
                    None => Cluster::new(self, number),
                }
            } else {
                match open.pop_front() {
                    Some(cluster) => cluster,
                    None => return Ok(true),
                }
            };
            loop {
                let budget = if self.clusters() == 1 { u64::MAX / 2 } else { BUDGET * (1 + open.len() as u64 / 8) };
                if cluster.run(self, worker, budget)? {
                    idle.push(cluster);
                    break;
                }
                if self.stop.load(Relaxed) {
                    return Ok(true);
                }
                let enough = open.len() > 64 || next.load(Relaxed) >= all;
                if enough && let Some(other) = open.pop_front() {
                    open.push_back(cluster);
                    cluster = other;
                    continue;
                }
                open.push_back(cluster);
                break;
            }
        }
    }
}

/// Runs a kernel to its end.
///
/// # Errors
///
/// The first [`Fault`] that any thread meets.
pub fn launch(kernel: &Kernel, launch: Launch<'_>, memory: &Memory, options: &Options) -> Result<Counts, Fault> {
    let env = Env::new(kernel, launch, memory, options)?;
    let next = AtomicU64::new(0);
    let seed = |thread: u64| options.seed.unwrap_or(0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (thread << 32 | 1) << 1;
    let mut first = Worker::new(seed(0));
    let threads = match options.threads {
        0 => thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    let clusters = env.clusters();
    let threads = (threads as u64).min(clusters) as usize;
    let until = (threads > 1).then(|| Instant::now() + ALONE);
    if env.work(&mut first, &next, until)? {
        return Ok(first.counts);
    }
    let result = Mutex::new(Ok(first.counts.clone()));
    first.counts = Counts::default();
    let help = |mut worker: Worker| {
        let done = env.work(&mut worker, &next, None);
        let mut result = result.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (&mut *result, done) {
            (Ok(counts), Ok(_)) => counts.add(&worker.counts),
            (Ok(_), Err(fault)) => {
                env.stop.store(true, Relaxed);
                *result = Err(fault);
            }
            (Err(_), _) => {}
        }
    };
    thread::scope(|scope| {
        for number in 1..threads {
            let help = &help;
            scope.spawn(move || help(Worker::new(seed(number as u64))));
        }
        help(first);
    });
    result.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
