//! The captures in progress, and the calls that they forbid.

use crate::abi::CUstream;
use crate::contexts::Context;
use crate::engine::work::{Node, Nodes, Work};
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A capture in progress.
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// The stream that it began in.
    pub origin: CUstream,
    /// The context of that stream.
    context: usize,
    /// The thread that began it.
    pub thread: ThreadId,
    /// Which calls it forbids: 0 of all threads, 1 of its own, 2 of none.
    pub mode: c_uint,
    state: Mutex<State>,
}

/// What a capture has so far.
#[derive(Default)]
pub struct State {
    /// The nodes.
    pub nodes: Nodes,
    /// By stream, the nodes that its next one comes after.
    pub frontier: HashMap<CUstream, Vec<usize>>,
    /// Whether the capture is lost.
    pub invalid: bool,
}

/// All captures in progress.
pub fn active() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
    ACTIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

thread_local! {
    /// What this thread lets captures forbid.
    static MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Sets what captures may forbid this thread, and returns what that was.
pub fn exchange_mode(mode: c_uint) -> c_uint {
    MODE.replace(mode)
}

/// Refuses a wait for a whole context that is being captured.
///
/// # Errors
/// A capture is in progress; it is lost.
pub fn forbid_wait(context: &Context) -> Answer {
    forbid(|capture| capture.is_of(context), Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses what may wait in hidden ways, such as an allocation, as the capture's mode asks.
///
/// # Errors
/// A capture that forbids it is in progress; it is lost.
pub fn forbid_unsafe(context: &Context) -> Answer {
    let (mode, thread) = (MODE.get(), std::thread::current().id());
    let by = |capture: &Capture| match (mode, capture.mode) {
        (2, _) | (_, 2) => false,
        (0, 0) => true,
        _ => capture.thread == thread,
    };
    forbid(|capture| capture.is_of(context) && by(capture), Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses a call if there are captures that `which` names.
///
/// # Errors
/// `code` if there are; they are lost.
pub fn forbid(which: impl Fn(&Capture) -> bool, code: Code) -> Answer {
    let found: Vec<_> = active().iter().filter(|capture| which(capture)).cloned().collect();
    found.iter().for_each(|capture| capture.invalidate());
    if found.is_empty() { Ok(()) } else { Err(code) }
}

impl Capture {
    /// Begins in a stream of a context.
    pub fn new(stream: CUstream, context: usize, mode: c_uint) -> Self {
        let state = State { frontier: HashMap::from([(stream, Vec::new())]), ..State::default() };
        let (id, thread) = (fresh() as u64, std::thread::current().id());
        Self { id, origin: stream, context, thread, mode, state: Mutex::new(state) }
    }

    /// Whether it captures work of a context.
    pub fn is_of(&self, context: &Context) -> bool {
        self.context == context.handle
    }

    /// What it has so far.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The streams whose work it captures.
    pub fn streams(&self) -> Vec<CUstream> {
        self.state().frontier.keys().copied().collect()
    }

    /// Marks it as lost; its end will say so.
    pub fn invalidate(&self) {
        self.state().invalid = true;
    }

    /// The nodes that the next one of a stream comes after.
    pub fn frontier(&self, stream: CUstream) -> Vec<usize> {
        self.state().frontier.get(&stream).cloned().unwrap_or_default()
    }

    /// Makes work of a stream a node.
    ///
    /// # Errors
    /// The capture is lost.
    pub fn add(&self, stream: CUstream, work: Work) -> Answer {
        let mut state = self.state();
        if state.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let after = state.frontier.get(&stream).cloned().unwrap_or_default();
        let number = state.nodes.len();
        state.nodes.0.push(Node { handle: fresh(), after, work });
        state.frontier.insert(stream, vec![number]);
        Ok(())
    }
}
