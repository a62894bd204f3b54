//! Graphs that record events and wait for them.

use crate::common::{event, executable, fill, graph, host, pointer, record, set, wait_for};
use crate::{Client, code, ok};
use emulated_cuda::capture::{cuStreamBeginCapture_v2, cuStreamEndCapture};
use emulated_cuda::event::{
    cuEventDestroy_v2, cuEventElapsedTime, cuEventQuery, cuEventRecordWithFlags, cuEventSynchronize,
};
use emulated_cuda::fill::cuMemsetD32Async;
use emulated_cuda::graph::{cuGraphLaunch, cuGraphNodeGetType};
use emulated_cuda::nodes::{
    cuGraphAddEventRecordNode, cuGraphAddEventWaitNode, cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeSetEvent,
    cuGraphEventWaitNodeGetEvent, cuGraphExecEventRecordNodeSetEvent,
};
use emulated_cuda::stream::{cuLaunchHostFunc, cuStreamSynchronize, cuStreamWaitEvent};
use emulated_cuda::transfer::cuMemcpyDtoHAsync_v2;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn an_event_of_a_graph_is_passed_when_its_node_is_and_not_when_the_graph_is() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let client = Client::new();
    let (first, second, values) = (client.stream(), client.stream(), client.put(&[0]));
    let (graph, start, middle, host_values) = (graph(), event(), event(), client.pinned(1));
    let begun = record(graph, &[], start);
    let written = fill(graph, &[begun], values, 5, 1);
    let recorded = record(graph, &[written], middle);
    // The rest of the graph waits for this test.
    host(graph, &[recorded], wait_for, &DONE);
    let executable = executable(graph);
    ok!(cuEventQuery(middle));
    ok!(cuGraphLaunch(executable, first));
    ok!(cuEventSynchronize(middle));
    ok!(cuStreamWaitEvent(second, middle, 0));
    ok!(cuMemcpyDtoHAsync_v2(host_values.as_mut_ptr() as usize, values, 4, second));
    ok!(cuStreamSynchronize(second));
    assert_eq!(host_values[0], 5);
    DONE.store(1, Ordering::Release);
    ok!(cuStreamSynchronize(first));
    let mut milliseconds = -1.0;
    ok!(cuEventElapsedTime(&mut milliseconds, start, middle));
    assert!(milliseconds >= 0.0);
}

#[test]
fn only_what_comes_after_a_wait_is_held_up_by_the_event() {
    static BRANCH: AtomicU32 = AtomicU32::new(0);
    let client = Client::new();
    let (writer, reader, values) = (client.stream(), client.stream(), client.put(&[1, 1]));
    let (graph, mut wait) = (graph(), 0);
    // The event comes after a function that a branch of the graph has to end.
    let event = event();
    ok!(cuGraphAddEventWaitNode(&mut wait, graph, null(), 0, event));
    fill(graph, &[wait], values, 3, 1);
    host(graph, &[], set, &BRANCH);
    let executable = executable(graph);
    ok!(cuLaunchHostFunc(writer, Some(wait_for), pointer(&BRANCH)));
    ok!(cuMemsetD32Async(values, 2, 2, writer));
    ok!(cuEventRecordWithFlags(event, writer, 0));
    ok!(cuGraphLaunch(executable, reader));
    ok!(cuStreamSynchronize(reader));
    // Not 2: the graph's fill came after the stream's.
    assert_eq!(client.get(values, 2), [3, 2]);
    let mut kind = -1;
    ok!(cuGraphNodeGetType(wait, &mut kind));
    assert_eq!(kind, 6);
}

#[test]
fn a_stream_sees_what_a_graph_has_done_before_it_recorded_the_event() {
    let client = Client::new();
    let (writer, reader, values) = (client.stream(), client.stream(), client.put(&[0]));
    let (graph, event, seen) = (graph(), event(), client.pinned(1));
    let first = fill(graph, &[], values, 1, 1);
    record(graph, &[first], event);
    let executable = executable(graph);
    for _ in 0..40 {
        ok!(cuMemsetD32Async(values, 0, 1, writer));
        ok!(cuGraphLaunch(executable, writer));
        ok!(cuStreamWaitEvent(reader, event, 0));
        ok!(cuMemcpyDtoHAsync_v2(seen.as_mut_ptr() as usize, values, 4, reader));
        ok!(cuStreamSynchronize(reader));
        assert_eq!(std::mem::take(&mut seen[0]), 1);
        client.synchronize();
    }
}

#[test]
fn the_event_of_a_node_is_returned_and_replaced() {
    let client = Client::new();
    let (stream, graph, old, new) = (client.stream(), graph(), event(), event());
    let (record, mut wait, mut found) = (record(graph, &[], old), 0, 0);
    ok!(cuGraphAddEventWaitNode(&mut wait, graph, null(), 0, old));
    let executable = executable(graph);
    ok!(cuGraphEventWaitNodeGetEvent(wait, &mut found));
    assert_eq!(found, old);
    ok!(cuGraphEventRecordNodeSetEvent(record, new));
    ok!(cuGraphEventRecordNodeGetEvent(record, &mut found));
    assert_eq!(found, new);
    for code in [
        code!(cuGraphEventRecordNodeGetEvent(wait, &mut found)),
        code!(cuGraphEventRecordNodeSetEvent(wait, new)),
        code!(cuGraphEventRecordNodeSetEvent(record, 3)),
        code!(cuGraphAddEventRecordNode(&mut found, graph, null(), 0, 3)),
        code!(cuGraphAddEventWaitNode(&mut found, graph, null(), 0, 3)),
    ] {
        assert_eq!(code, 1);
    }
    // The executable graph keeps the old event until its own node is changed.
    ok!(cuGraphLaunch(executable, stream));
    client.synchronize();
    let mut milliseconds = 0.0;
    assert_eq!(code!(cuEventElapsedTime(&mut milliseconds, new, old)), 400, "the new event is not recorded");
    ok!(cuGraphExecEventRecordNodeSetEvent(executable, record, new));
    ok!(cuGraphLaunch(executable, stream));
    client.synchronize();
    ok!(cuEventElapsedTime(&mut milliseconds, old, new));
    assert!(milliseconds > 0.0);
    ok!(cuEventDestroy_v2(new));
    assert_eq!(code!(cuGraphLaunch(executable, stream)), 400);
}

#[test]
fn a_capture_takes_external_events_as_nodes() {
    let client = Client::new();
    let (stream, values) = (client.stream(), client.put(&[0]));
    let (before, after, mut graph) = (event(), event(), 0);
    assert_eq!(code!(cuEventRecordWithFlags(before, stream, 1)), 1, "no capture is in progress");
    assert_eq!(code!(cuStreamWaitEvent(stream, before, 1)), 1);
    ok!(cuStreamBeginCapture_v2(stream, 0));
    ok!(cuStreamWaitEvent(stream, before, 1));
    ok!(cuMemsetD32Async(values, 9, 1, stream));
    ok!(cuEventRecordWithFlags(after, stream, 1));
    ok!(cuStreamEndCapture(stream, &mut graph));
    ok!(cuGraphLaunch(executable(graph), stream));
    ok!(cuEventSynchronize(after));
    assert_eq!(client.get(values, 1), [9]);
}

#[test]
fn the_events_of_a_graph_work_in_a_graph_that_captured_its_launch() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    let client = Client::new();
    let (stream, reader, values, seen) = (client.stream(), client.stream(), client.put(&[0]), client.pinned(1));
    let (inner, event, mut outer) = (graph(), event(), 0);
    record(inner, &[fill(inner, &[], values, 5, 1)], event);
    let inner = executable(inner);
    ok!(cuStreamBeginCapture_v2(stream, 0));
    ok!(cuMemsetD32Async(values, 1, 1, stream));
    ok!(cuGraphLaunch(inner, stream));
    // The rest of the outer graph waits for this test.
    ok!(cuLaunchHostFunc(stream, Some(wait_for), pointer(&DONE)));
    ok!(cuMemsetD32Async(values, 7, 1, stream));
    ok!(cuStreamEndCapture(stream, &mut outer));
    ok!(cuGraphLaunch(executable(outer), stream));
    ok!(cuStreamWaitEvent(reader, event, 0));
    ok!(cuMemcpyDtoHAsync_v2(seen.as_mut_ptr() as usize, values, 4, reader));
    ok!(cuStreamSynchronize(reader));
    assert_eq!(seen[0], 5);
    DONE.store(1, Ordering::Release);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(client.get(values, 1), [7]);
}
