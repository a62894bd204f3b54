//! Capture of streams: work becomes nodes of a graph instead of running.

use crate::abi::{CUgraph, CUgraphNode, CUstream};
use crate::call::{api, out, out_opt};
use crate::context::Context;
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::graph::{Node, Nodes};
use crate::handles::fresh;
use crate::stream::{Kind, Stream, resolve, streams};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A capture in progress.
pub struct Capture {
    id: u64,
    origin: CUstream,
    context: usize,
    thread: ThreadId,
    /// Which calls it forbids: 0 of all threads, 1 of its own, 2 of none.
    mode: c_uint,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Nodes,
    /// By stream, the nodes that its next one comes after.
    frontier: HashMap<CUstream, Vec<usize>>,
    invalid: bool,
}

/// All captures in progress.
fn active() -> MutexGuard<'static, Vec<Arc<Capture>>> {
    static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
    ACTIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

thread_local! {
    /// What this thread lets captures forbid.
    static MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Refuses a wait for a whole context that is being captured.
///
/// # Errors
/// A capture is in progress; it is lost.
pub fn forbid_wait(context: &Context) -> Answer {
    forbid(|capture| capture.context == context.handle, Code::STREAM_CAPTURE_UNSUPPORTED)
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
    forbid(|capture| capture.context == context.handle && by(capture), Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses work of the legacy default stream while a blocking stream of its context is being captured.
///
/// # Errors
/// Such a capture is in progress; it is lost.
pub fn forbid_legacy(context: &Context) -> Answer {
    let blocking = |capture: &Capture| {
        capture
            .streams()
            .iter()
            .any(|&stream| streams().get(stream).is_ok_and(|stream| stream.kind != Kind::NonBlocking))
    };
    forbid(|capture| capture.context == context.handle && blocking(capture), Code::STREAM_CAPTURE_IMPLICIT)
}

fn forbid(which: impl Fn(&Capture) -> bool, code: Code) -> Answer {
    let found: Vec<_> = active().iter().filter(|capture| which(capture)).cloned().collect();
    found.iter().for_each(|capture| capture.invalidate());
    if found.is_empty() { Ok(()) } else { Err(code) }
}

impl Capture {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn streams(&self) -> Vec<CUstream> {
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

    /// Makes the next node of `stream` come after `nodes` too, and the stream part of the capture.
    ///
    /// # Errors
    /// The stream is part of another capture, or of another context's work.
    pub fn join(self: &Arc<Self>, stream: &Stream, nodes: &[usize]) -> Answer {
        let mut own = stream.capture();
        match own.as_ref() {
            Some(other) if other.id != self.id => {
                other.invalidate();
                self.invalidate();
                return Err(Code::STREAM_CAPTURE_MERGE);
            }
            None if !active().iter().any(|capture| capture.id == self.id) => return Err(Code::CAPTURED_EVENT),
            _ => *own = Some(self.clone()),
        }
        let mut state = self.state();
        let frontier = state.frontier.entry(stream.handle).or_default();
        let all: BTreeSet<_> = frontier.iter().chain(nodes).copied().collect();
        *frontier = all.into_iter().collect();
        Ok(())
    }

    /// Ends it, and hands out its nodes if every stream's last one comes before the origin's next.
    fn end(&self) -> Answer<Nodes> {
        active().retain(|capture| capture.id != self.id);
        let mut state = self.state();
        for stream in state.frontier.keys() {
            if let Ok(stream) = streams().get(*stream) {
                *stream.capture() = None;
            }
        }
        if state.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let mut joined = BTreeSet::new();
        let mut open = state.frontier.get(&self.origin).cloned().unwrap_or_default();
        while let Some(node) = open.pop() {
            if joined.insert(node) {
                open.extend(&state.nodes[node].after);
            }
        }
        match state.frontier.values().flatten().all(|node| joined.contains(node)) {
            true => Ok(std::mem::take(&mut state.nodes)),
            false => Err(Code::STREAM_CAPTURE_UNJOINED),
        }
    }
}

fn begin(stream: &Stream, mode: c_uint) -> Answer {
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut own = stream.capture();
    if own.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    if mode > 2 {
        return Err(Code::INVALID_VALUE);
    }
    let state = State { frontier: HashMap::from([(stream.handle, Vec::new())]), ..State::default() };
    let capture = Arc::new(Capture {
        id: fresh() as u64,
        origin: stream.handle,
        context: stream.context.handle,
        thread: std::thread::current().id(),
        mode,
        state: Mutex::new(state),
    });
    active().push(capture.clone());
    *own = Some(capture);
    Ok(())
}

/// Status, as the API numbers it: 0 none, 1 active, 2 lost.
fn status(stream: &Stream) -> (c_int, u64) {
    match stream.capture().as_ref() {
        None => (0, 0),
        Some(capture) => (1 + c_int::from(capture.state().invalid), capture.id),
    }
}

api! {
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(default; stream: CUstream, mode: c_uint) {
        begin(&*resolve(stream, default)?, mode)
    }
    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(default; stream: CUstream, to: *mut CUgraph) {
        let stream = resolve(stream, default)?;
        let capture = stream.capture().clone().ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != 2 && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        out_opt(to, 0);
        let nodes = capture.end()?;
        out(to, crate::graph::add(nodes))
    }
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(default; stream: CUstream, to: *mut c_int) {
        out(to, status(&*resolve(stream, default)?).0)
    }
    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        default; stream: CUstream, to: *mut c_int, id: *mut u64,
    ) {
        let status = status(&*resolve(stream, default)?);
        out_opt(id, status.1);
        out(to, status.0)
    }
    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        default; stream: CUstream, to: *mut c_int, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, count: *mut usize,
    ) {
        let status = status(&*resolve(stream, default)?);
        if status.0 != 0 && !(graph.is_null() && nodes.is_null() && count.is_null()) {
            return crate::call::unsupported("cuStreamGetCaptureInfo_v2 of the graph");
        }
        out_opt(id, status.1);
        out(to, status.0)
    }
    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        default; stream: CUstream, to: *mut c_int, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, _edges: *mut usize, count: *mut usize,
    ) {
        let status = status(&*resolve(stream, default)?);
        if status.0 != 0 && !(graph.is_null() && nodes.is_null() && count.is_null()) {
            return crate::call::unsupported("cuStreamGetCaptureInfo_v3 of the graph");
        }
        out_opt(id, status.1);
        out(to, status.0)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let new = crate::call::values(mode, 1)?[0];
        if new > 2 {
            return Err(Code::INVALID_VALUE);
        }
        out(mode, MODE.replace(new))
    }
}
