//! Capture of streams: work becomes nodes of a graph instead of running.

use crate::abi::{CUgraph, CUgraphNode, CUstream};
use crate::call::{api, out, out_opt, values};
use crate::captures::{Capture, State, active, exchange_mode, forbid_graph};
use crate::edges::{CUgraphEdgeData, PLAIN, check_plain};
use crate::engine::nodes::Nodes;
use crate::errors::{Answer, Code};
use crate::graph::{self, nodes_of};
use crate::streams::{Kind, Stream, resolve, streams};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Makes the next node of `stream` come after `nodes` of a capture too, and the stream part of it.
///
/// # Errors
/// The stream is part of another capture, or of another context's work.
pub fn join(capture: &Arc<Capture>, stream: &Stream, nodes: &[CUgraphNode]) -> Answer {
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

/// Whether the nodes `ends` are among `last` or come before one of them.
fn are_joined(nodes: &Nodes, ends: &BTreeSet<CUgraphNode>, last: &[CUgraphNode]) -> bool {
    let mut joined = BTreeSet::new();
    let mut open: Vec<_> = last.iter().filter_map(|&node| nodes.index(node).ok()).collect();
    while let Some(node) = open.pop() {
        if joined.insert(node) {
            open.extend(&nodes[node].after);
        }
    }
    ends.iter().filter_map(|&node| nodes.index(node).ok()).all(|node| joined.contains(&node))
}

/// Ends a capture in all its streams.
fn close(capture: &Capture) {
    active().retain(|other| other.id != capture.id);
    for stream in capture.streams() {
        if let Ok(stream) = streams().get(stream) {
            *stream.capture() = None;
        }
    }
}

/// Ends the capture that began in a stream, if there is one, without handing out its graph: the stream is destroyed.
pub fn abandon(stream: &Stream) {
    let capture = stream.capture().clone().filter(|capture| capture.origin == stream.handle);
    if let Some(capture) = capture {
        close(&capture);
        if capture.owns_graph {
            let _ = graph::remove(capture.graph);
        }
    }
}

/// Ends a capture, and hands out its graph if the origin has joined all that was captured.
fn end(capture: &Capture) -> Answer<CUgraph> {
    close(capture);
    let state = capture.state();
    let check = || {
        if state.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let last = state.frontier.get(&capture.origin).map_or(&[][..], Vec::as_slice);
        match are_joined(&*nodes_of(capture.graph)?, &state.unjoined, last) {
            true => Ok(capture.graph),
            false => Err(Code::STREAM_CAPTURE_UNJOINED),
        }
    };
    let result = check();
    if result.is_err() && capture.owns_graph {
        let _ = graph::remove(capture.graph);
    }
    result
}

/// Begins a capture into a graph after some of its nodes, or into a new graph.
fn begin(stream: &Stream, mode: c_uint, into: Option<(CUgraph, Vec<CUgraphNode>)>) -> Answer {
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut own = stream.capture();
    if own.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    // Another thread may have destroyed it, and nothing would end the capture.
    streams().get(stream.handle)?;
    if mode > 2 {
        return Err(Code::INVALID_VALUE);
    }
    let owns_graph = into.is_none();
    let (graph, after) = into.unwrap_or_else(|| (graph::add(Nodes::default()), Vec::new()));
    let place = (stream.handle, stream.context.handle);
    let capture = Arc::new(Capture::new(place, mode, (graph, owns_graph), after));
    active().push(capture.clone());
    *own = Some(capture);
    Ok(())
}

/// Status, as the API numbers it: 0 none, 1 active, 2 invalidated.
fn status(stream: &Stream) -> (c_int, u64) {
    match stream.capture().as_ref() {
        None => (0, 0),
        Some(capture) => (1 + c_int::from(capture.state().invalid), capture.id),
    }
}

/// Adds to the nodes that the next one of a stream comes after, or replaces them.
fn update(stream: &Stream, nodes: &[CUgraphNode], flags: c_uint) -> Answer {
    const ADDS: c_uint = 0;
    const REPLACES: c_uint = 1;
    let capture = stream.capture();
    let capture = capture.as_ref().ok_or(Code::ILLEGAL_STATE)?;
    let all = nodes_of(capture.graph)?;
    nodes.iter().try_for_each(|&node| all.index(node).map(|_| ()))?;
    let State { frontier, unjoined, .. } = &mut *capture.state();
    let next = frontier.entry(stream.handle).or_default();
    match flags {
        ADDS => {}
        REPLACES => {
            // As documented, nodes that the client removes here need not be joined.
            unjoined.retain(|node| !next.contains(node) || nodes.contains(node));
            next.clear();
        }
        _ => return Err(Code::INVALID_VALUE),
    }
    *next = next.iter().chain(nodes).copied().collect::<BTreeSet<_>>().into_iter().collect();
    Ok(())
}

/// Where a client wants to know about the capture of a stream; null where it does not.
struct Places {
    status: *mut c_int,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

/// Writes the status of a stream's capture, its graph, and the nodes that the stream's next one comes after.
///
/// # Safety
/// Each place is null or writable.
unsafe fn show(stream: &Stream, places: Places) -> Answer {
    let (status, id) = status(stream);
    // SAFETY: the caller's. The client may read the lists until the next call for the stream, as documented.
    unsafe {
        if let Some(capture) = stream.capture().as_ref() {
            let state = &mut *capture.state();
            let next = state.frontier.entry(stream.handle).or_default();
            out_opt(places.graph, capture.graph);
            out_opt(places.nodes, if next.is_empty() { null() } else { next.as_ptr() });
            out_opt(places.count, next.len());
            if !places.edges.is_null() {
                let edges = state.edges.entry(stream.handle).or_default();
                *edges = vec![PLAIN; next.len()];
                out(places.edges, if edges.is_empty() { null() } else { edges.as_ptr() })?;
            }
        }
        out_opt(places.id, id);
        out(places.status, status)
    }
}

api! {
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(default; stream: CUstream, mode: c_uint) {
        begin(&*resolve(stream, default)?, mode, None)
    }
    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(
        default; stream: CUstream, graph: CUgraph, after: *const CUgraphNode, data: *const CUgraphEdgeData,
        count: usize, mode: c_uint,
    ) {
        check_plain(data, count)?;
        let (after, nodes) = (values(after, count)?, nodes_of(graph)?);
        for (place, &node) in after.iter().enumerate() {
            nodes.index(node)?;
            if after[..place].contains(&node) {
                return Err(Code::INVALID_VALUE);
            }
        }
        forbid_graph(graph, "cuStreamBeginCaptureToGraph")?;
        begin(&*resolve(stream, default)?, mode, Some((graph, after)))
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
        out(to, end(&capture)?)
    }
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(default; stream: CUstream, to: *mut c_int) {
        out(to, status(&*resolve(stream, default)?).0)
    }
    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        default; stream: CUstream, status: *mut c_int, id: *mut u64,
    ) {
        let none = (null_mut(), null_mut(), null_mut(), null_mut());
        let places = Places { status, id, graph: none.0, nodes: none.1, edges: none.2, count: none.3 };
        show(&*resolve(stream, default)?, places)
    }
    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        default; stream: CUstream, status: *mut c_int, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, count: *mut usize,
    ) {
        show(&*resolve(stream, default)?, Places { status, id, graph, nodes, edges: null_mut(), count })
    }
    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        default; stream: CUstream, status: *mut c_int, id: *mut u64, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize,
    ) {
        if nodes.is_null() && !edges.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        show(&*resolve(stream, default)?, Places { status, id, graph, nodes, edges, count })
    }
    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(
        default; stream: CUstream, nodes: *const CUgraphNode, count: usize, flags: c_uint,
    ) {
        update(&*resolve(stream, default)?, &values(nodes, count)?, flags)
    }
    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(
        default; stream: CUstream, nodes: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, flags: c_uint,
    ) {
        check_plain(data, count)?;
        update(&*resolve(stream, default)?, &values(nodes, count)?, flags)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let new = values(mode, 1)?[0];
        if new > 2 {
            return Err(Code::INVALID_VALUE);
        }
        out(mode, exchange_mode(new))
    }
}
