//! The kinds of work that a stream holds.

use super::nodes::Nodes;
use crate::abi::{CUdeviceptr, CUevent, CUhostFn, CUstream, CUstreamCallback};
use crate::copy::Copy;
use crate::launches::Launch;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// When a mark was passed.
#[derive(Default)]
pub struct Stamp(pub OnceLock<Instant>);

impl Stamp {
    /// Takes the time.
    pub fn take(&self) {
        let _ = self.0.set(Instant::now());
    }
}

/// A pointer of the client that goes to its function.
#[derive(Clone, Copy)]
pub struct UserData(pub *mut c_void);

// SAFETY: the client asked for a call on another thread with this pointer.
unsafe impl Send for UserData {}
// SAFETY: it is never followed here.
unsafe impl Sync for UserData {}

/// One piece of work; a graph keeps copies.
#[derive(Clone)]
pub enum Work {
    /// Only a place in the order.
    Nothing,
    /// Takes the time for an event.
    Record(Arc<Stamp>),
    /// Runs a kernel.
    Launch(Arc<Launch>),
    /// Copies bytes.
    Copy(Arc<Copy>),
    /// Fills `rows` rows of `len` bytes, `pitch` bytes apart, with a pattern.
    Fill {
        /// First byte.
        to: CUdeviceptr,
        /// Bytes of a row.
        len: u64,
        /// Number of rows.
        rows: u64,
        /// Bytes from row to row.
        pitch: u64,
        /// What is repeated.
        pattern: Vec<u8>,
    },
    /// Frees memory.
    Free(CUdeviceptr),
    /// Calls a function of the client.
    Host(CUhostFn, UserData),
    /// Calls a function of the client, in the older form.
    Callback(CUstream, CUstreamCallback, UserData),
    /// Waits until a value in memory fits.
    WaitValue {
        /// Its address.
        at: CUdeviceptr,
        /// What it is compared with.
        value: u64,
        /// Bytes: 4 or 8.
        width: usize,
        /// How it is compared.
        compare: u32,
    },
    /// Writes a value to memory.
    WriteValue {
        /// Its address.
        at: CUdeviceptr,
        /// What is written.
        value: u64,
        /// Bytes: 4 or 8.
        width: usize,
    },
    /// Runs the nodes of a graph, each after those it depends on.
    Graph(Arc<Nodes>),
    /// Records an event at each launch of a graph; only nodes are such work.
    RecordEvent(CUevent),
    /// Waits for what an event has recorded when the graph is launched; only nodes are such work.
    WaitEvent(CUevent),
}
