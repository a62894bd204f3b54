//! Launches: blocks run on several host threads, the warps of a block in turn.

mod atomic;
mod barrier;
mod bulk;
mod calls;
mod cells;
mod clock;
mod copies;
mod cta;
mod exchange;
mod frames;
mod machine;
mod mbarrier;
mod memory;
mod releases;
mod shared;
mod shared_access;
mod span;
mod special;
mod strong;
mod suspects;
mod tensor;
mod trace;
mod transfer;
mod undefined;
mod warp;
mod watch;
mod wgmma;
mod worker;

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::code::{Frame, Program};
use crate::fault::{Fault, FaultKind};
use crate::lanes::Row;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::options::{Counts, Launch, Options};
use cta::Cluster;
use releases::Races;
use worker::Worker;

/// Warp instructions until a host thread looks after another block.
const BUDGET: u64 = 50_000;
/// Bytes of the memory by which the blocks of a cooperative launch wait for each other.
const WORKSPACE: u64 = 256;
/// Bytes in whole numbers of which cards give out shared memory.
const SHARED_UNIT: u64 = 128;
/// How long one host thread works alone before others help.
const ALONE: Duration = Duration::from_micros(150);

/// What all of a launch has in common.
pub(crate) struct Env<'a> {
    program: &'a Program,
    constants: *const Row,
    kernel: &'a Kernel,
    function: &'a Frame,
    launch: Launch<'a>,
    /// The parameters, in words so that they are aligned.
    params: Vec<u128>,
    memory: &'a Memory,
    peers: Vec<Arc<Memory>>,
    options: &'a Options,
    /// Threads and warps of a block.
    threads: u32,
    warps: usize,
    /// Bytes of shared memory, and where its dynamic part starts.
    shared_bytes: u32,
    dynamic: u32,
    /// Memory of a cooperative launch, or 0.
    workspace: u64,
    /// What the check of global memory for races knows, if it is on.
    races: Option<Races>,
    /// Warp instructions so far, if they are limited.
    executed: AtomicU64,
    stop: AtomicBool,
}

impl Drop for Env<'_> {
    fn drop(&mut self) {
        if self.workspace != 0 {
            self.memory.free(self.workspace).ok();
        }
    }
}

// SAFETY: the pointer is to the program's constants, which nobody writes.
unsafe impl Sync for Env<'_> {}

impl<'a> Env<'a> {
    fn new(kernel: &'a Kernel, launch: Launch<'a>, memory: &'a Memory, options: &'a Options) -> Result<Self, Fault> {
        let fail =
            |what: String| Err(Fault::new(FaultKind::InvalidLaunch, format!("kernel '{}': {what}", kernel.name)));
        let Some((program, number)) = &kernel.program else { return fail("it belongs to no module".to_owned()) };
        let threads = launch.block.iter().map(|size| u64::from(*size)).product::<u64>();
        let blocks = launch.grid.iter().map(|size| u64::from(*size)).product::<u64>();
        if threads == 0 || blocks == 0 || launch.cluster.contains(&0) {
            return fail("a size of the grid, of blocks or of clusters is 0".to_owned());
        }
        if threads > u64::from(kernel.max_threads.min(1024)) {
            return fail(format!("{threads} threads a block, and {} are allowed", kernel.max_threads.min(1024)));
        }
        if let Some(required) = kernel.required_block.filter(|required| *required != launch.block) {
            return fail(format!("a block of {:?} threads, and '.reqntid' demands {required:?}", launch.block));
        }
        let mut launch = launch;
        if let Some(required) = kernel.required_cluster {
            if launch.cluster == [1; 3] {
                launch.cluster = required;
            } else if launch.cluster != required {
                return fail(format!(
                    "clusters of {:?}, and '.reqnctapercluster' demands {required:?}",
                    launch.cluster
                ));
            }
        }
        if (0..3).any(|axis| !launch.grid[axis].is_multiple_of(launch.cluster[axis])) {
            return fail(format!("a grid of {:?} is no multiple of clusters of {:?}", launch.grid, launch.cluster));
        }
        if launch.cluster.iter().product::<u32>() > 16 {
            return fail("a cluster of more than 16 blocks".to_owned());
        }
        let function = &program.functions[*number];
        if function.local as usize > warp::MOST_LOCAL {
            return fail(format!("{} bytes of local memory, and a thread has {}", function.local, warp::MOST_LOCAL));
        }
        let bytes = kernel.param_bytes() as usize;
        if launch.params.len() < bytes {
            return fail(format!("{} bytes of parameters, and it has {bytes}", launch.params.len()));
        }
        let mut params = vec![0u128; bytes.div_ceil(16)];
        for (word, bytes) in params.iter_mut().zip(launch.params[..bytes].chunks(16)) {
            let mut whole = [0; 16];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u128::from_ne_bytes(whole);
        }
        let dynamic = kernel.static_shared.next_multiple_of(program.dynamic_align.max(1));
        let mut shared_bytes = u64::from(dynamic) + u64::from(launch.dynamic_shared);
        if !options.shared_bounds {
            shared_bytes = shared_bytes.next_multiple_of(SHARED_UNIT);
        }
        if shared_bytes > 1 << 20 {
            return fail(format!("{shared_bytes} bytes of shared memory"));
        }
        let mut workspace = 0;
        if program.workspace {
            workspace = match memory.alloc(WORKSPACE, 256, "a cooperative launch") {
                Ok(address) => address,
                Err(error) => return fail(error.to_string()),
            };
            memory.fill(workspace, WORKSPACE, &[0])?;
        }
        let warps = threads.div_ceil(32);
        let peers = memory.peers();
        let watched = options.global_races || options.races && launch.cluster != [1; 3];
        let races = if watched && warps * blocks > 1 { Races::begin(blocks, memory, &peers) } else { None };
        Ok(Self {
            workspace,
            races,
            program,
            constants: program.constants.as_ptr(),
            kernel,
            function,
            launch,
            params,
            memory,
            peers,
            options,
            threads: threads as u32,
            warps: warps as usize,
            shared_bytes: shared_bytes as u32,
            dynamic,
            executed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    fn params(&self) -> &[u8] {
        let bytes = self.kernel.param_bytes() as usize;
        // SAFETY: as many bytes are there, and `u8` has no alignment.
        unsafe { std::slice::from_raw_parts(self.params.as_ptr().cast(), bytes) }
    }

    /// Index of a thread from its number in the block.
    fn thread(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        [number % x, number / x % y, number / x / y]
    }

    /// Index of a block from its number in the grid.
    fn block(&self, number: u64) -> [u32; 3] {
        let [x, y] = [0, 1].map(|axis| u64::from(self.launch.grid[axis]));
        [number % x, number / x % y, number / x / y].map(|at| at as u32)
    }

    /// Serial number of a block, for traces of its accesses.
    fn serial(&self, [x, y, z]: [u32; 3]) -> u64 {
        let [gx, gy] = [0, 1].map(|axis| u64::from(self.launch.grid[axis]));
        let number = u64::from(x) + gx * (u64::from(y) + gy * u64::from(z));
        self.races.as_ref().map_or(0, |races| races.serial(number))
    }

    /// Counts instructions against the limit.
    fn count(&self, instructions: u64) -> Result<(), Fault> {
        let limit = self.options.limit;
        if limit != 0 && self.executed.fetch_add(instructions, Relaxed) + instructions > limit {
            let what = format!("kernel '{}' has executed more than {limit} warp instructions", self.kernel.name);
            return Err(Fault::new(FaultKind::Limit, what).advice("look for a loop without end, or raise the limit"));
        }
        Ok(())
    }

    fn clusters(&self) -> u64 {
        (0..3).map(|axis| u64::from(self.launch.grid[axis] / self.launch.cluster[axis])).product()
    }

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
