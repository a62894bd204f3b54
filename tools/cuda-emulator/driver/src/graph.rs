//! Graphs: work that was captured, launched as a whole.

use crate::abi::{CUgraph, CUgraphExec, CUgraphNode, CUstream};
use crate::call::{api, out, out_opt, unsupported, values};
use crate::captures::forbid_graph;
use crate::contexts::current;
use crate::edges::list;
use crate::engine::Point;
use crate::engine::nodes::{Node, Nodes, kind};
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::handles::Table;
use crate::streams::{Stream, resolve};
use crate::unfold::launch;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

struct Graph {
    handle: CUgraph,
    nodes: Mutex<Arc<Nodes>>,
}

impl Graph {
    fn nodes(&self) -> MutexGuard<'_, Arc<Nodes>> {
        self.nodes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct Executable {
    handle: CUgraphExec,
    nodes: Mutex<Arc<Nodes>>,
    /// Its last launch, which the next one comes after in whatever stream.
    last: Mutex<Option<Point>>,
}

impl Executable {
    fn nodes(&self) -> MutexGuard<'_, Arc<Nodes>> {
        self.nodes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn graphs() -> &'static Table<Graph> {
    static GRAPHS: Table<Graph> = Table::new(Code::INVALID_VALUE);
    &GRAPHS
}

fn executables() -> &'static Table<Executable> {
    static EXECUTABLES: Table<Executable> = Table::new(Code::INVALID_VALUE);
    &EXECUTABLES
}

/// Number of graphs, and of executable graphs, which were not destroyed.
pub fn live() -> (usize, usize) {
    (graphs().all().len(), executables().all().len())
}

/// Makes a graph.
pub fn add(nodes: Nodes) -> CUgraph {
    graphs().add(|handle| Graph { handle, nodes: Mutex::new(Arc::new(nodes)) }).handle
}

/// Changes a graph. Executable graphs that were instantiated from it keep what they have.
///
/// # Errors
/// There is no such graph, or the change's own.
pub fn change<T>(graph: CUgraph, change: impl FnOnce(&mut Nodes) -> Answer<T>) -> Answer<T> {
    change(Arc::make_mut(&mut *graphs().get(graph)?.nodes()))
}

/// Ends a graph. Executable graphs that were instantiated from it stay.
///
/// # Errors
/// There is no such graph.
pub fn remove(graph: CUgraph) -> Answer {
    graphs().remove(graph).map(|_| ())
}

/// Changes an executable graph. Launches that are queued keep what they have.
///
/// # Errors
/// There is no such graph, or the change's own.
pub fn change_executable(executable: CUgraphExec, change: impl FnOnce(&mut Nodes) -> Answer) -> Answer {
    change(Arc::make_mut(&mut *executables().get(executable)?.nodes()))
}

/// The nodes of a graph.
///
/// # Errors
/// There is no such graph.
pub fn nodes_of(graph: CUgraph) -> Answer<Arc<Nodes>> {
    Ok(graphs().get(graph)?.nodes().clone())
}

/// The graph that a node is of.
///
/// # Errors
/// There is none.
pub fn graph_of(node: CUgraphNode) -> Answer<CUgraph> {
    let found = graphs().all().into_iter().find(|graph| graph.nodes().index(node).is_ok());
    found.map(|graph| graph.handle).ok_or(Code::INVALID_VALUE)
}

/// Flags of an instantiation.
mod flags {
    /// What the graph allocated is freed at each launch.
    pub const FREES: u64 = 1;
    /// It is uploaded at once.
    pub const UPLOADS: u64 = 2;
    /// Kernels may launch it.
    pub const FROM_CARD: u64 = 4;
    /// Its nodes have priorities of their own.
    pub const PRIORITIES: u64 = 8;
}

/// Refuses flags that the API does not know or that are not emulated.
fn check(given: u64) -> Answer {
    let known = flags::FREES | flags::UPLOADS | flags::FROM_CARD | flags::PRIORITIES;
    let both = flags::FREES | flags::FROM_CARD;
    if given & !known != 0 || given & both == both {
        return Err(Code::INVALID_VALUE);
    }
    match given & flags::FROM_CARD {
        0 => Ok(()),
        _ => unsupported("a graph that kernels launch"),
    }
}

/// Instantiates a graph, and uploads it in a stream if one is given.
fn instantiate(to: *mut CUgraphExec, graph: CUgraph, upload: Option<&Stream>) -> Answer {
    current()?;
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    forbid_graph(graph, "cuGraphInstantiate")?;
    let nodes = Mutex::new(graphs().get(graph)?.nodes().clone());
    // First, so that an upload that is refused leaves no executable graph.
    if let Some(stream) = upload {
        stream.submit(&[], Work::Nothing)?;
    }
    // SAFETY: checked for null.
    unsafe { out(to, executables().add(|handle| Executable { handle, nodes, last: Mutex::default() }).handle) }
}

/// Replaces the work of the nodes by that of the nodes of `graph`, if these have the same kinds and edges. Otherwise
/// returns the first of them that differs, or 0 if there are more or fewer.
fn update(executable: CUgraphExec, graph: CUgraph) -> Answer<Result<(), CUgraphNode>> {
    let (executable, graph) = (executables().get(executable)?, graphs().get(graph)?);
    let (mut old, new) = (executable.nodes(), graph.nodes().clone());
    let same = |(a, b): (&Node, &Node)| kind(a) == kind(b) && a.after == b.after;
    if old.len() != new.len() {
        return Ok(Err(0));
    }
    if let Some(differs) = old.iter().zip(new.iter()).position(|pair| !same(pair)) {
        return Ok(Err(new[differs].handle));
    }
    // The nodes stay those that the client knows, of the graph that was instantiated.
    Arc::make_mut(&mut *old).take_work(&new);
    Ok(Ok(()))
}

/// What `cuGraphInstantiateWithParams` takes, flags and a stream, and what it returns: node of the error and result.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct InstantiateParams {
    pub flags: c_ulonglong,
    pub upload: CUstream,
    pub node: CUgraphNode,
    pub result: c_int,
}

/// What `cuGraphExecUpdate_v2` returns: result, node of the error, node it comes from.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct UpdateInfo {
    pub result: c_int,
    pub node: CUgraphNode,
    pub from: CUgraphNode,
}

api! {
    fn cuGraphCreate(to: *mut CUgraph, flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out(to, add(Nodes::default()))
    }
    fn cuGraphDestroy(graph: CUgraph) {
        forbid_graph(graph, "cuGraphDestroy")?;
        remove(graph)
    }
    fn cuGraphClone(to: *mut CUgraph, graph: CUgraph) {
        out(to, add(nodes_of(graph)?.cloned()))
    }
    fn cuGraphNodeFindInClone(to: *mut CUgraphNode, origin: CUgraphNode, clone: CUgraph) {
        let nodes = nodes_of(clone)?;
        let found = nodes.iter().find(|node| node.origin == Some(origin)).ok_or(Code::INVALID_VALUE)?;
        out(to, found.handle)
    }
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let all: Vec<_> = nodes_of(graph)?.iter().map(|node| [node.handle]).collect();
        list(&all, [nodes], count)
    }
    fn cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let all = nodes_of(graph)?;
        let roots: Vec<_> = all.iter().filter(|node| node.after.is_empty()).map(|node| [node.handle]).collect();
        list(&roots, [nodes], count)
    }
    fn cuGraphNodeGetType(node: CUgraphNode, to: *mut c_int) {
        let found = graphs().all().iter().find_map(|graph| graph.nodes().iter().find(|n| n.handle == node).map(kind));
        out(to, found.ok_or(Code::INVALID_VALUE)?)
    }
    fn cuGraphInstantiateWithFlags(to: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        check(flags)?;
        instantiate(to, graph, None)
    }
    fn cuGraphInstantiate_v2(
        to: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, _log: *mut c_char, _len: usize,
    ) {
        out_opt(node, 0);
        instantiate(to, graph, None)
    }
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        default; to: *mut CUgraphExec, graph: CUgraph, params: *mut InstantiateParams,
    ) {
        let given = values(params, 1)?[0];
        let made = check(given.flags).and_then(|()| {
            let upload = (given.flags & flags::UPLOADS != 0).then(|| resolve(given.upload, default)).transpose()?;
            instantiate(to, graph, upload.as_deref())
        });
        const FAILED: c_int = 1;
        out(params, InstantiateParams { node: 0, result: if made.is_ok() { 0 } else { FAILED }, ..given })?;
        made
    }
    fn cuGraphExecUpdate_v2(executable: CUgraphExec, graph: CUgraph, info: *mut UpdateInfo) {
        match update(executable, graph)? {
            Ok(()) => {
                out_opt(info, UpdateInfo { result: 0, node: 0, from: 0 });
                Ok(())
            }
            Err(node) => {
                out_opt(info, UpdateInfo { result: if node == 0 { 2 } else { 3 }, node, from: 0 });
                Err(Code::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }
    fn cuGraphExecDestroy(executable: CUgraphExec) {
        executables().remove(executable).map(|_| ())
    }
    fn cuGraphUpload | cuGraphUpload_ptsz(default; executable: CUgraphExec, stream: CUstream) {
        executables().get(executable)?;
        resolve(stream, default)?.submit(&[], Work::Nothing).map(|_| ())
    }
    fn cuGraphLaunch | cuGraphLaunch_ptsz(default; executable: CUgraphExec, stream: CUstream) {
        let executable = executables().get(executable)?;
        let nodes = executable.nodes().clone();
        let stream = resolve(stream, default)?;
        let mut last = executable.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let point = launch(&stream, *last, nodes)?;
        *last = point.or(*last);
        Ok(())
    }
    fn cuGraphDebugDotPrint(_graph: CUgraph, _path: *const c_char, _flags: c_uint) {
        unsupported("cuGraphDebugDotPrint")
    }
    fn cuUserObjectCreate(
        _to: *mut usize, _object: *mut c_void, _destroy: *const c_void, _count: c_uint, _flags: c_uint,
    ) {
        unsupported("cuUserObjectCreate")
    }
}
