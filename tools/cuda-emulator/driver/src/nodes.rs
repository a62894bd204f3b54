//! Graphs that are made node by node.

use crate::abi::{CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUhostFn};
use crate::call::{api, out, values};
use crate::contexts::{contexts, current};
use crate::engine::work::{UserData, Work};
use crate::errors::{Answer, Code};
use crate::graph::{change, change_executable};
use crate::launch::prepare;
use crate::launches::Sizes;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// A launch as a node; the later form has two handles more.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct KernelParams {
    pub function: CUfunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub params: *const *const c_void,
    pub extra: *const *const c_void,
}

/// A launch as a node, where it may name a kernel of a library, and a context.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct KernelParamsV2 {
    pub first: KernelParams,
    pub kernel: usize,
    pub context: CUcontext,
}

/// A fill as a node.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct FillParams {
    pub to: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

/// A call of the host as a node.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct HostParams {
    pub function: Option<CUhostFn>,
    pub data: *mut c_void,
}

unsafe fn kernel(given: *const KernelParams) -> Answer<Work> {
    // SAFETY: null is refused.
    unsafe { launch(values(given, 1)?[0], 0) }
}

unsafe fn kernel_v2(given: *const KernelParamsV2) -> Answer<Work> {
    // SAFETY: as above.
    let mut given = unsafe { values(given, 1) }?[0];
    if given.first.function == 0 {
        given.first.function = given.kernel;
    }
    // SAFETY: the caller's.
    unsafe { launch(given.first, given.context) }
}

unsafe fn launch(given: KernelParams, context: CUcontext) -> Answer<Work> {
    let context = if context == 0 { current()? } else { contexts().get(context)? };
    let (grid, block) = (given.grid, given.block);
    let sizes = Sizes { grid, block, cluster: None, shared: given.shared, cooperative: false };
    // SAFETY: the client gives arguments as to a launch.
    unsafe { prepare(given.function, sizes, context.handle, given.params, given.extra) }
}

unsafe fn fill(given: *const FillParams) -> Answer<Work> {
    // SAFETY: null is refused.
    let given = unsafe { values(given, 1) }?[0];
    let element = given.element as usize;
    if ![1, 2, 4].contains(&element) || !given.to.is_multiple_of(element as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let (len, rows) = (given.width.checked_mul(element).ok_or(Code::INVALID_VALUE)?, given.height);
    let pitch = if rows > 1 { given.pitch } else { len };
    if rows == 0 || len == 0 || pitch < len {
        return Err(Code::INVALID_VALUE);
    }
    let whole = pitch.checked_mul(rows - 1).and_then(|before| before.checked_add(len));
    crate::copy::check(given.to, whole.ok_or(Code::INVALID_VALUE)?)?;
    let pattern = given.value.to_le_bytes()[..element].to_vec();
    Ok(Work::Fill { to: given.to, len: len as u64, rows: rows as u64, pitch: pitch as u64, pattern })
}

unsafe fn copy(given: *const CUDA_MEMCPY3D) -> Answer<Work> {
    // SAFETY: the caller's.
    let copy = unsafe { crate::transfer::planes(given) }?;
    copy.check()?;
    Ok(Work::Copy(Arc::new(copy)))
}

unsafe fn host(given: *const HostParams) -> Answer<Work> {
    // SAFETY: null is refused.
    let given = unsafe { values(given, 1) }?[0];
    Ok(Work::Host(given.function.ok_or(Code::INVALID_VALUE)?, UserData(given.data)))
}

/// Adds a node after those in the list.
unsafe fn add(to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, work: Work) -> Answer {
    // SAFETY: null is refused where there is a count.
    unsafe {
        let after = values(after, count)?;
        out(to, change(graph, |nodes| nodes.add(&after, work))?)
    }
}

/// Puts other work in the place of a node's.
fn replace(executable: CUgraphExec, node: CUgraphNode, work: Work) -> Answer {
    change_executable(executable, |nodes| nodes.replace(node, work))
}

#[rustfmt::skip]
api! {
    fn cuGraphAddKernelNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParams,
    ) {
        add(to, graph, after, count, kernel(params)?)
    }
    fn cuGraphAddKernelNode_v2(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParamsV2,
    ) {
        add(to, graph, after, count, kernel_v2(params)?)
    }
    fn cuGraphAddMemcpyNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMCPY3D, _context: CUcontext,
    ) {
        add(to, graph, after, count, copy(params)?)
    }
    fn cuGraphAddMemsetNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const FillParams, _context: CUcontext,
    ) {
        add(to, graph, after, count, fill(params)?)
    }
    fn cuGraphAddHostNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const HostParams,
    ) {
        add(to, graph, after, count, host(params)?)
    }
    fn cuGraphAddEmptyNode(to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize) {
        add(to, graph, after, count, Work::Nothing)
    }
    fn cuGraphAddDependencies(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize,
    ) {
        for (from, to) in values(from, count)?.into_iter().zip(values(to, count)?) {
            change(graph, |nodes| nodes.tie(from, to))?;
        }
        Ok(())
    }
    fn cuGraphExecKernelNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const KernelParams,
    ) {
        replace(executable, node, kernel(params)?)
    }
    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec, node: CUgraphNode, params: *const KernelParamsV2,
    ) {
        replace(executable, node, kernel_v2(params)?)
    }
    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D, _context: CUcontext,
    ) {
        replace(executable, node, copy(params)?)
    }
    fn cuGraphExecMemsetNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const FillParams, _context: CUcontext,
    ) {
        replace(executable, node, fill(params)?)
    }
    fn cuGraphExecHostNodeSetParams(executable: CUgraphExec, node: CUgraphNode, params: *const HostParams) {
        replace(executable, node, host(params)?)
    }
    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const KernelParams) {
        let work = kernel(params)?;
        change(crate::graph::graph_of(node)?, |nodes| nodes.replace(node, work))
    }
    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const KernelParamsV2) {
        let work = kernel_v2(params)?;
        change(crate::graph::graph_of(node)?, |nodes| nodes.replace(node, work))
    }
}
