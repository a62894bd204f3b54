//! Which nodes of a graph come after which.

use crate::abi::{CUgraph, CUgraphNode};
use crate::call::{api, out, values};
use crate::errors::Answer;
use crate::graph::{graph_of, nodes_of};

/// Writes as many of `found` as the client has room for, or only their number if it gave no place.
///
/// # Safety
/// Each place is null or has room for as many as `count` says.
unsafe fn list<const N: usize>(found: &[[CUgraphNode; N]], places: [*mut CUgraphNode; N], count: *mut usize) -> Answer {
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

/// The edges of a graph: the node that comes first, and the one that comes after it.
fn edges(graph: CUgraph) -> Answer<Vec<[CUgraphNode; 2]>> {
    let nodes = nodes_of(graph)?;
    let into = |to: &crate::engine::work::Node| {
        let to_handle = to.handle;
        to.after.iter().map(|&from| [nodes[from].handle, to_handle]).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(into).collect())
}

api! {
    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        list(&edges(graph)?, [from, to], count)
    }
    fn cuGraphNodeGetDependencies(node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        let all = edges(graph_of(node)?)?;
        let found: Vec<_> = all.iter().filter(|edge| edge[1] == node).map(|edge| [edge[0]]).collect();
        list(&found, [to], count)
    }
    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        let all = edges(graph_of(node)?)?;
        let found: Vec<_> = all.iter().filter(|edge| edge[0] == node).map(|edge| [edge[1]]).collect();
        list(&found, [to], count)
    }
}
