//! Which nodes of a graph come after which.

use crate::abi::{CUgraph, CUgraphNode};
use crate::call::{api, out, unsupported, values};
use crate::engine::nodes::{Node, Nodes};
use crate::errors::{Answer, Code};
use crate::graph::{change, graph_of, nodes_of};

/// When the dependency of an edge is satisfied: port of the first node, port of the second one, type of the dependency,
/// five bytes of zeros.
pub type CUgraphEdgeData = [u8; 8];

/// A dependency that is satisfied when the first node is done.
pub const PLAIN: CUgraphEdgeData = [0; 8];

/// Refuses edges whose dependency is satisfied before their first node is done.
///
/// # Errors
/// There is such an edge, or data that mean nothing.
///
/// # Safety
/// `data` is null or has `count` values.
pub unsafe fn check_plain(data: *const CUgraphEdgeData, count: usize) -> Answer {
    // SAFETY: null is left out.
    let given = if data.is_null() { Vec::new() } else { unsafe { values(data, count) }? };
    match given.into_iter().find(|&edge| edge != PLAIN) {
        None => Ok(()),
        // A kernel says that it is far enough, or all its blocks have begun. The latter needs no type of its own.
        Some([1 | 2, 0, 1, 0, 0, 0, 0, 0] | [2, 0, 0, 0, 0, 0, 0, 0]) => {
            unsupported("an edge whose dependency is satisfied before its first node is done")
        }
        Some(_) => Err(Code::INVALID_VALUE),
    }
}

/// Does `each` to all edges of a list or, if it fails for one, to none.
///
/// # Safety
/// The lists are null or have `count` nodes.
unsafe fn change_all(
    graph: CUgraph,
    (from, to): (*const CUgraphNode, *const CUgraphNode),
    count: usize,
    each: fn(&mut Nodes, CUgraphNode, CUgraphNode) -> Answer,
) -> Answer {
    // SAFETY: null is refused where there is a count.
    let (from, to) = unsafe { (values(from, count)?, values(to, count)?) };
    change(graph, |nodes| {
        let mut changed = nodes.clone();
        from.into_iter().zip(to).try_for_each(|(from, to)| each(&mut changed, from, to))?;
        *nodes = changed;
        Ok(())
    })
}

/// Writes as many of `found` as the client has room for, or only their number if it gave no place.
///
/// # Errors
/// There is no place for the number.
///
/// # Safety
/// Each place is null or has room for as many as `count` says.
pub unsafe fn list<const N: usize>(
    found: &[[CUgraphNode; N]],
    places: [*mut CUgraphNode; N],
    count: *mut usize,
) -> Answer {
    // SAFETY: the caller's.
    unsafe {
        if places.iter().all(|place| place.is_null()) {
            return out(count, found.len());
        }
        let room = values(count, 1)?[0];
        for index in 0..room {
            let nodes = found.get(index).copied().unwrap_or([0; N]);
            for (place, node) in places.into_iter().zip(nodes).filter(|(place, _)| !place.is_null()) {
                out(place.add(index), node)?;
            }
        }
        out(count, room.min(found.len()))
    }
}

/// Writes edges as `list` does, and their data, which are all zeros.
///
/// # Safety
/// Each place is null or has room for as many as `count` says.
unsafe fn list_with_data<const N: usize>(
    found: &[[CUgraphNode; N]],
    places: [*mut CUgraphNode; N],
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    // SAFETY: the caller's.
    unsafe {
        if !data.is_null() {
            if places.iter().any(|place| place.is_null()) {
                return Err(Code::INVALID_VALUE);
            }
            for index in 0..values(count, 1)?[0] {
                out(data.add(index), PLAIN)?;
            }
        }
        list(found, places, count)
    }
}

/// The nodes at the other end of a node's edges; `own` is the end that the node is at.
fn neighbours(node: CUgraphNode, own: usize) -> Answer<Vec<[CUgraphNode; 1]>> {
    let all = edges(graph_of(node)?)?;
    Ok(all.iter().filter(|edge| edge[own] == node).map(|edge| [edge[1 - own]]).collect())
}

/// The edges of a graph: the node that comes first, and the one that comes after it.
fn edges(graph: CUgraph) -> Answer<Vec<[CUgraphNode; 2]>> {
    let nodes = nodes_of(graph)?;
    let into = |to: &Node| {
        let to_handle = to.handle;
        to.after.iter().map(|&from| [nodes[from].handle, to_handle]).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(into).collect())
}

api! {
    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        list(&edges(graph)?, [from, to], count)
    }
    fn cuGraphGetEdges_v2(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize,
    ) {
        list_with_data(&edges(graph)?, [from, to], data, count)
    }
    fn cuGraphNodeGetDependencies(node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        list(&neighbours(node, 1)?, [to], count)
    }
    fn cuGraphNodeGetDependencies_v2(
        node: CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize,
    ) {
        list_with_data(&neighbours(node, 1)?, [to], data, count)
    }
    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        list(&neighbours(node, 0)?, [to], count)
    }
    fn cuGraphNodeGetDependentNodes_v2(
        node: CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize,
    ) {
        list_with_data(&neighbours(node, 0)?, [to], data, count)
    }
    fn cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        change_all(graph, (from, to), count, Nodes::add_dependency)
    }
    fn cuGraphAddDependencies_v2(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize,
    ) {
        check_plain(data, count)?;
        change_all(graph, (from, to), count, Nodes::add_dependency)
    }
    fn cuGraphRemoveDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        change_all(graph, (from, to), count, Nodes::remove_dependency)
    }
    fn cuGraphRemoveDependencies_v2(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize,
    ) {
        check_plain(data, count)?;
        change_all(graph, (from, to), count, Nodes::remove_dependency)
    }
}
