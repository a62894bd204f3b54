//! Graphs with kernels of a context that is not the current one.

use crate::common::{Arguments, executable, graph};
use crate::{Client, code, kernels::ADD, ok};
use emulated_cuda::context::cuCtxSynchronize_v2;
use emulated_cuda::graph::cuGraphLaunch;
use emulated_cuda::memory::cuMemAlloc_v2;
use emulated_cuda::node_params::KernelParamsV2;
use emulated_cuda::nodes::{cuGraphAddKernelNode, cuGraphAddKernelNode_v2, cuGraphKernelNodeGetParams_v2};
use std::ptr::null;

#[test]
fn a_kernel_s_node_belongs_to_the_context_of_its_function() {
    let owner = Client::new();
    let add = owner.function(owner.load(ADD), "add");
    let values = owner.put(&[1; 4]);
    let client = Client::new();
    let (graph, arguments, mut nodes) = (graph(), Arguments::new(values), [0; 2]);
    ok!(cuGraphAddKernelNode(&mut nodes[0], graph, null(), 0, &arguments.of(add)));
    // The context counts only if a kernel of a library is named.
    let mut params = KernelParamsV2 { first: arguments.of(add), kernel: 0, context: client.0 };
    ok!(cuGraphAddKernelNode_v2(&mut nodes[1], graph, nodes.as_ptr(), 1, &params));
    for node in nodes {
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut params));
        assert_eq!(params.context, owner.0);
    }
    ok!(cuGraphLaunch(executable(graph), 0));
    client.synchronize();
    assert_eq!(client.get(values, 2), [201, 203]);
}

#[test]
fn a_fault_of_a_node_ends_the_context_of_its_kernel_too() {
    let owner = Client::new();
    let add = owner.function(owner.load(ADD), "add");
    let (graph, arguments, mut node) = (graph(), Arguments::new(16), 0);
    ok!(cuGraphAddKernelNode(&mut node, graph, null(), 0, &arguments.of(add)));
    let client = Client::new();
    ok!(cuGraphLaunch(executable(graph), 0));
    assert_eq!(code!(cuCtxSynchronize_v2(client.0)), 700);
    assert_eq!(code!(cuCtxSynchronize_v2(owner.0)), 700);
    drop(client);
    assert_eq!(code!(cuMemAlloc_v2(&mut 0, 4)), 700);
}
