//! The driver as a program uses it: through the functions of the API alone.

mod capture;
mod capture_to_graph;
mod common;
mod graph_contexts;
mod graph_events;
mod graph_nodes;
mod graph_threads;
mod kernels;
mod memory;
mod streams;
mod virtual_memory;

use emulated_cuda::abi::{CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use emulated_cuda::context::cuFlushGPUDirectRDMAWrites;
use emulated_cuda::context::{cuCtxCreate_v2, cuCtxDestroy_v2, cuCtxSynchronize};
use emulated_cuda::device::{cuDeviceCanAccessPeer, cuDeviceGetAttribute, cuDeviceGetProperties, cuInit};
use emulated_cuda::event::{cuEventCreate, cuEventRecord};
use emulated_cuda::host::cuMemAllocHost_v2;
use emulated_cuda::launch::cuLaunchKernel;
use emulated_cuda::memory::cuMemAlloc_v2;
use emulated_cuda::module::{cuModuleGetFunction, cuModuleLoadData};
use emulated_cuda::stream::{cuStreamCreate, cuStreamWaitEvent};
use emulated_cuda::transfer::{cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use std::ffi::{CString, c_void};
use std::ptr::null;
use std::sync::Once;

/// Asserts that a call answers success.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: the arguments are what the API asks for.
        let code = unsafe { $call };
        assert_eq!(code, 0, "{}", stringify!($call));
    }};
}
/// The code that a call answers.
macro_rules! code {
    ($call:expr) => {{
        // SAFETY: as above.
        unsafe { $call }
    }};
}
pub(crate) use {code, ok};

/// A context of its own for each test, on one of two cards.
struct Client(CUcontext);

impl Client {
    fn new() -> Self {
        Self::on(0)
    }

    fn on(card: i32) -> Self {
        static START: Once = Once::new();
        START.call_once(|| {
            // SAFETY: no other thread reads the environment before this is done: every test begins here.
            unsafe {
                std::env::set_var("KILN_EMULATED_CARDS", "2");
                std::env::set_var("KILN_EMULATED_MEMORY", "64M");
                std::env::set_var("KILN_EMULATED_ARCH", "sm_90a");
            }
            ok!(cuInit(0));
        });
        let mut context = 0;
        ok!(cuCtxCreate_v2(&mut context, 0, card));
        Self(context)
    }

    fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let mut address = 0;
        ok!(cuMemAlloc_v2(&mut address, bytes));
        address
    }

    /// Device memory with these values.
    fn put(&self, values: &[u32]) -> CUdeviceptr {
        let address = self.alloc(values.len() * 4);
        ok!(cuMemcpyHtoD_v2(address, values.as_ptr() as usize, values.len() * 4));
        // The copy may still be under way, and no order ties it to the streams of the tests.
        self.synchronize();
        address
    }

    fn get(&self, address: CUdeviceptr, count: usize) -> Vec<u32> {
        let mut values = vec![0; count];
        ok!(cuMemcpyDtoH_v2(values.as_mut_ptr() as usize, address, count * 4));
        values
    }

    /// Pinned host memory for `count` values.
    fn pinned(&self, count: usize) -> &'static mut [u32] {
        let mut start: *mut c_void = std::ptr::null_mut();
        ok!(cuMemAllocHost_v2(&mut start, count * 4));
        // SAFETY: the driver made it, and no test frees it.
        let values = unsafe { std::slice::from_raw_parts_mut(start.cast::<u32>(), count) };
        values.fill(0);
        values
    }

    /// A stream apart from the default one.
    fn stream(&self) -> CUstream {
        let mut stream = 0;
        ok!(cuStreamCreate(&mut stream, 1));
        stream
    }

    /// An event that is recorded in a stream.
    fn record(&self, stream: CUstream) -> CUevent {
        let mut event = 0;
        ok!(cuEventCreate(&mut event, 2));
        ok!(cuEventRecord(event, stream));
        event
    }

    /// Makes `later` wait for all that is in `earlier`.
    fn order(&self, earlier: CUstream, later: CUstream) {
        ok!(cuStreamWaitEvent(later, self.record(earlier), 0));
    }

    fn synchronize(&self) {
        ok!(cuCtxSynchronize());
    }

    fn load(&self, text: &str) -> CUmodule {
        let (text, mut module) = (CString::new(text).expect("a text without zeros"), 0);
        ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        module
    }

    fn function(&self, module: CUmodule, name: &str) -> CUfunction {
        let (name, mut function) = (CString::new(name).expect("a name without zeros"), 0);
        ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
        function
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        code!(cuCtxDestroy_v2(self.0));
    }
}

/// Launches `blocks` blocks of `threads` threads with arguments of 8 bytes, and returns the code.
fn launch(function: CUfunction, blocks: u32, threads: u32, shared: u32, stream: CUstream, arguments: &[u64]) -> i32 {
    let pointers: Vec<_> = arguments.iter().map(|value| std::ptr::from_ref(value).cast::<c_void>()).collect();
    code!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers.as_ptr(), null()))
}

#[test]
fn cards_reach_each_other_but_not_themselves() {
    let _client = Client::new();
    for (peer, expected) in [(0, 0), (1, 1)] {
        let mut can = -1;
        ok!(cuDeviceCanAccessPeer(&mut can, 0, peer));
        assert_eq!(can, expected);
    }
}

#[test]
fn the_properties_of_a_card_are_its_first_attributes() {
    let _client = Client::new();
    let (mut properties, mut value) = ([0; 14], 0);
    ok!(cuDeviceGetProperties(&mut properties, 0));
    for (number, &property) in (1..).zip(&properties) {
        ok!(cuDeviceGetAttribute(&mut value, number, 0));
        assert_eq!(property, value, "attribute {number}");
    }
    // Threads of a block, shared memory of a block, threads of a warp.
    assert_eq!((properties[0], properties[7], properties[9]), (1024, 49_152, 32));
    assert_eq!(code!(cuDeviceGetProperties(&mut properties, 2)), 101);
    assert_eq!(code!(cuDeviceGetProperties(std::ptr::null_mut(), 0)), 1);
}

#[test]
fn writes_of_other_devices_are_flushed_to_one_context_or_to_all() {
    let _client = Client::new();
    for (target, scope, code) in [(0, 100, 0), (0, 200, 0), (1, 100, 1), (0, 0, 1)] {
        assert_eq!(code!(cuFlushGPUDirectRDMAWrites(target, scope)), code, "{target} {scope}");
    }
}
