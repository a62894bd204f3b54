//! The functions that ask how many blocks of a kernel a multiprocessor holds.

use crate::abi::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize};
use crate::call::{api, out, values};
use crate::errors::{Answer, Code};
use crate::function::resolve;
use crate::launches::blocks;
use crate::spec::{SHARED_RESERVED, spec};
use std::ffi::{c_int, c_uint};

unsafe fn suggest(
    grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    by_block: Option<CUoccupancyB2DSize>,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Answer {
    let function = resolve(function)?;
    let module = function.module()?;
    let most = function.kernel(&module).max_threads;
    let most = if limit > 0 { most.min(limit as u32) } else { most };
    let mut best = (0, 0, 0);
    // From large blocks to small ones, so that of equals the larger stays.
    for threads in (1..=most.div_ceil(32)).rev().map(|warps| (warps * 32).min(most)) {
        // SAFETY: the client's function, called as the API says.
        let shared = by_block.map_or(shared, |size| unsafe { size(threads as c_int) });
        let blocks = blocks(&function, &module, threads, shared, flags);
        if blocks * threads > best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    // SAFETY: checked for null.
    unsafe {
        out(grid, best.2 as c_int * spec().multiprocessors)?;
        out(block, best.1 as c_int)
    }
}

unsafe fn active(to: *mut c_int, function: CUfunction, threads: c_int, shared: usize, flags: c_uint) -> Answer {
    let function = resolve(function)?;
    let threads = u32::try_from(threads).map_err(|_| Code::INVALID_VALUE)?;
    // SAFETY: checked for null.
    unsafe { out(to, blocks(&function, &*function.module()?, threads, shared, flags) as c_int) }
}

api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut c_int, function: CUfunction, threads: c_int, shared: usize,
    ) {
        active(to, function, threads, shared, 0)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        to: *mut c_int, function: CUfunction, threads: c_int, shared: usize, flags: c_uint,
    ) {
        active(to, function, threads, shared, flags)
    }
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int, block: *mut c_int, function: CUfunction,
        by_block: Option<CUoccupancyB2DSize>, shared: usize, limit: c_int,
    ) {
        suggest(grid, block, function, by_block, shared, limit, 0)
    }
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int, block: *mut c_int, function: CUfunction,
        by_block: Option<CUoccupancyB2DSize>, shared: usize, limit: c_int, flags: c_uint,
    ) {
        suggest(grid, block, function, by_block, shared, limit, flags)
    }
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        to: *mut usize, function: CUfunction, count: c_int, _threads: c_int,
    ) {
        let function = resolve(function)?;
        let module = function.module()?;
        if count <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        let own = function.kernel(&module).static_shared as usize;
        let share = spec().shared_per_sm as usize / count as usize / 128 * 128;
        out(to, share.saturating_sub(SHARED_RESERVED as usize).min(spec().shared_optin as usize).saturating_sub(own))
    }
    fn cuOccupancyMaxActiveClusters(to: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) {
        let (function, config) = (resolve(function)?, values(config, 1)?[0]);
        let threads = config.blockDimX * config.blockDimY * config.blockDimZ;
        let attributes = values(config.attrs, config.numAttrs as usize)?;
        let cluster = attributes.iter().find(|row| row.id == 4).map_or(1, |row| row.value[..3].iter().product::<u32>());
        let blocks = blocks(&function, &*function.module()?, threads, config.sharedMemBytes as usize, 0);
        out(to, (blocks * spec().multiprocessors as u32 / cluster.max(1)) as c_int)
    }
    fn cuOccupancyMaxPotentialClusterSize(to: *mut c_int, function: CUfunction, _config: *const CUlaunchConfig) {
        let function = resolve(function)?;
        out(to, if function.attribute(14)? != 0 { 16 } else { 8 })
    }
}
