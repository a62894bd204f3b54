//! Graphs and events as several of the tests build them.

use crate::ok;
use emulated_cuda::abi::{CUevent, CUgraph, CUgraphExec, CUgraphNode};
use emulated_cuda::event::cuEventCreate;
use emulated_cuda::graph::{cuGraphCreate, cuGraphInstantiateWithFlags};
use emulated_cuda::node_params::{FillParams, HostParams, KernelParams};
use emulated_cuda::nodes::{cuGraphAddEventRecordNode, cuGraphAddHostNode, cuGraphAddMemsetNode};
use std::ffi::c_void;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

/// An event that takes the time.
pub fn event() -> CUevent {
    let mut event = 0;
    ok!(cuEventCreate(&mut event, 0));
    event
}

/// A graph without nodes.
pub fn graph() -> CUgraph {
    let mut graph = 0;
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

/// An instance of a graph.
pub fn executable(graph: CUgraph) -> CUgraphExec {
    let mut executable = 0;
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    executable
}

/// Parameters that set `count` values.
pub fn fill_of(to: u64, value: u32, count: usize) -> FillParams {
    FillParams { to, pitch: 0, value, element: 4, width: count, height: 1 }
}

/// A node that sets `count` values.
pub fn fill(graph: CUgraph, after: &[CUgraphNode], to: u64, value: u32, count: usize) -> CUgraphNode {
    let mut node = 0;
    ok!(cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &fill_of(to, value, count), 0));
    node
}

/// A node that records an event.
pub fn record(graph: CUgraph, after: &[CUgraphNode], event: CUevent) -> CUgraphNode {
    let mut node = 0;
    ok!(cuGraphAddEventRecordNode(&mut node, graph, after.as_ptr(), after.len(), event));
    node
}

/// A node that calls a function of the host with a number.
pub fn host(
    graph: CUgraph,
    after: &[CUgraphNode],
    function: unsafe extern "C" fn(*mut c_void),
    flag: &'static AtomicU32,
) {
    let (mut node, params) = (0, HostParams { function: Some(function), data: pointer(flag) });
    ok!(cuGraphAddHostNode(&mut node, graph, after.as_ptr(), after.len(), &params));
}

/// A number as the argument of a function of the host.
pub fn pointer(flag: &'static AtomicU32) -> *mut c_void {
    std::ptr::from_ref(flag).cast_mut().cast()
}

/// Waits until another thread has set the number behind `data`.
pub unsafe extern "C" fn wait_for(data: *mut c_void) {
    // SAFETY: the tests pass such a number, which is static.
    let flag = unsafe { &*data.cast::<AtomicU32>() };
    while flag.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}

/// Sets the number behind `data`.
pub unsafe extern "C" fn set(data: *mut c_void) {
    // SAFETY: as above.
    unsafe { &*data.cast::<AtomicU32>() }.store(1, Ordering::Release);
}

/// Arguments of the kernel `add` for four values, as pointers to each.
pub struct Arguments {
    pub values: Box<[u64; 2]>,
    pointers: [*const c_void; 2],
}

impl Arguments {
    pub fn new(address: u64) -> Self {
        let values = Box::new([address, 4]);
        let pointers = values.each_ref().map(|value| std::ptr::from_ref(value).cast());
        Self { values, pointers }
    }

    /// Parameters of a node that launches `function`.
    pub fn of(&self, function: usize) -> KernelParams {
        let params = self.pointers.as_ptr();
        KernelParams { function, grid: [1; 3], block: [4, 1, 1], shared: 0, params, extra: null() }
    }
}
