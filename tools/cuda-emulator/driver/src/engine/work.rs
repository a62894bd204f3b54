//! The kinds of work that a stream holds, and what each does when its turn has come.

use crate::abi::{CUdeviceptr, CUhostFn, CUstream, CUstreamCallback};
use crate::card::card_of;
use crate::context::Context;
use crate::copy::Copy;
use crate::engine::Random;
use crate::errors::Code;
use crate::event::Stamp;
use crate::graph::Nodes;
use crate::launch::Launch;
use crate::settings::settings;
use std::ffi::c_void;
use std::sync::Arc;

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
}

/// How a piece of work ended.
pub enum Outcome {
    /// It is done.
    Done,
    /// It met a fault, which ends its context.
    Failed(Code),
    /// The rest is a function of the client.
    OnHost(Box<dyn FnOnce() + Send>),
}

impl From<Result<(), Code>> for Outcome {
    fn from(result: Result<(), Code>) -> Self {
        match result {
            Ok(()) => Outcome::Done,
            Err(code) => Outcome::Failed(code),
        }
    }
}

/// Reads `width` bytes of a card or of pinned memory.
fn value(at: CUdeviceptr, width: usize) -> Result<u64, Code> {
    let mut bytes = [0; 8];
    crate::copy::read(at, &mut bytes[..width])?;
    Ok(u64::from_le_bytes(bytes))
}

impl Work {
    /// Whether it can start as far as it itself is concerned.
    pub fn is_ready(&self) -> bool {
        let Work::WaitValue { at, value: wanted, width, compare } = self else { return true };
        let Ok(found) = value(*at, *width) else { return true };
        let difference = if *width == 4 {
            i64::from((found as u32).wrapping_sub(*wanted as u32) as i32)
        } else {
            found.wrapping_sub(*wanted) as i64
        };
        match compare {
            0 => difference >= 0,
            1 => difference == 0,
            2 => found & wanted != 0,
            _ => !(found | wanted) & (u64::MAX >> (64 - 8 * width)) != 0,
        }
    }

    /// Does it.
    pub fn run(&self, context: &Arc<Context>) -> Outcome {
        match self {
            Work::Nothing => Outcome::Done,
            Work::Record(stamp) => {
                stamp.take();
                Outcome::Done
            }
            Work::Launch(launch) => launch.run(context).into(),
            Work::Copy(copy) => copy.run().into(),
            Work::Fill { to, len, rows, pitch, pattern } => fill(*to, *len, *rows, *pitch, pattern).into(),
            Work::Free(address) => match card_of(*address).map(|card| card.free(*address)) {
                Some(Ok(())) => Outcome::Done,
                _ => Outcome::Failed(Code::ILLEGAL_ADDRESS),
            },
            Work::Host(function, data) => {
                let (function, data) = (*function, *data);
                // SAFETY: the client gave the function and its argument for this call.
                Outcome::OnHost(Box::new(move || unsafe { call(function, data) }))
            }
            Work::Callback(stream, function, data) => {
                let (stream, function, data) = (*stream, *function, *data);
                // SAFETY: as above.
                Outcome::OnHost(Box::new(move || unsafe { call_back(function, stream, data) }))
            }
            Work::WaitValue { at, width, .. } => value(*at, *width).map(|_| ()).into(),
            Work::WriteValue { at, value, width } => crate::copy::write(*at, &value.to_le_bytes()[..*width]).into(),
            Work::Graph(nodes) => run_graph(nodes, context),
        }
    }
}

unsafe fn call(function: CUhostFn, data: UserData) {
    // SAFETY: the caller's.
    unsafe { function(data.0) }
}

unsafe fn call_back(function: CUstreamCallback, stream: CUstream, data: UserData) {
    // SAFETY: the caller's.
    unsafe { function(stream, 0, data.0) }
}

fn fill(to: CUdeviceptr, len: u64, rows: u64, pitch: u64, pattern: &[u8]) -> Result<(), Code> {
    (0..rows).try_for_each(|row| crate::copy::fill(to + row * pitch, len, pattern))
}

/// Runs nodes in an order that the seed chooses among those that their edges allow.
fn run_graph(nodes: &Nodes, context: &Arc<Context>) -> Outcome {
    let mut random = Random(settings().seed);
    let mut done = vec![false; nodes.len()];
    for _ in 0..nodes.len() {
        let ready: Vec<_> = (0..nodes.len())
            .filter(|&node| !done[node] && nodes[node].after.iter().all(|&before| done[before]))
            .collect();
        let node = ready[random.below(ready.len())];
        while !nodes[node].work.is_ready() {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        match nodes[node].work.run(context) {
            Outcome::Done => {}
            Outcome::OnHost(call) => call(),
            failed => return failed,
        }
        done[node] = true;
    }
    Outcome::Done
}
