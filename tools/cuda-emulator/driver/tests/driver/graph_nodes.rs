//! Nodes of graphs: what they are made of, and how they are changed.

use crate::common::{Arguments, executable, fill, fill_of, graph};
use crate::{Client, code, kernels::ADD, ok};
use emulated_cuda::abi::{CUDA_MEMCPY3D, CUgraph, CUlaunchAttribute, CUlaunchConfig};
use emulated_cuda::abi::{MEMORY_DEVICE, MEMORY_HOST};
use emulated_cuda::capture::{cuStreamBeginCapture_v2, cuStreamEndCapture};
use emulated_cuda::edges::{
    cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphGetEdges, cuGraphGetEdges_v2,
    cuGraphNodeGetDependencies_v2, cuGraphRemoveDependencies, cuGraphRemoveDependencies_v2,
};
use emulated_cuda::event::cuEventQuery;
use emulated_cuda::graph::{
    InstantiateParams, UpdateInfo, cuGraphClone, cuGraphExecUpdate_v2, cuGraphGetNodes, cuGraphInstantiateWithParams,
    cuGraphLaunch, cuGraphNodeFindInClone, cuGraphNodeGetType,
};
use emulated_cuda::launch::cuLaunchKernelEx;
use emulated_cuda::library::{cuLibraryGetKernel, cuLibraryLoadData};
use emulated_cuda::node_params::{FillParams, HostParams, KernelParams, KernelParamsV2, NodeParams};
use emulated_cuda::nodes::{
    cuGraphAddKernelNode, cuGraphAddKernelNode_v2, cuGraphAddMemsetNode, cuGraphAddNode, cuGraphAddNode_v2,
    cuGraphDestroyNode, cuGraphExecMemsetNodeSetParams, cuGraphExecNodeSetParams, cuGraphHostNodeGetParams,
    cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetParams,
    cuGraphKernelNodeSetParams_v2, cuGraphMemsetNodeGetParams, cuGraphMemsetNodeSetParams, cuGraphNodeSetParams,
};
use emulated_cuda::stream::cuStreamCreate;
use std::ffi::{CString, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut, without_provenance};

fn run(graph: CUgraph) {
    ok!(cuGraphLaunch(executable(graph), 0));
}

#[test]
fn the_parameters_of_a_kernel_s_node_are_returned_and_make_another_node() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let (values, other) = (client.put(&[1; 4]), client.put(&[2; 4]));
    let (graph, mut node, mut copy) = (graph(), 0, 0);
    let mut arguments = Arguments::new(values);
    ok!(cuGraphAddKernelNode(&mut node, graph, null(), 0, &arguments.of(add)));
    // The node has taken the arguments.
    arguments.values[0] = 0;
    // SAFETY: zeros are a value of the structure.
    let mut got: KernelParamsV2 = unsafe { zeroed() };
    ok!(cuGraphKernelNodeGetParams_v2(node, &mut got));
    assert_eq!((got.first.function, got.kernel, got.context), (add, 0, client.0));
    assert_eq!((got.first.grid, got.first.block, got.first.shared), ([1; 3], [4, 1, 1], 0));
    // SAFETY: the driver's list has a pointer to each argument.
    let first = unsafe { (*got.first.params).cast::<u64>().read_unaligned() };
    assert_eq!(first, values);
    ok!(cuGraphAddKernelNode_v2(&mut copy, graph, &node, 1, &got));
    run(graph);
    assert_eq!(client.get(values, 2), [201, 203]);
    // Other arguments, of the graph and not of what was made from it.
    let before = executable(graph);
    let second = Arguments::new(other);
    ok!(cuGraphKernelNodeSetParams_v2(copy, &KernelParamsV2 { first: second.of(add), ..got }));
    run(graph);
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![301], vec![102]));
    ok!(cuGraphLaunch(before, 0));
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![501], vec![102]));
    let mut shown = got.first;
    ok!(cuGraphKernelNodeGetParams(copy, &mut shown));
    ok!(cuGraphKernelNodeSetParams(node, &shown));
    run(graph);
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![501], vec![302]));
    let clear = fill(graph, &[], values, 0, 4);
    assert_eq!(code!(cuGraphKernelNodeGetParams(clear, &mut shown)), 1, "another kind");
    assert_eq!(code!(cuGraphKernelNodeGetParams(node, null_mut())), 1);
    assert_eq!(code!(cuGraphKernelNodeGetParams(3, &mut shown)), 1);
}

#[test]
fn a_kernel_s_node_returns_its_arguments_and_its_kernel_as_they_were_given() {
    let client = Client::new();
    let values = client.put(&[1; 4]);
    let (text, mut library, mut kernel) = (CString::new(ADD).expect("a text without zeros"), 0, 0);
    ok!(cuLibraryLoadData(&mut library, text.as_ptr().cast(), null(), null(), 0, null(), null(), 0));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    let (graph, mut node, mut copy) = (graph(), 0, 0);
    let (buffer, mut bytes) = ([values, 4], 16usize);
    let extra = [without_provenance(1), buffer.as_ptr().cast(), without_provenance(2), (&raw mut bytes).cast(), null()];
    let first = KernelParams { params: null(), extra: extra.as_ptr(), ..Arguments::new(values).of(0) };
    let given = KernelParamsV2 { first, kernel, context: 0 };
    ok!(cuGraphAddKernelNode_v2(&mut node, graph, null(), 0, &given));
    let mut got = given;
    ok!(cuGraphKernelNodeGetParams_v2(node, &mut got));
    assert_eq!((got.first.function, got.kernel, got.first.params.is_null()), (0, kernel, true));
    assert!(!std::ptr::eq(got.first.extra, extra.as_ptr()));
    ok!(cuGraphAddKernelNode_v2(&mut copy, graph, &node, 1, &got));
    run(graph);
    assert_eq!(client.get(values, 2), [201, 203]);
    let nothing = KernelParamsV2 { kernel: 0, ..given };
    assert_eq!(code!(cuGraphAddKernelNode_v2(&mut copy, graph, null(), 0, &nothing)), 1);
}

#[test]
fn a_captured_cluster_stays_when_the_parameters_of_its_node_change() {
    // Writes the number of blocks of its cluster.
    let text = "
.version 8.3
.target sm_90a
.address_size 64
.visible .entry size(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %cluster_nctaid.x;
    atom.global.max.u32 %r1, [%rd1], %r1;
    ret;
}";
    let client = Client::new();
    let (stream, values, other) = (client.stream(), client.put(&[0]), client.put(&[0]));
    let size = client.function(client.load(text), "size");
    let mut value = [0; 16];
    value[..3].copy_from_slice(&[2, 1, 1]);
    let attribute = CUlaunchAttribute { id: 4, pad: [0; 4], value };
    // SAFETY: zeros are a value of the structure.
    let mut config: CUlaunchConfig = unsafe { zeroed() };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (2, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (1, 1, 1);
    (config.hStream, config.attrs, config.numAttrs) = (stream, &attribute, 1);
    let (mut graph, mut node, mut count) = (0, 0, 1);
    ok!(cuStreamBeginCapture_v2(stream, 0));
    ok!(cuLaunchKernelEx(&config, size, [std::ptr::from_ref(&values).cast()].as_ptr(), null()));
    ok!(cuStreamEndCapture(stream, &mut graph));
    ok!(cuGraphGetNodes(graph, &mut node, &mut count));
    let changed = Arguments::new(other);
    ok!(cuGraphKernelNodeSetParams(node, &KernelParams { grid: [4, 1, 1], block: [1; 3], ..changed.of(size) }));
    let odd = KernelParams { grid: [3, 1, 1], ..changed.of(size) };
    assert_eq!(code!(cuGraphKernelNodeSetParams(node, &odd)), 1, "no multiple of the cluster");
    run(graph);
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![0], vec![2]));
}

#[test]
fn edges_are_added_and_removed_all_or_none() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let values = client.put(&[1; 4]);
    let (graph, arguments, mut kernel) = (graph(), Arguments::new(values), 0);
    let clear = fill(graph, &[], values, 0, 4);
    ok!(cuGraphAddKernelNode(&mut kernel, graph, &clear, 1, &arguments.of(add)));
    let edges = || {
        let mut count = 0;
        ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
        count
    };
    let last = fill(graph, &[], values, 7, 4);
    let (from, to) = ([kernel, clear], [last, kernel]);
    assert_eq!(code!(cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 2)), 1, "the second is there");
    assert_eq!(edges(), 1);
    ok!(cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 1));
    let run_some = |expected: u32| {
        for _ in 0..10 {
            run(graph);
            assert_eq!(client.get(values, 1), [expected]);
        }
    };
    run_some(7);
    // Now the kernel is the last.
    ok!(cuGraphRemoveDependencies(graph, &kernel, &last, 1));
    assert_eq!(code!(cuGraphRemoveDependencies(graph, &kernel, &last, 1)), 1);
    ok!(cuGraphAddDependencies_v2(graph, &last, &kernel, null(), 1));
    ok!(cuGraphAddDependencies(graph, &clear, &last, 1));
    run_some(107);
    let (mut data, mut nodes, mut count) = ([[9u8; 8]; 4], [0; 4], 4);
    ok!(cuGraphNodeGetDependencies_v2(kernel, nodes.as_mut_ptr(), data.as_mut_ptr(), &mut count));
    assert_eq!((count, nodes, data), (2, [clear, last, 0, 0], [[0; 8]; 4]));
    assert_eq!(code!(cuGraphGetEdges_v2(graph, null_mut(), null_mut(), data.as_mut_ptr(), &mut count)), 1);
    ok!(cuGraphRemoveDependencies_v2(graph, &clear, &kernel, &[0; 8], 1));
    assert_eq!(edges(), 2);
    // The port for programmatic launches needs an edge of that type; the one for the order of launches takes both.
    for (port, kind, expected) in [(1, 1, 801), (2, 1, 801), (2, 0, 801), (1, 0, 1), (0, 1, 1), (3, 1, 1)] {
        let edge = [port, 0, kind, 0, 0, 0, 0, 0];
        assert_eq!(code!(cuGraphAddDependencies_v2(graph, &clear, &kernel, &edge, 1)), expected, "{edge:?}");
    }
    run_some(107);
}

#[test]
fn a_node_that_is_destroyed_is_gone_from_its_graph_alone() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let values = client.put(&[1; 4]);
    let (graph, arguments, mut kernel, mut copy, mut cloned) = (graph(), Arguments::new(values), 0, 0, 0);
    // The first node goes, so that the others move up.
    let clear = fill(graph, &[], values, 0, 4);
    let other = fill(graph, &[], client.put(&[0; 4]), 1, 4);
    ok!(cuGraphAddKernelNode(&mut kernel, graph, [other, clear].as_ptr(), 2, &arguments.of(add)));
    let before = executable(graph);
    ok!(cuGraphClone(&mut copy, graph));
    ok!(cuGraphNodeFindInClone(&mut cloned, clear, copy));
    assert_ne!(cloned, clear);
    assert_eq!(code!(cuGraphNodeFindInClone(&mut cloned, clear, graph)), 1, "no clone");
    ok!(cuGraphDestroyNode(clear));
    let (mut nodes, mut count, mut kind) = ([0; 3], 3, 0);
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!((nodes, count), ([other, kernel, 0], 2));
    assert_eq!((code!(cuGraphNodeGetType(clear, &mut kind)), code!(cuGraphDestroyNode(clear))), (1, 1));
    let (mut from, mut to, mut edges) = ([0; 2], [0; 2], 2);
    ok!(cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut edges));
    assert_eq!((from[0], to[0], edges), (other, kernel, 1));
    run(graph);
    assert_eq!(client.get(values, 1), [101], "nothing clears the values");
    for whole in [before, executable(copy)] {
        ok!(cuGraphLaunch(whole, 0));
        assert_eq!(client.get(values, 1), [100]);
    }
    ok!(cuGraphDestroyNode(cloned));
    run(copy);
    assert_eq!(client.get(values, 1), [200]);
}

#[test]
fn the_parameters_of_an_instantiation_return_its_result() {
    let client = Client::new();
    let (values, stream, graph) = (client.put(&[1; 4]), client.stream(), graph());
    fill(graph, &[], values, 6, 4);
    let make = |flags, upload| {
        let (mut executable, mut params) = (0, InstantiateParams { flags, upload, node: 9, result: 9 });
        let code = code!(cuGraphInstantiateWithParams(&mut executable, graph, &mut params));
        (code, params.result, params.node, executable)
    };
    // To free at each launch and to launch from a kernel exclude each other; the latter is not supported.
    assert_eq!((make(5, 0), make(16, 0), make(4, 0)), ((1, 1, 0, 0), (1, 1, 0, 0), (801, 1, 0, 0)));
    assert_eq!(make(2, 3), (400, 1, 0, 0), "no stream to upload in");
    let (code, result, node, executable) = make(2, stream);
    assert_eq!((code, result, node), (0, 0, 0));
    ok!(cuGraphLaunch(executable, stream));
    client.synchronize();
    assert_eq!(client.get(values, 4), [6; 4]);
    let mut none = 0;
    assert_eq!(code!(cuGraphInstantiateWithParams(&mut none, graph, null_mut())), 1);
    // The default stream cannot upload while a stream that waits for it is captured.
    let mut captured = 0;
    ok!(cuStreamCreate(&mut captured, 0));
    ok!(cuStreamBeginCapture_v2(captured, 2));
    assert_eq!(make(2, 0), (906, 1, 0, 0));
}

#[test]
fn the_nodes_of_an_executable_graph_keep_their_handles_through_an_update() {
    let client = Client::new();
    let (values, other) = (client.put(&[0; 4]), client.put(&[0; 4]));
    let (graph, newer) = (graph(), graph());
    let (node, foreign) = (fill(graph, &[], values, 1, 4), fill(newer, &[], other, 2, 4));
    let ready = executable(graph);
    let mut info = UpdateInfo { result: 9, node: 9, from: 9 };
    ok!(cuGraphExecUpdate_v2(ready, newer, &mut info));
    assert_eq!(info.result, 0);
    ok!(cuGraphLaunch(ready, 0));
    assert_eq!((client.get(values, 1), client.get(other, 1)), (vec![0], vec![2]));
    assert_eq!(code!(cuGraphExecMemsetNodeSetParams(ready, foreign, &fill_of(values, 3, 4), 0)), 1);
    ok!(cuGraphExecMemsetNodeSetParams(ready, node, &fill_of(values, 3, 4), 0));
    ok!(cuGraphLaunch(ready, 0));
    assert_eq!(client.get(values, 1), [3]);
}

/// Parameters of any kind: what the union holds is at its start.
fn any<T>(kind: i32, body: T) -> NodeParams {
    let mut params = NodeParams { kind, reserved: [0; 3], body: [0; 29], end: 0 };
    assert!(size_of::<T>() <= size_of_val(&params.body) && size_of::<NodeParams>() == 256);
    // SAFETY: the union has room for it.
    unsafe { params.body.as_mut_ptr().cast::<T>().write(body) };
    params
}

/// Adds one to the number behind `data`.
unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the test passes such a number, and waits before it reads it.
    unsafe { *data.cast::<u32>() += 1 };
}

#[test]
fn one_function_adds_nodes_of_all_kinds() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let (values, seen, calls) = (client.put(&[1; 4]), client.pinned(4), client.pinned(1));
    let (event, graph, arguments) = (client.record(0), graph(), Arguments::new(values));
    let host = HostParams { function: Some(count), data: calls.as_mut_ptr().cast() };
    let copy = CUDA_MEMCPY3D {
        srcMemoryType: MEMORY_DEVICE,
        srcDevice: values,
        dstMemoryType: MEMORY_HOST,
        dstHost: seen.as_mut_ptr() as usize,
        WidthInBytes: 16,
        Height: 1,
        Depth: 1,
        ..Default::default()
    };
    let mut all = [
        any(2, (fill_of(values, 10, 4), client.0)),
        any(0, KernelParamsV2 { first: arguments.of(add), kernel: 0, context: 0 }),
        any(1, (0u64, client.0, copy)),
        any(3, host),
        any(5, [0u64; 0]),
        any(6, event),
        any(7, event),
    ];
    let (mut nodes, mut kind) = (vec![0], -1);
    for (index, params) in all.iter_mut().enumerate() {
        let (mut node, before) = (0, usize::from(index > 0));
        match index % 2 {
            0 => ok!(cuGraphAddNode(&mut node, graph, &nodes[index], before, params)),
            _ => ok!(cuGraphAddNode_v2(&mut node, graph, &nodes[index], null(), before, params)),
        }
        ok!(cuGraphNodeGetType(node, &mut kind));
        assert_eq!(kind, params.kind);
        nodes.push(node);
    }
    let ready = executable(graph);
    ok!(cuGraphLaunch(ready, 0));
    client.synchronize();
    ok!(cuEventQuery(event));
    assert_eq!((&*seen, calls[0]), (&[110, 111, 112, 113][..], 1));
    // Other parameters, of the executable graph and then of the graph.
    let mut twenty = any(2, (fill_of(values, 20, 4), client.0));
    ok!(cuGraphExecNodeSetParams(ready, nodes[1], &mut twenty));
    assert_eq!(code!(cuGraphNodeSetParams(nodes[2], &mut twenty)), 1, "another kind");
    ok!(cuGraphLaunch(ready, 0));
    client.synchronize();
    assert_eq!(seen[0], 120);
    ok!(cuGraphNodeSetParams(nodes[1], &mut any(2, (fill_of(values, 30, 4), client.0))));
    run(graph);
    client.synchronize();
    assert_eq!((seen[0], calls[0]), (130, 3));
    let mut wrong = all[3];
    wrong.body[28] = 1;
    let (mut node, mut child, mut unknown) = (0, any(4, graph), any(14, 0u64));
    let mut code = |params| code!(cuGraphAddNode(&mut node, graph, null(), 0, params));
    assert_eq!([code(&mut wrong), code(&mut child), code(&mut unknown), code(null_mut())], [1, 801, 1, 1]);
}

#[test]
fn the_parameters_of_fills_and_of_calls_are_returned() {
    let client = Client::new();
    let (values, graph) = (client.put(&[1; 8]), graph());
    let given = FillParams { to: values, pitch: 16, value: 0x0505, element: 2, width: 3, height: 2 };
    let (mut node, mut got) = (0, fill_of(0, 0, 4));
    ok!(cuGraphAddMemsetNode(&mut node, graph, null(), 0, &given, 0));
    ok!(cuGraphMemsetNodeGetParams(node, &mut got));
    let fields = |p: FillParams| (p.to, p.pitch, p.value, p.element, p.width, p.height);
    assert_eq!(fields(got), fields(given));
    ok!(cuGraphMemsetNodeSetParams(node, &FillParams { value: 0x0707, ..got }));
    run(graph);
    assert_eq!(client.get(values, 8), [0x0707_0707, 0x0707, 1, 1, 0x0707_0707, 0x0707, 1, 1]);
    let host = HostParams { function: Some(count), data: without_provenance::<c_void>(16).cast_mut() };
    let (mut call, mut shown) = (0, HostParams { function: None, data: null_mut() });
    ok!(cuGraphAddNode(&mut call, graph, null(), 0, &mut any(3, host)));
    ok!(cuGraphHostNodeGetParams(call, &mut shown));
    assert_eq!((shown.function.map(|f| f as usize), shown.data as usize), (Some(count as *const () as usize), 16));
    assert_eq!(code!(cuGraphHostNodeGetParams(node, &mut shown)), 1, "another kind");
}
