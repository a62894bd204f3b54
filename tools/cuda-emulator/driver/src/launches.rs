//! What a launch is given, and how many of its blocks a multiprocessor holds.

use crate::modules::{Function, Module};
use crate::spec::{BLOCKS_PER_SM, SHARED_RESERVED, THREADS_PER_SM, spec};
use std::ffi::c_uint;
use std::sync::Arc;

/// A launch with its arguments, as it was checked.
pub struct Launch {
    /// The kernel.
    pub function: Arc<Function>,
    /// Its module, which stays loaded until the launch is done.
    pub module: Arc<Module>,
    /// Sizes.
    pub sizes: Sizes,
    /// Bytes of its arguments.
    pub params: Vec<u8>,
}

/// Sizes of a launch in x, y, z.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster, if the launch names it.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Whether all blocks have to be resident at once.
    pub cooperative: bool,
}

/// The product of sizes in x, y, z.
pub fn product(sizes: [u32; 3]) -> u64 {
    sizes.iter().map(|&size| u64::from(size)).product()
}

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

/// Blocks of `threads` threads that a multiprocessor holds at once: by threads, blocks, registers and shared memory.
pub fn blocks(function: &Function, module: &Module, threads: u32, shared: usize, _flags: c_uint) -> u32 {
    let kernel = function.kernel(module);
    if threads == 0 || threads > kernel.max_threads {
        return 0;
    }
    let warps = threads.div_ceil(32);
    // Registers are given out to warps in steps of 256; shared memory to blocks in steps of 128 bytes.
    let registers = (function.registers(module) * 32).next_multiple_of(256) * warps;
    let shared = (kernel.static_shared + SHARED_RESERVED) as usize + shared;
    let shared = shared.next_multiple_of(128);
    BLOCKS_PER_SM
        .min(THREADS_PER_SM / (warps * 32))
        .min(REGISTERS / registers)
        .min((spec().shared_per_sm as usize / shared) as u32)
}
