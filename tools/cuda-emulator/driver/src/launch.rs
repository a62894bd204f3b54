//! Launches: what is checked at the call, and how a kernel runs when its turn has come.

use crate::abi::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};
use crate::call::{api, refuse, values};
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::function::resolve as kernel_of;
use crate::launches::{Launch, Sizes, blocks, product};
use crate::modules::{Function, Module};
use crate::say::say_once;
use crate::spec::{MAX_BLOCK, MAX_GRID, SHARED_DEFAULT, spec};
use crate::streams::{Stream, resolve};
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Checks sizes against the card and the kernel.
fn check(function: &Function, kernel: &ptx::Kernel, module: &Module, sizes: &mut Sizes) -> Answer {
    let Sizes { grid, block, shared, .. } = *sizes;
    let no = |code: Code, why: String| refuse(code, &format!("launch of '{}': {why}", kernel.name));
    let fits = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(&size, most)| size > 0 && size <= most);
    if !fits(grid, MAX_GRID) {
        return no(Code::INVALID_VALUE, format!("a grid of {grid:?} blocks; each has to be from 1 to {MAX_GRID:?}"));
    }
    if !fits(block, MAX_BLOCK) || product(block) > 1024 {
        return no(Code::INVALID_VALUE, format!("a block of {block:?} threads; at most {MAX_BLOCK:?}, in all 1024"));
    }
    if product(block) > u64::from(kernel.max_threads) {
        let why = format!("{} threads a block; its PTX allows {}", product(block), kernel.max_threads);
        return no(Code::INVALID_VALUE, why);
    }
    if let Some(required) = kernel.required_block.filter(|&required| required != block) {
        return no(Code::INVALID_VALUE, format!("a block of {block:?} threads; its PTX requires {required:?}"));
    }
    // A warp's registers are given out in steps of 256.
    let registers = function.registers(module).next_multiple_of(8) * 32 * (product(block) as u32).div_ceil(32);
    if registers > 65_536 {
        let why = format!("{} registers a thread, {registers} a block; a block has 65536", function.registers(module));
        return no(Code::LAUNCH_OUT_OF_RESOURCES, why);
    }
    let most = function.dynamic_shared.load(Ordering::Relaxed) as u32;
    let default = SHARED_DEFAULT.saturating_sub(kernel.static_shared);
    if shared > most.max(default) {
        let optin = spec().shared_optin as u32 - kernel.static_shared;
        return no(
            Code::INVALID_VALUE,
            format!(
                "{shared} bytes of dynamic shared memory; {} are allowed, and cuFuncSetAttribute of \
                 MAX_DYNAMIC_SHARED_SIZE_BYTES allows up to {optin}",
                most.max(default)
            ),
        );
    }
    check_cluster(function, kernel, sizes)?;
    if sizes.cooperative {
        let resident = blocks(function, module, product(block) as u32, shared as usize, 0);
        let room = u64::from(resident) * spec().multiprocessors as u64;
        if product(grid) > room {
            let why = format!("{} blocks that have to be resident at once; {room} fit", product(grid));
            return no(Code::COOPERATIVE_LAUNCH_TOO_LARGE, why);
        }
    }
    Ok(())
}

/// Checks the cluster, and takes the kernel's own where the launch names none.
fn check_cluster(function: &Function, kernel: &ptx::Kernel, sizes: &mut Sizes) -> Answer {
    let no = |code: Code, why: String| refuse(code, &format!("launch of '{}': {why}", kernel.name));
    let set = function.cluster.each_ref().map(|size| size.load(Ordering::Relaxed) as u32);
    let own = kernel.required_cluster.or((product(set) > 0).then_some(set));
    let cluster = match (sizes.cluster, own) {
        (Some(given), Some(own)) if given != own => {
            return no(Code::INVALID_CLUSTER_SIZE, format!("a cluster of {given:?} blocks; the kernel has {own:?}"));
        }
        (given, own) => given.or(own),
    };
    sizes.cluster = cluster;
    let Some(cluster) = cluster else { return Ok(()) };
    if product(cluster) > 1 && spec().capability.0 < 9 {
        return no(Code::INVALID_CLUSTER_SIZE, "a cluster on sm_80, which has none".to_owned());
    }
    let most = if function.large_clusters.load(Ordering::Relaxed) != 0 { 16 } else { 8 };
    if product(cluster) == 0 || product(cluster) > most {
        return no(Code::INVALID_CLUSTER_SIZE, format!("a cluster of {cluster:?} blocks; {most} are allowed"));
    }
    if sizes.grid.iter().zip(cluster).any(|(&grid, cluster)| !grid.is_multiple_of(cluster)) {
        let why = format!("a grid of {:?} blocks is no multiple of the cluster of {cluster:?}", sizes.grid);
        return no(Code::INVALID_VALUE, why);
    }
    Ok(())
}

/// Takes the arguments: a pointer for each, or one buffer.
unsafe fn arguments(
    kernel: &ptx::Kernel,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Answer<Vec<u8>> {
    let mut bytes = vec![0u8; kernel.param_bytes() as usize];
    if kernel.params.is_empty() {
        return Ok(bytes);
    }
    let no = |why: String| refuse(Code::INVALID_VALUE, &format!("launch of '{}': {why}", kernel.name));
    if !extra.is_null() {
        if !params.is_null() {
            return no("arguments are given in both forms".to_owned());
        }
        // SAFETY: the client ends the list with 0.
        let (buffer, size) = unsafe { buffer(extra) }?;
        if size < bytes.len() {
            return no(format!("its argument buffer has {size} bytes; the parameters have {}", bytes.len()));
        }
        // SAFETY: the client gave this size.
        unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), bytes.len()) };
        return Ok(bytes);
    }
    if params.is_null() {
        return no(format!("no arguments are given for {} parameters", kernel.params.len()));
    }
    for (index, param) in kernel.params.iter().enumerate() {
        let (start, size) = (param.offset as usize, param.size as usize);
        // SAFETY: the client gave a pointer for each parameter, to as many bytes as it has.
        unsafe {
            let from = *params.add(index);
            if from.is_null() {
                return no(format!("the pointer to argument {index} is null"));
            }
            std::ptr::copy_nonoverlapping(from.cast(), bytes[start..start + size].as_mut_ptr(), size);
        }
    }
    Ok(bytes)
}

/// Reads the list `1, buffer, 2, &size, 0`.
unsafe fn buffer(extra: *const *const c_void) -> Answer<(*const u8, usize)> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    for index in (0..).step_by(2) {
        // SAFETY: the client ends the list with 0.
        let (key, value) = unsafe { (*extra.add(index) as usize, *extra.add(index + 1)) };
        match key {
            0 => break,
            1 => buffer = value.cast(),
            // SAFETY: the client points to a size.
            2 => size = Some(unsafe { values(value.cast::<usize>(), 1) }?[0]),
            _ => return Err(Code::INVALID_VALUE),
        }
        if !buffer.is_null() && size.is_some() {
            break;
        }
    }
    if buffer.is_null() { Err(Code::INVALID_VALUE) } else { Ok((buffer, size.ok_or(Code::INVALID_VALUE)?)) }
}

/// Checks a launch in the context of its function and takes its arguments.
///
/// # Errors
/// There is no such kernel, its context has had a fault, or the card or the kernel does not allow the sizes; stderr says
/// why.
///
/// # Safety
/// The arguments are as the API asks for.
pub unsafe fn prepare(
    function: CUfunction,
    mut sizes: Sizes,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Answer<Launch> {
    let function = kernel_of(function)?;
    let module = function.module()?;
    module.context.check()?;
    let (kernel, asked) = (function.kernel(&module), sizes.cluster);
    check(&function, kernel, &module, &mut sizes)?;
    // SAFETY: the caller's.
    let params = unsafe { arguments(kernel, params, extra) }?;
    Ok(Launch { function, module, sizes, asked, params, packed: !extra.is_null(), named: 0, list: OnceLock::new() })
}

/// Checks a launch and queues it.
unsafe fn launch(
    function: CUfunction,
    sizes: Sizes,
    stream: &Stream,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Answer {
    // SAFETY: the caller's.
    let launch = unsafe { prepare(function, sizes, params, extra) }?;
    if launch.module.context.handle != stream.context.handle {
        return refuse(Code::INVALID_HANDLE, "a kernel of one context is launched in another");
    }
    stream.submit(&[], Work::Launch(Arc::new(launch))).map(|_| ())
}

/// Reads the attributes of a launch: the cluster, and whether it is cooperative. Wishes about caches and priorities change
/// no result.
fn attribute(row: &CUlaunchAttribute, sizes: &mut Sizes) -> Answer {
    match row.id {
        // Ignored, access policy, synchronization policy, scheduling of clusters, priority, memory domain, carveout.
        0 | 1 | 3 | 5 | 8..=10 | 14 => {}
        2 => sizes.cooperative = row.value[0] != 0,
        4 => sizes.cluster = Some([row.value[0], row.value[1], row.value[2]]),
        // A kernel that may start before the one before it has ended: here it starts after it.
        6 => say_once("a launch with programmatic stream serialization starts after the work before it"),
        11 => {
            let preferred = [row.value[0], row.value[1], row.value[2]];
            say_once(&format!("the preferred cluster of {preferred:?} blocks is not taken, but the required one"));
        }
        number => return crate::call::unsupported(&format!("launch attribute {number}")),
    }
    Ok(())
}

#[rustfmt::skip]
api! {
    fn cuLaunchKernel | cuLaunchKernel_ptsz(
        default; function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
        params: *const *const c_void, extra: *const *const c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let sizes = Sizes { grid, block, cluster: None, shared, cooperative: false };
        launch(function, sizes, &*resolve(stream, default)?, params, extra)
    }
    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        default; function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
        params: *const *const c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let sizes = Sizes { grid, block, cluster: None, shared, cooperative: true };
        launch(function, sizes, &*resolve(stream, default)?, params, std::ptr::null())
    }
    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(
        default; config: *const CUlaunchConfig, function: CUfunction,
        params: *const *const c_void, extra: *const *const c_void,
    ) {
        let c = values(config, 1)?[0];
        let (grid, block) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
        let mut sizes = Sizes { grid, block, cluster: None, shared: c.sharedMemBytes, cooperative: false };
        for row in values(c.attrs, c.numAttrs as usize)? {
            attribute(&row, &mut sizes)?;
        }
        launch(function, sizes, &*resolve(c.hStream, default)?, params, extra)
    }
}
