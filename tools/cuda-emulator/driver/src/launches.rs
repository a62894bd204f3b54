//! What a launch is given, and how many of its blocks a multiprocessor holds.

use crate::abi::CUkernel;
use crate::modules::{Function, Module};
use crate::spec::{BLOCKS_PER_SM, SHARED_RESERVED, THREADS_PER_SM, spec};
use std::ffi::{c_uint, c_void};
use std::ptr::null;
use std::sync::{Arc, OnceLock};

/// A launch with its arguments, as it was checked.
pub struct Launch {
    /// The kernel.
    pub function: Arc<Function>,
    /// Its module, which stays loaded until the launch is done.
    pub module: Arc<Module>,
    /// Sizes.
    pub sizes: Sizes,
    /// The cluster that the client asked for, where `sizes` has the one that it got.
    pub asked: Option<[u32; 3]>,
    /// Bytes of its arguments.
    pub params: Vec<u8>,
    /// Whether the client gave the arguments in one buffer.
    pub packed: bool,
    /// The kernel of a library that a node names instead of one of a module; 0 if it does not.
    pub named: CUkernel,
    /// The arguments in the client's form, once it has asked for them.
    pub list: OnceLock<Vec<usize>>,
}

impl Launch {
    /// The arguments in the form that the client gave them in: a pointer to each, or one buffer. The other is null. Both
    /// live as long as the launch.
    pub fn arguments(&self) -> (*const *const c_void, *const *const c_void) {
        let kernel = self.function.kernel(&self.module);
        if kernel.params.is_empty() {
            return (null(), null());
        }
        let bytes = self.params.as_ptr().expose_provenance();
        let list = self.list.get_or_init(|| match self.packed {
            true => {
                let mut list = vec![1, bytes, 2, 0, 0, self.params.len()];
                list[3] = list[5..].as_ptr().expose_provenance();
                list
            }
            false => kernel.params.iter().map(|param| bytes + param.offset as usize).collect(),
        });
        if self.packed { (null(), list.as_ptr().cast()) } else { (list.as_ptr().cast(), null()) }
    }
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

/// Registers of a multiprocessor, and the schedulers among which it divides them and its warps.
const REGISTERS: u32 = 65_536;
const SCHEDULERS: u32 = 4;

/// Blocks of so many warps that have room if each thread has so many registers. Warps get them in steps of 256.
fn by_registers(registers: u32, warps: u32) -> u32 {
    let room = REGISTERS / (registers.max(1) * 32).next_multiple_of(256);
    room / SCHEDULERS * SCHEDULERS / warps
}

/// Blocks of `threads` threads that a multiprocessor holds at once: by threads, blocks, registers and shared memory.
pub fn blocks(function: &Function, module: &Module, threads: u32, shared: usize, _flags: c_uint) -> u32 {
    let kernel = function.kernel(module);
    if threads == 0 || threads > kernel.max_threads {
        return 0;
    }
    let warps = threads.div_ceil(32);
    // Shared memory is given out in steps of 128 bytes.
    let shared = (kernel.static_shared + SHARED_RESERVED) as usize + shared;
    let shared = shared.next_multiple_of(128);
    BLOCKS_PER_SM
        .min(THREADS_PER_SM / (warps * 32))
        .min(by_registers(function.registers(module), warps))
        .min((spec().shared_per_sm as usize / shared) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in CUDA's occupancy calculator.
    #[test]
    fn warps_that_registers_have_room_for_are_a_multiple_of_the_schedulers() {
        for (registers, threads, blocks) in [(40, 96, 16), (96, 32, 20), (32, 1024, 2), (255, 256, 1), (128, 128, 4)] {
            assert_eq!(by_registers(registers, threads / 32), blocks, "{registers} registers, {threads} threads");
        }
    }
}
