//! Captures into graphs that have nodes already.

use crate::common::{executable, fill, graph};
use crate::{Client, code, kernels::ADD, launch, ok};
use emulated_cuda::abi::{CUgraph, CUgraphNode, CUstream};
use emulated_cuda::capture::{
    cuStreamBeginCapture_v2, cuStreamBeginCaptureToGraph, cuStreamEndCapture, cuStreamGetCaptureInfo_v2,
    cuStreamGetCaptureInfo_v3, cuStreamUpdateCaptureDependencies,
};
use emulated_cuda::context::cuCtxSynchronize;
use emulated_cuda::edges::{cuGraphGetEdges, cuGraphRemoveDependencies};
use emulated_cuda::fill::cuMemsetD32Async;
use emulated_cuda::graph::{cuGraphDestroy, cuGraphGetNodes, cuGraphInstantiateWithFlags, cuGraphLaunch};
use emulated_cuda::nodes::{cuGraphAddEmptyNode, cuGraphDestroyNode};
use std::ptr::{null, null_mut};

#[test]
fn captured_work_comes_after_the_nodes_that_were_named() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[1; 4]));
    let add = client.function(client.load(ADD), "add");
    let (graph, mut ready) = (graph(), 0);
    let first = fill(graph, &[], values, 50, 4);
    ok!(cuStreamBeginCaptureToGraph(stream, graph, &first, null(), 1, 0));
    assert_eq!(launch(add, 1, 4, 0, stream, &[values, 4]), 0);
    assert_eq!(code!(cuGraphInstantiateWithFlags(&mut ready, graph, 0)), 1, "the capture goes on");
    assert_eq!((code!(cuGraphDestroyNode(first)), code!(cuGraphDestroy(graph))), (1, 1));
    let mut ended = 0;
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!(ended, graph);
    let (mut from, mut to, mut count) = ([0; 2], [0; 2], 2);
    ok!(cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count));
    assert_eq!((count, from[0]), (1, first));
    let ready = executable(graph);
    for _ in 0..20 {
        ok!(cuGraphLaunch(ready, stream));
    }
    client.synchronize();
    assert_eq!(client.get(values, 2), [150, 151]);
}

#[test]
fn a_capture_cannot_begin_after_nodes_of_another_graph_or_without_one() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[0; 4]));
    let (graph, other) = (graph(), graph());
    let (own, foreign) = (fill(graph, &[], values, 1, 4), fill(other, &[], values, 2, 4));
    let begin = |graph, nodes: &[CUgraphNode], edges: *const [u8; 8]| {
        code!(cuStreamBeginCaptureToGraph(stream, graph, nodes.as_ptr(), edges, nodes.len(), 0))
    };
    assert_eq!(begin(graph, &[foreign], null()), 1);
    assert_eq!(begin(graph, &[own, own], null()), 1);
    assert_eq!(begin(graph + 8, &[], null()), 1);
    assert_eq!(begin(graph, &[own], &[0, 1, 0, 0, 0, 0, 0, 0]), 1);
    // A kernel that starts before the one before it has ended.
    assert_eq!(begin(graph, &[own], &[1, 0, 1, 0, 0, 0, 0, 0]), 801);
    assert_eq!(begin(graph, &[own], &[0; 8]), 0);
    assert_eq!(begin(other, &[], null()), 401, "the stream is being captured");
    let mut ended = 0;
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!(ended, graph);
}

#[test]
fn a_lost_capture_leaves_the_graph_to_the_client() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[0; 4]));
    let (graph, mut ended, mut count) = (graph(), 7, 0);
    fill(graph, &[], values, 1, 4);
    ok!(cuStreamBeginCaptureToGraph(stream, graph, null(), null(), 0, 0));
    assert_eq!(code!(cuCtxSynchronize()), 900);
    assert_eq!(code!(cuStreamEndCapture(stream, &mut ended)), 901);
    assert_eq!(ended, 0);
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 1);
    ok!(cuGraphDestroy(graph));
}

#[test]
fn a_capture_returns_its_graph_and_its_next_dependencies_which_a_client_may_change() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[0; 4]));
    ok!(cuStreamBeginCapture_v2(stream, 0));
    ok!(cuMemsetD32Async(values, 1, 4, stream));
    let (graph, next) = info(stream);
    let (mut all, mut count) = ([0; 2], 2);
    ok!(cuGraphGetNodes(graph, all.as_mut_ptr(), &mut count));
    assert_eq!((next.as_slice(), count), (&all[..1], 1));
    // A node of the client takes the place of the captured one.
    let mut own = 0;
    ok!(cuGraphAddEmptyNode(&mut own, graph, next.as_ptr(), 1));
    ok!(cuStreamUpdateCaptureDependencies(stream, &own, 1, 1));
    assert_eq!(info(stream).1, [own]);
    ok!(cuStreamUpdateCaptureDependencies(stream, next.as_ptr(), 1, 0));
    assert_eq!(info(stream).1.len(), 2);
    let (mut status, mut nodes, mut edges, mut length) = (0, null(), null::<[u8; 8]>(), 0);
    let (id, place) = (null_mut(), null_mut());
    ok!(cuStreamGetCaptureInfo_v3(stream, &mut status, id, place, &mut nodes, &mut edges, &mut length));
    // SAFETY: the driver's lists hold until the next work of the stream.
    assert_eq!((length, unsafe { (*edges, *edges.add(1)) }), (2, ([0; 8], [0; 8])));
    assert_eq!(
        code!(cuStreamGetCaptureInfo_v3(stream, &mut status, id, place, null_mut(), &mut edges, &mut length)),
        1
    );
    assert_eq!(code!(cuStreamUpdateCaptureDependencies(stream, &3, 1, 0)), 1);
    ok!(cuMemsetD32Async(values, 2, 4, stream));
    let (mut ended, mut edges) = (0, 0);
    ok!(cuStreamEndCapture(stream, &mut ended));
    ok!(cuGraphGetEdges(ended, null_mut(), null_mut(), &mut edges));
    assert_eq!((ended, edges), (graph, 3));
    assert_eq!(code!(cuStreamUpdateCaptureDependencies(stream, &own, 1, 1)), 401);
}

#[test]
fn work_that_a_client_takes_out_of_the_dependencies_need_not_be_joined() {
    let client = Client::new();
    let (first, second, values) = (client.stream(), client.stream(), client.put(&[0; 4]));
    // What the second stream captures is joined by the first, and then made unreachable: by the stream's dependencies,
    // or by the edges of the graph.
    for by_edge in [false, true] {
        let mut ended = 0;
        ok!(cuStreamBeginCapture_v2(first, 0));
        ok!(cuMemsetD32Async(values, 1, 4, first));
        let (graph, before) = info(first);
        client.order(first, second);
        ok!(cuMemsetD32Async(values, 2, 4, second));
        let forked = info(second).1;
        client.order(second, first);
        if by_edge {
            ok!(cuMemsetD32Async(values, 3, 4, first));
            let last = info(first).1;
            ok!(cuGraphRemoveDependencies(graph, forked.as_ptr(), last.as_ptr(), 1));
        } else {
            ok!(cuStreamUpdateCaptureDependencies(first, before.as_ptr(), 1, 1));
        }
        ok!(cuStreamEndCapture(first, &mut ended));
        assert_eq!(ended, graph);
    }
}

/// The graph of a capture, and the nodes that the next one of a stream comes after.
fn info(stream: CUstream) -> (CUgraph, Vec<CUgraphNode>) {
    let (mut status, mut id, mut graph, mut nodes, mut count) = (0, 0, 0, null(), 0);
    ok!(cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count));
    assert_eq!(status, 1);
    // SAFETY: the driver's list holds until the next work of the stream.
    (graph, (0..count).map(|index| unsafe { *nodes.add(index) }).collect())
}
