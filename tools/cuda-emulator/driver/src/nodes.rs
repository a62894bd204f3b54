//! The functions that make, change and destroy the nodes of graphs.

use crate::abi::{CUDA_MEMCPY3D, CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphNode};
use crate::call::{api, out, values};
use crate::captures::forbid_graph;
use crate::edges::{CUgraphEdgeData, check_plain};
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::graph::{change, change_executable, graph_of, nodes_of};
use crate::node_params::{FillParams, HostParams, KernelParams, KernelParamsV2, NodeParams, read, record, wait};

/// Adds a node after those in the list.
unsafe fn add(to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, work: Work) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: null is refused where there is a count.
    unsafe {
        let after = values(after, count)?;
        out(to, change(graph, |nodes| nodes.add(&after, work))?)
    }
}

/// Makes the work of a node anew.
fn replace(node: CUgraphNode, make: impl FnOnce(&Work) -> Answer<Work>) -> Answer {
    change(graph_of(node)?, |nodes| nodes.replace(node, make))
}

/// Makes the work of a node anew in an executable graph.
fn replace_in(executable: CUgraphExec, node: CUgraphNode, make: impl FnOnce(&Work) -> Answer<Work>) -> Answer {
    change_executable(executable, |nodes| nodes.replace(node, make))
}

/// Writes the parameters of a node, if it is of their kind.
unsafe fn show<P>(node: CUgraphNode, to: *mut P, of: impl FnOnce(&Work) -> Option<P>) -> Answer {
    let nodes = nodes_of(graph_of(node)?)?;
    let params = of(&nodes[nodes.index(node)?].work).ok_or(Code::INVALID_VALUE)?;
    // SAFETY: null is refused.
    unsafe { out(to, params) }
}

#[rustfmt::skip]
api! {
    fn cuGraphAddKernelNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParams,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddKernelNode_v2(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const KernelParamsV2,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddMemcpyNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMCPY3D, _context: CUcontext,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddMemsetNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize,
        params: *const FillParams, _context: CUcontext,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddHostNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *const HostParams,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddEmptyNode(to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize) {
        add(to, graph, after, count, Work::Nothing)
    }
    fn cuGraphAddEventRecordNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent,
    ) {
        add(to, graph, after, count, record(event)?)
    }
    fn cuGraphAddEventWaitNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, event: CUevent,
    ) {
        add(to, graph, after, count, wait(event)?)
    }
    fn cuGraphAddNode(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize, params: *mut NodeParams,
    ) {
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphAddNode_v2(
        to: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize,
        params: *mut NodeParams,
    ) {
        check_plain(data, count)?;
        add(to, graph, after, count, read(params, None)?)
    }
    fn cuGraphDestroyNode(node: CUgraphNode) {
        let graph = graph_of(node)?;
        forbid_graph(graph, "cuGraphDestroyNode")?;
        change(graph, |nodes| nodes.remove(node))
    }
    fn cuGraphExecKernelNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const KernelParams,
    ) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec, node: CUgraphNode, params: *const KernelParamsV2,
    ) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D, _context: CUcontext,
    ) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphExecMemsetNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: *const FillParams, _context: CUcontext,
    ) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphExecHostNodeSetParams(executable: CUgraphExec, node: CUgraphNode, params: *const HostParams) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphExecEventRecordNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        replace_in(executable, node, |_| record(event))
    }
    fn cuGraphExecEventWaitNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        replace_in(executable, node, |_| wait(event))
    }
    fn cuGraphExecNodeSetParams(executable: CUgraphExec, node: CUgraphNode, params: *mut NodeParams) {
        replace_in(executable, node, |old| read(params, Some(old)))
    }
    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const KernelParams) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const KernelParamsV2) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMCPY3D) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const FillParams) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: *const HostParams) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) {
        replace(node, |_| record(event))
    }
    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) {
        replace(node, |_| wait(event))
    }
    fn cuGraphNodeSetParams(node: CUgraphNode, params: *mut NodeParams) {
        replace(node, |old| read(params, Some(old)))
    }
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, to: *mut KernelParams) {
        show(node, to, KernelParams::of)
    }
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, to: *mut KernelParamsV2) {
        show(node, to, KernelParamsV2::of)
    }
    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, to: *mut FillParams) {
        show(node, to, FillParams::of)
    }
    fn cuGraphHostNodeGetParams(node: CUgraphNode, to: *mut HostParams) {
        show(node, to, HostParams::of)
    }
    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, to: *mut CUevent) {
        show(node, to, |work| match work {
            Work::RecordEvent(event) => Some(*event),
            _ => None,
        })
    }
    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, to: *mut CUevent) {
        show(node, to, |work| match work {
            Work::WaitEvent(event) => Some(*event),
            _ => None,
        })
    }
}
