//! Capture of streams: work becomes nodes of a graph instead of running.

use crate::abi::{CUgraph, CUgraphNode, CUstream};
use crate::call::{api, out, out_opt};
use crate::captures::{Capture, active, exchange_mode};
use crate::engine::work::Nodes;
use crate::errors::{Answer, Code};
use crate::streams::{Kind, Stream, resolve, streams};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Makes the next node of `stream` come after `nodes` of a capture too, and the stream part of it.
///
/// # Errors
/// The stream is part of another capture, or of another context's work.
pub fn join(capture: &Arc<Capture>, stream: &Stream, nodes: &[usize]) -> Answer {
    let mut own = stream.capture();
    match own.as_ref() {
        Some(other) if other.id != capture.id => {
            other.invalidate();
            capture.invalidate();
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        None if !active().iter().any(|other| other.id == capture.id) => return Err(Code::CAPTURED_EVENT),
        _ => *own = Some(capture.clone()),
    }
    let mut state = capture.state();
    let frontier = state.frontier.entry(stream.handle).or_default();
    let all: BTreeSet<_> = frontier.iter().chain(nodes).copied().collect();
    *frontier = all.into_iter().collect();
    Ok(())
}

/// Ends a capture, and hands out its nodes if every stream's last one comes before the origin's next.
fn end(capture: &Capture) -> Answer<Nodes> {
    active().retain(|other| other.id != capture.id);
    let mut state = capture.state();
    for stream in state.frontier.keys() {
        if let Ok(stream) = streams().get(*stream) {
            *stream.capture() = None;
        }
    }
    if state.invalid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    let mut joined = BTreeSet::new();
    let mut open = state.frontier.get(&capture.origin).cloned().unwrap_or_default();
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
    let capture = Arc::new(Capture::new(stream.handle, stream.context.handle, mode));
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
        let nodes = end(&capture)?;
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
        out(mode, exchange_mode(new))
    }
}
