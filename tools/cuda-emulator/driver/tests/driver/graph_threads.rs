//! Launches of graphs while another thread uses the stream.

use crate::common::{event, executable, graph, record};
use crate::{Client, code, ok};
use emulated_cuda::abi::{CUDA_MEMCPY3D, CUgraph, CUgraphNode, CUstream, MEMORY_DEVICE};
use emulated_cuda::capture::{cuStreamBeginCapture_v2, cuStreamEndCapture};
use emulated_cuda::context::cuCtxSetCurrent;
use emulated_cuda::event::{cuEventRecordWithFlags, cuEventSynchronize};
use emulated_cuda::fill::cuMemsetD32Async;
use emulated_cuda::graph::{cuGraphDestroy, cuGraphGetNodes, cuGraphLaunch, cuGraphNodeGetType};
use emulated_cuda::nodes::cuGraphAddMemcpyNode;
use emulated_cuda::stream::cuStreamCreate;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most calls of a second thread while the first one does its part. More make the test slower on a busy machine.
const CALLS: usize = 30;

/// Runs `own`, and `other` in a second thread again and again from before `own` begins.
fn beside(client: &Client, own: impl FnOnce(), other: impl Fn() + Sync) {
    let begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            ok!(cuCtxSetCurrent(client.0));
            for _ in 0..CALLS {
                other();
                begun.store(true, Ordering::Release);
            }
        });
        while !begun.load(Ordering::Acquire) && !second.is_finished() {
            std::thread::yield_now();
        }
        own();
    });
}

/// A node that copies one value on the card.
fn copy(graph: CUgraph, after: &[CUgraphNode], from: u64, to: u64) -> CUgraphNode {
    let (mut node, params) = (
        0,
        CUDA_MEMCPY3D {
            srcMemoryType: MEMORY_DEVICE,
            srcDevice: from,
            dstMemoryType: MEMORY_DEVICE,
            dstDevice: to,
            WidthInBytes: 4,
            Height: 1,
            Depth: 1,
            ..Default::default()
        },
    );
    ok!(cuGraphAddMemcpyNode(&mut node, graph, after.as_ptr(), after.len(), &params, 0));
    node
}

#[test]
fn other_work_of_a_stream_runs_before_or_after_all_nodes_of_a_graph() {
    let client = Client::new();
    let (mut stream, values, seen, event) = (0, client.put(&[0]), client.put(&[0; 2]), event());
    let round = AtomicU32::new(0);
    ok!(cuStreamCreate(&mut stream, 0));
    // Reads the value, records an event many times, and reads the value again.
    let graph = graph();
    let mut last = copy(graph, &[], values, seen);
    for _ in 0..100 {
        last = record(graph, &[last], event);
    }
    copy(graph, &[last], values, seen + 4);
    let executable = executable(graph);
    for other in [stream, 0].repeat(50) {
        let fill = || ok!(cuMemsetD32Async(values, round.fetch_add(1, Ordering::Relaxed), 1, other));
        beside(&client, || ok!(cuGraphLaunch(executable, stream)), fill);
        client.synchronize();
        let seen = client.get(seen, 2);
        assert_eq!(seen[0], seen[1], "the fill ran between the nodes");
    }
}

#[test]
fn a_launch_or_an_external_event_is_captured_or_not_while_another_thread_captures() {
    const RELAXED: u32 = 2;
    let client = Client::new();
    let (stream, event, graph): (CUstream, _, _) = (client.stream(), event(), graph());
    for _ in 0..50 {
        record(graph, &[], event);
    }
    let executable = executable(graph);
    let capture = || {
        let (mut captured, mut count) = (0, 0);
        ok!(cuStreamBeginCapture_v2(stream, RELAXED));
        std::thread::yield_now();
        ok!(cuStreamEndCapture(stream, &mut captured));
        ok!(cuGraphGetNodes(captured, null_mut(), &mut count));
        let mut nodes = vec![0; count];
        ok!(cuGraphGetNodes(captured, nodes.as_mut_ptr(), &mut count));
        for node in nodes {
            let mut kind = -1;
            ok!(cuGraphNodeGetType(node, &mut kind));
            assert!([4, 7].contains(&kind), "a node of kind {kind}, and no graph or event");
        }
        ok!(cuGraphDestroy(captured));
    };
    let use_event = || {
        ok!(cuGraphLaunch(executable, stream));
        assert!([0, 1].contains(&code!(cuEventRecordWithFlags(event, stream, 1))));
        ok!(cuEventSynchronize(event));
    };
    for _ in 0..50 {
        beside(&client, capture, use_event);
    }
    client.synchronize();
}
