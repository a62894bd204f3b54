//! Order of work: what a program may rely on holds always, and what it may not rely on fails sometimes.

use crate::{Client, code, ok};
use emulated_cuda::abi::CUstream;
use emulated_cuda::context::cuCtxGetCurrent;
use emulated_cuda::event::{
    cuCtxRecordEvent, cuCtxWaitEvent, cuEventCreate, cuEventElapsedTime, cuEventQuery, cuEventRecord,
    cuEventSynchronize,
};
use emulated_cuda::fill::{cuMemsetD32_v2, cuMemsetD32Async};
use emulated_cuda::memory::{cuMemAllocManaged, cuMemFree_v2};
use emulated_cuda::stream::{
    cuLaunchHostFunc, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitValue32_v2,
};
use emulated_cuda::stream::{cuStreamAttachMemAsync, cuStreamCreate, cuStreamWriteValue32_v2};
use emulated_cuda::transfer::{cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rounds after which a missing wait must have shown.
const ROUNDS: u32 = 60;

/// Fills in one stream, reads in another, and tells how often the old value was read.
fn stale(client: &Client, wait: impl Fn(CUstream, CUstream)) -> u32 {
    let (writer, reader) = (client.stream(), client.stream());
    let (address, host) = (client.put(&[0]), client.pinned(1));
    let mut count = 0;
    for round in 1..=ROUNDS {
        ok!(cuMemsetD32Async(address, round, 1, writer));
        wait(writer, reader);
        ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as usize, address, 4, reader));
        ok!(cuStreamSynchronize(reader));
        count += u32::from(host[0] != round);
        client.synchronize();
    }
    count
}

#[test]
fn a_missing_wait_between_streams_shows_and_an_event_mends_it() {
    let client = Client::new();
    // On a machine that is busy with other things the fill may be over each time before it is read.
    assert!((0..20).any(|_| stale(&client, |_, _| ()) > 0));
    assert_eq!(stale(&client, |writer, reader| client.order(writer, reader)), 0);
}

#[test]
fn a_context_waits_for_an_event_that_is_recorded_after_all_its_work() {
    let client = Client::new();
    let (mut context, mut event) = (0, 0);
    ok!(cuCtxGetCurrent(&mut context));
    ok!(cuEventCreate(&mut event, 2));
    let order = |_, _| {
        ok!(cuCtxRecordEvent(context, event));
        ok!(cuCtxWaitEvent(context, event));
    };
    assert_eq!(stale(&client, order), 0);
    // An event alone orders nothing, and neither does the wait for one that was never recorded.
    let record = |_, _| ok!(cuCtxRecordEvent(context, event));
    assert!((0..20).any(|_| stale(&client, record) > 0));
    let mut never = 0;
    ok!(cuEventCreate(&mut never, 2));
    ok!(cuCtxWaitEvent(context, never));
    assert_eq!(code!(cuCtxRecordEvent(context + 1, event)), 201);
}

#[test]
fn a_stream_that_is_made_after_the_wait_of_its_context_waits_too() {
    let client = Client::new();
    let (mut context, writer, host) = (0, client.stream(), client.pinned(1));
    ok!(cuCtxGetCurrent(&mut context));
    let address = client.put(&[0]);
    for round in 1..=ROUNDS {
        ok!(cuMemsetD32Async(address, round, 1, writer));
        ok!(cuCtxWaitEvent(context, client.record(writer)));
        let reader = client.stream();
        ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as usize, address, 4, reader));
        ok!(cuStreamSynchronize(reader));
        assert_eq!(host[0], round);
    }
}

#[test]
fn pinned_memory_is_read_late_and_other_memory_at_the_call() {
    let client = Client::new();
    let (stream, pinned) = (client.stream(), client.pinned(1));
    let address = client.alloc(4);
    let mut overtaken = [0, 0];
    for _ in 0..ROUNDS {
        let mut pageable = [1u32];
        pinned[0] = 1;
        for (case, source) in [pinned.as_mut_ptr(), pageable.as_mut_ptr()].into_iter().enumerate() {
            ok!(cuMemcpyHtoDAsync_v2(address, source as usize, 4, stream));
            // SAFETY: the memory is valid; a card may be reading it, which is the mistake that is to show.
            unsafe { source.write_volatile(2) };
            client.synchronize();
            overtaken[case] += u32::from(client.get(address, 1) == [2]);
        }
    }
    assert!(overtaken[0] > 0);
    assert_eq!(overtaken[1], 0);
}

#[test]
fn a_blocking_stream_is_in_order_with_the_default_stream() {
    let client = Client::new();
    let (mut stream, host) = (0, client.pinned(1));
    ok!(cuStreamCreate(&mut stream, 0));
    let address = client.alloc(4);
    for round in 0..ROUNDS {
        ok!(cuMemsetD32_v2(address, round, 1));
        ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as usize, address, 4, stream));
        ok!(cuMemsetD32_v2(address, 1000, 1));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(host[0], round);
    }
}

#[test]
fn events_tell_when_work_is_done_and_how_long_it_took() {
    let client = Client::new();
    let stream = client.stream();
    let (mut start, mut end, mut time) = (0, 0, -1.0);
    ok!(cuEventCreate(&mut start, 0));
    ok!(cuEventCreate(&mut end, 0));
    ok!(cuEventRecord(start, stream));
    let address = client.alloc(4 << 20);
    ok!(cuMemsetD32Async(address, 3, 1 << 20, stream));
    ok!(cuEventRecord(end, stream));
    while code!(cuEventQuery(end)) == 600 {
        std::thread::yield_now();
    }
    // A thread without a current context may wait too.
    std::thread::spawn(move || ok!(cuEventSynchronize(end))).join().unwrap();
    ok!(cuEventElapsedTime(&mut time, start, end));
    assert!(time > 0.0);
    ok!(cuEventElapsedTime(&mut time, end, end));
    assert_eq!(time, 0.0);
    while code!(cuStreamQuery(stream)) == 600 {
        std::thread::yield_now();
    }
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(code!(cuStreamSynchronize(stream)), 400);
}

#[test]
fn a_stream_is_destroyed_without_a_current_context() {
    let client = Client::new();
    let stream = client.stream();
    std::thread::spawn(move || ok!(cuStreamDestroy_v2(stream))).join().unwrap();
    assert_eq!(code!(cuStreamSynchronize(stream)), 400);
}

#[test]
fn managed_memory_is_attached_as_a_whole() {
    let client = Client::new();
    let (stream, mut address) = (client.stream(), 0);
    ok!(cuMemAllocManaged(&mut address, 64, 1));
    ok!(cuStreamAttachMemAsync(stream, address, 0, 4));
    ok!(cuStreamAttachMemAsync(0, address, 64, 1));
    // A part of it, one default stream, a kind that there is not, and memory of a card.
    let other = client.alloc(64);
    for (stream, address, bytes, flags) in
        [(stream, address, 32, 4), (0, address, 0, 4), (stream, address, 0, 3), (stream, other, 0, 4)]
    {
        assert_eq!(code!(cuStreamAttachMemAsync(stream, address, bytes, flags)), 1);
    }
    ok!(cuMemFree_v2(address));
}

#[test]
fn host_functions_run_in_stream_order_and_values_hold_up_a_stream() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn call(data: *mut c_void) {
        // In order, the second call finds what the first left.
        let _ = CALLS.compare_exchange(data as u32 - 1, data as u32, Ordering::AcqRel, Ordering::Acquire);
    }
    let client = Client::new();
    let (first, second) = (client.stream(), client.stream());
    let flag = client.put(&[0]);
    ok!(cuStreamWaitValue32_v2(second, flag, 5, 1));
    ok!(cuLaunchHostFunc(second, Some(call), without_provenance_mut(3)));
    ok!(cuLaunchHostFunc(first, Some(call), without_provenance_mut(1)));
    ok!(cuLaunchHostFunc(first, Some(call), without_provenance_mut(2)));
    ok!(cuStreamWriteValue32_v2(first, flag, 5, 0));
    client.synchronize();
    assert_eq!(CALLS.load(Ordering::Acquire), 3);
    ok!(cuMemFree_v2(flag));
}

#[test]
fn the_default_stream_is_done_while_a_stream_apart_from_it_waits() {
    let client = Client::new();
    let (stream, flag) = (client.stream(), client.pinned(1));
    let at = flag.as_ptr() as u64;
    ok!(cuStreamWaitValue32_v2(stream, at, 1, 1));
    // Of streams made with the flag for it, the legacy default stream knows nothing.
    ok!(cuStreamQuery(0));
    assert_eq!(code!(cuStreamQuery(stream)), 600);
    let other = client.stream();
    ok!(cuStreamWriteValue32_v2(other, at, 1, 0));
    ok!(cuStreamSynchronize(stream));
}
