//! What all of a launch has in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::releases::Races;
use super::warp::MOST_LOCAL;
use crate::code::{Frame, Program};
use crate::fault::{Fault, FaultKind};
use crate::lanes::Row;
use crate::memory::Memory;
use crate::module::Kernel;
use crate::options::{Launch, Options};

/// Bytes of the memory by which the blocks of a cooperative launch wait for each other.
const WORKSPACE: u64 = 256;
/// Bytes in whole numbers of which cards give out shared memory.
const SHARED_UNIT: u64 = 128;

/// What all of a launch has in common.
pub(super) struct Env<'a> {
    pub program: &'a Program,
    pub constants: *const Row,
    pub kernel: &'a Kernel,
    pub function: &'a Frame,
    pub launch: Launch<'a>,
    /// The parameters, in words so that they are aligned.
    pub params: Vec<u128>,
    pub memory: &'a Memory,
    pub peers: Vec<Arc<Memory>>,
    pub options: &'a Options,
    /// Threads and warps of a block.
    pub threads: u32,
    pub warps: usize,
    /// Bytes of shared memory, and where its dynamic part starts.
    pub shared_bytes: u32,
    pub dynamic: u32,
    /// Memory of a cooperative launch, or 0.
    pub workspace: u64,
    /// What the check of global memory for races knows, if it is on.
    pub races: Option<Races>,
    /// Warp instructions so far, if they are limited.
    pub executed: AtomicU64,
    pub stop: AtomicBool,
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
    pub fn new(
        kernel: &'a Kernel,
        launch: Launch<'a>,
        memory: &'a Memory,
        options: &'a Options,
    ) -> Result<Self, Fault> {
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
        if function.local as usize > MOST_LOCAL {
            return fail(format!("{} bytes of local memory, and a thread has {}", function.local, MOST_LOCAL));
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

    pub fn params(&self) -> &[u8] {
        let bytes = self.kernel.param_bytes() as usize;
        // SAFETY: as many bytes are there, and `u8` has no alignment.
        unsafe { std::slice::from_raw_parts(self.params.as_ptr().cast(), bytes) }
    }

    /// Index of a thread from its number in the block.
    pub fn thread(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        [number % x, number / x % y, number / x / y]
    }

    /// Index of a block from its number in the grid.
    pub fn block(&self, number: u64) -> [u32; 3] {
        let [x, y] = [0, 1].map(|axis| u64::from(self.launch.grid[axis]));
        [number % x, number / x % y, number / x / y].map(|at| at as u32)
    }

    /// Serial number of a block, for traces of its accesses.
    pub fn serial(&self, [x, y, z]: [u32; 3]) -> u64 {
        let [gx, gy] = [0, 1].map(|axis| u64::from(self.launch.grid[axis]));
        let number = u64::from(x) + gx * (u64::from(y) + gy * u64::from(z));
        self.races.as_ref().map_or(0, |races| races.serial(number))
    }

    /// Counts instructions against the limit.
    pub fn count(&self, instructions: u64) -> Result<(), Fault> {
        let limit = self.options.limit;
        if limit != 0 && self.executed.fetch_add(instructions, Relaxed) + instructions > limit {
            let what = format!("kernel '{}' has executed more than {limit} warp instructions", self.kernel.name);
            return Err(Fault::new(FaultKind::Limit, what).advice("look for a loop without end, or raise the limit"));
        }
        Ok(())
    }

    pub fn clusters(&self) -> u64 {
        (0..3).map(|axis| u64::from(self.launch.grid[axis] / self.launch.cluster[axis])).product()
    }
}
