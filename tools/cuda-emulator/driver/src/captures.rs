//! The captures in progress, and the calls that they forbid.

use crate::abi::{CUgraph, CUgraphNode, CUstream};
use crate::call::refuse;
use crate::contexts::Context;
use crate::edges::CUgraphEdgeData;
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::graph::change;
use crate::handles::fresh;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A capture in progress.
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// The stream that it began in.
    pub origin: CUstream,
    /// The graph that its work becomes nodes of.
    pub graph: CUgraph,
    /// Whether it made the graph, and destroys it if the capture fails.
    pub owns_graph: bool,
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
    /// By stream, the nodes that its next one comes after.
    pub frontier: HashMap<CUstream, Vec<CUgraphNode>>,
    /// By stream, the data of the edges from those nodes, where a client has asked for them.
    pub edges: HashMap<CUstream, Vec<CUgraphEdgeData>>,
    /// Captured nodes that no later one comes after, and that the client has not removed from the dependencies of a
    /// stream.
    pub unjoined: BTreeSet<CUgraphNode>,
    /// Whether the capture is invalidated.
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

/// Refuses a call of `function` for a graph while work is captured into it.
///
/// # Errors
/// A capture into it is in progress, which goes on.
pub fn forbid_graph(graph: CUgraph, function: &str) -> Answer {
    match active().iter().any(|capture| capture.graph == graph) {
        true => refuse(Code::INVALID_VALUE, &format!("{function}: work is still being captured into the graph")),
        false => Ok(()),
    }
}

/// Refuses a wait for a whole context that is being captured.
///
/// # Errors
/// A capture is in progress; it is invalidated.
pub fn forbid_wait(context: &Context) -> Answer {
    forbid(|capture| capture.is_of(context), Code::STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses what may wait in hidden ways, such as an allocation, as the capture's mode asks.
///
/// # Errors
/// A capture that forbids it is in progress; it is invalidated.
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
/// `code` if there are; they are invalidated.
pub fn forbid(which: impl Fn(&Capture) -> bool, code: Code) -> Answer {
    let found: Vec<_> = active().iter().filter(|capture| which(capture)).cloned().collect();
    found.iter().for_each(|capture| capture.invalidate());
    if found.is_empty() { Ok(()) } else { Err(code) }
}

impl Capture {
    /// Begins in a stream of a context, after nodes of a graph.
    pub fn new(
        (stream, context): (CUstream, usize),
        mode: c_uint,
        (graph, owns_graph): (CUgraph, bool),
        after: Vec<CUgraphNode>,
    ) -> Self {
        let state = State { frontier: HashMap::from([(stream, after)]), ..State::default() };
        let (id, thread) = (fresh() as u64, std::thread::current().id());
        Self { id, origin: stream, graph, owns_graph, context, thread, mode, state: Mutex::new(state) }
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

    /// Invalidates it, so that its end fails.
    pub fn invalidate(&self) {
        self.state().invalid = true;
    }

    /// The nodes that the next one of a stream comes after.
    pub fn frontier(&self, stream: CUstream) -> Vec<CUgraphNode> {
        self.state().frontier.get(&stream).cloned().unwrap_or_default()
    }

    /// Makes work of a stream a node.
    ///
    /// # Errors
    /// The capture is invalidated, or its graph is destroyed.
    pub fn add(&self, stream: CUstream, work: Work) -> Answer {
        let mut state = self.state();
        if state.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let after = state.frontier.get(&stream).cloned().unwrap_or_default();
        let node = change(self.graph, |nodes| nodes.add(&after, work))?;
        for before in &after {
            state.unjoined.remove(before);
        }
        state.unjoined.insert(node);
        state.frontier.insert(stream, vec![node]);
        Ok(())
    }
}
