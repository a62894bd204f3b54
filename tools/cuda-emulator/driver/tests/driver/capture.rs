//! Streams that are captured, and graphs.

use crate::{Client, code, kernels::ADD, launch, ok};
use emulated_cuda::abi::CUgraph;
use emulated_cuda::capture::{
    cuStreamBeginCapture_v2, cuStreamEndCapture, cuStreamGetCaptureInfo_v2, cuStreamIsCapturing,
};
use emulated_cuda::context::cuCtxSynchronize;
use emulated_cuda::edges::{
    cuGraphAddDependencies, cuGraphGetEdges, cuGraphNodeGetDependencies, cuGraphNodeGetDependentNodes,
};
use emulated_cuda::fill::cuMemsetD32Async;
use emulated_cuda::graph::{
    cuGraphCreate, cuGraphDestroy, cuGraphExecDestroy, cuGraphGetNodes, cuGraphInstantiateWithFlags, cuGraphLaunch,
};
use emulated_cuda::memory::cuMemAlloc_v2;
use emulated_cuda::node_params::{FillParams, KernelParams};
use emulated_cuda::nodes::{cuGraphAddEmptyNode, cuGraphAddKernelNode, cuGraphAddMemsetNode};
use emulated_cuda::nodes::{cuGraphExecKernelNodeSetParams, cuGraphExecMemsetNodeSetParams};
use emulated_cuda::stream::{cuStreamDestroy_v2, cuStreamSynchronize};
use std::ptr::{null, null_mut};

#[test]
fn a_captured_fork_runs_as_often_as_its_graph_is_launched() {
    let client = Client::new();
    let (first, second) = (client.stream(), client.stream());
    let add = client.function(client.load(ADD), "add");
    let (left, right) = (client.put(&[0; 8]), client.put(&[0; 8]));
    ok!(cuStreamBeginCapture_v2(first, 0));
    client.order(first, second);
    assert_eq!(launch(add, 1, 8, 0, first, &[left, 8]), 0);
    assert_eq!(launch(add, 1, 8, 0, second, &[right, 8]), 0);
    client.order(second, first);
    assert_eq!(launch(add, 1, 8, 0, first, &[right, 8]), 0);
    let mut capturing = 0;
    ok!(cuStreamIsCapturing(second, &mut capturing));
    assert_eq!(capturing, 1);
    let (mut graph, mut count, mut executable) = (0, 0, 0);
    ok!(cuStreamEndCapture(first, &mut graph));
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 3);
    assert_eq!(client.get(left, 1), [0], "nothing has run");
    // To free at each launch and to launch from a kernel exclude each other.
    assert_eq!(code!(cuGraphInstantiateWithFlags(&mut executable, graph, 5)), 1);
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ok!(cuGraphDestroy(graph));
    for _ in 0..2 {
        ok!(cuGraphLaunch(executable, first));
    }
    client.synchronize();
    assert_eq!((client.get(left, 2), client.get(right, 2)), (vec![200, 202], vec![400, 404]));
    ok!(cuGraphExecDestroy(executable));
}

#[test]
fn what_a_capture_forbids_invalidates_it() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[1]));
    let (mut graph, mut address) = (0, 0);
    ok!(cuStreamBeginCapture_v2(stream, 1));
    ok!(cuMemsetD32Async(values, 2, 1, stream));
    assert_eq!(code!(cuCtxSynchronize()), 900);
    assert_eq!(code!(cuStreamEndCapture(stream, &mut graph)), 901);
    ok!(cuStreamBeginCapture_v2(stream, 1));
    assert_eq!(code!(cuMemAlloc_v2(&mut address, 4)), 900);
    assert_eq!(code!(cuStreamEndCapture(stream, &mut graph)), 901);
    assert_eq!(client.get(values, 1), [1]);
}

#[test]
fn a_fork_that_is_not_joined_is_found_out() {
    let client = Client::new();
    let (first, second) = (client.stream(), client.stream());
    let (values, mut graph) = (client.put(&[1]), 0);
    ok!(cuStreamBeginCapture_v2(first, 2));
    client.order(first, second);
    ok!(cuMemsetD32Async(values, 2, 1, second));
    assert_eq!(code!(cuStreamEndCapture(second, &mut graph)), 903);
    assert_eq!(code!(cuStreamEndCapture(first, &mut graph)), 904);
}

#[test]
fn a_stream_that_is_destroyed_takes_its_capture_along() {
    let client = Client::new();
    let (second, values) = (client.stream(), client.put(&[1]));
    let (mut graph, mut address, mut capturing) = (0, 0, 9);
    let begin = |graph: &mut CUgraph| {
        let (first, mut status) = (client.stream(), 0);
        ok!(cuStreamBeginCapture_v2(first, 0));
        client.order(first, second);
        ok!(cuMemsetD32Async(values, 2, 1, second));
        ok!(cuStreamGetCaptureInfo_v2(first, &mut status, null_mut(), graph, null_mut(), null_mut()));
        first
    };
    let is_gone = |graph| code!(cuGraphGetNodes(graph, null_mut(), &mut 0)) == 1;
    ok!(cuStreamDestroy_v2(begin(&mut graph)));
    ok!(cuMemAlloc_v2(&mut address, 4));
    ok!(cuStreamIsCapturing(second, &mut capturing));
    assert!(capturing == 0 && is_gone(graph));
    // So does a context with its streams.
    begin(&mut graph);
    drop(client);
    assert!(is_gone(graph));
}

#[test]
fn a_graph_of_nodes_runs_in_the_order_of_its_edges_and_takes_new_arguments() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let (values, other) = (client.put(&[7; 4]), client.put(&[0; 4]));
    let (mut graph, mut fill, mut kernel, mut executable) = (0, 0, 0, 0);
    ok!(cuGraphCreate(&mut graph, 0));
    let arguments = [values, other, 4];
    let pointers = arguments.each_ref().map(|value| std::ptr::from_ref(value).cast());
    let lists = [[pointers[0], pointers[2]], [pointers[1], pointers[2]]];
    let launch = |list: usize| KernelParams {
        function: add,
        grid: [1; 3],
        block: [4, 1, 1],
        shared: 0,
        params: lists[list].as_ptr(),
        extra: null(),
    };
    let clear = FillParams { to: values, pitch: 0, value: 0, element: 4, width: 4, height: 1 };
    ok!(cuGraphAddKernelNode(&mut kernel, graph, null(), 0, &launch(0)));
    ok!(cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &clear, 0));
    ok!(cuGraphAddDependencies(graph, &fill, &kernel, 1));
    assert_eq!(code!(cuGraphAddDependencies(graph, &kernel, &fill, 1)), 1, "a cycle");
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    for _ in 0..20 {
        ok!(cuGraphLaunch(executable, 0));
        assert_eq!(client.get(values, 4), [100, 101, 102, 103]);
    }
    ok!(cuGraphExecKernelNodeSetParams(executable, kernel, &launch(1)));
    assert_eq!(code!(cuGraphExecKernelNodeSetParams(executable, fill, &launch(1))), 1, "another kind");
    ok!(cuGraphLaunch(executable, 0));
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![0], vec![100]));
}

#[test]
fn the_edges_of_a_graph_are_those_that_were_asked_for() {
    let _client = Client::new();
    let (mut graph, mut nodes) = (0, [0; 3]);
    ok!(cuGraphCreate(&mut graph, 0));
    ok!(cuGraphAddEmptyNode(&mut nodes[0], graph, null(), 0));
    ok!(cuGraphAddEmptyNode(&mut nodes[1], graph, nodes.as_ptr(), 1));
    ok!(cuGraphAddEmptyNode(&mut nodes[2], graph, nodes.as_ptr(), 2));
    let (mut from, mut to, mut count) = ([9; 4], [9; 4], 0);
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
    assert_eq!(count, 3);
    count = 4;
    ok!(cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count));
    assert_eq!((from, count), ([nodes[0], nodes[0], nodes[1], 0], 3));
    assert_eq!(to, [nodes[1], nodes[2], nodes[2], 0]);
    count = 1;
    ok!(cuGraphNodeGetDependencies(nodes[2], to.as_mut_ptr(), &mut count));
    assert_eq!((to[0], count), (nodes[0], 1));
    count = 4;
    ok!(cuGraphNodeGetDependentNodes(nodes[1], to.as_mut_ptr(), &mut count));
    assert_eq!((to[0], count), (nodes[2], 1));
}

#[test]
fn launches_of_one_graph_follow_each_other_in_whatever_streams() {
    let client = Client::new();
    let (first, second, values) = (client.stream(), client.stream(), client.put(&[0]));
    let (mut graph, mut node, mut executable) = (0, 0, 0);
    ok!(cuGraphCreate(&mut graph, 0));
    let fill = |value| FillParams { to: values, pitch: 0, value, element: 4, width: 1, height: 1 };
    ok!(cuGraphAddMemsetNode(&mut node, graph, null(), 0, &fill(0), 0));
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    for round in 1..=40 {
        ok!(cuGraphExecMemsetNodeSetParams(executable, node, &fill(2 * round), 0));
        ok!(cuGraphLaunch(executable, first));
        ok!(cuGraphExecMemsetNodeSetParams(executable, node, &fill(2 * round + 1), 0));
        ok!(cuGraphLaunch(executable, second));
        ok!(cuStreamSynchronize(second));
        client.synchronize();
        assert_eq!(client.get(values, 1), [2 * round + 1]);
    }
}
