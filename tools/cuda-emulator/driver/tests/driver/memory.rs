//! Memory of cards and of the host.

use crate::{Client, code, kernels::ADD, launch, ok};
use emulated_cuda::abi::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemLocation, CUmemPoolProps};
use emulated_cuda::context::{cuCtxEnablePeerAccess, cuCtxGetDevice_v2, cuCtxSetCurrent, cuCtxSynchronize_v2};
use emulated_cuda::fill::{cuMemsetD2D8_v2, cuMemsetD8_v2, cuMemsetD32_v2, cuMemsetD32Async};
use emulated_cuda::host::{cuMemHostRegister_v2, cuMemHostUnregister};
use emulated_cuda::memory::cuMemAllocManaged;
use emulated_cuda::memory::{cuMemAlloc_v2, cuMemAllocPitch_v2, cuMemFree_v2, cuMemGetAddressRange_v2};
use emulated_cuda::memory::{cuMemGetInfo_v2, cuPointerGetAttribute};
use emulated_cuda::pool::{cuDeviceGetDefaultMemPool, cuMemPoolCreate, cuMemPoolGetAttribute, cuMemPoolSetAttribute};
use emulated_cuda::pool::{cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync};
use emulated_cuda::transfer::{cuMemcpy2D_v2, cuMemcpy3D_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD_v2, cuMemcpyPeer};

#[test]
fn bytes_come_back_and_sizes_are_kept() {
    let client = Client::new();
    let address = client.put(&[1, 2, 3, 4]);
    assert_eq!(client.get(address + 4, 3), [2, 3, 4]);
    ok!(cuMemsetD32_v2(address + 4, 9, 2));
    ok!(cuMemsetD8_v2(address + 12, 0x11, 4));
    assert_eq!(client.get(address, 4), [1, 9, 9, 0x1111_1111]);
    let (mut start, mut size) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut start, &mut size, address + 7));
    assert_eq!((start, size), (address, 16));
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total, 64 << 20);
    assert!(free <= total - 16);
}

#[test]
fn large_allocations_start_at_pages() {
    let client = Client::new();
    client.alloc(12);
    assert_eq!(client.alloc((2 << 20) + 4) % (2 << 20), 0);
    assert_eq!(client.alloc(100) % 256, 0);
    assert_eq!(client.alloc(4 << 20) % (2 << 20), 0);
}

#[test]
fn what_no_allocation_holds_is_refused_at_the_call() {
    let client = Client::new();
    let (address, host) = (client.alloc(100), [0u8; 128]);
    assert_eq!(code!(cuMemcpyHtoD_v2(address, host.as_ptr() as usize, 101)), 1);
    assert_eq!(code!(cuMemcpyHtoD_v2(0x10, host.as_ptr() as usize, 4)), 1);
    assert_eq!(code!(cuMemFree_v2(address + 4)), 1);
    ok!(cuMemFree_v2(address));
    assert_eq!(code!(cuMemFree_v2(address)), 1);
    let mut large = 0;
    assert_eq!(code!(cuMemAlloc_v2(&mut large, 65 << 20)), 2);
    client.synchronize();
}

#[test]
fn rows_keep_their_pitch() {
    let client = Client::new();
    let (mut address, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut address, &mut pitch, 12, 3, 4));
    assert_eq!(pitch, 512);
    ok!(cuMemsetD2D8_v2(address, pitch, 7, 12, 3));
    let from: Vec<u32> = (0..6).collect();
    let mut copy = CUDA_MEMCPY2D {
        srcMemoryType: 1,
        srcHost: from.as_ptr() as usize,
        srcPitch: 8,
        dstMemoryType: 2,
        dstDevice: address,
        dstPitch: pitch,
        dstXInBytes: 4,
        WidthInBytes: 8,
        Height: 3,
        ..CUDA_MEMCPY2D::default()
    };
    ok!(cuMemcpy2D_v2(&copy));
    for row in 0..3 {
        let expected = [0x0707_0707, 2 * row, 2 * row + 1];
        assert_eq!(client.get(address + u64::from(row) * 512, 3), expected);
    }
    copy.Height = 4;
    assert_eq!(code!(cuMemcpy2D_v2(&copy)), 1);
}

#[test]
fn registered_memory_is_known_until_it_is_taken_back() {
    let _client = Client::new();
    let values = vec![0u32; 4096];
    let start = values.as_ptr() as usize;
    let (mut kind, to) = (0u32, 2);
    let pointer = std::ptr::from_mut(&mut kind).cast();
    assert_eq!(code!(cuPointerGetAttribute(pointer, to, start as u64)), 1);
    ok!(cuMemHostRegister_v2(start, 4096, 0));
    ok!(cuPointerGetAttribute(pointer, to, start as u64 + 100));
    assert_eq!(kind, 1);
    assert_eq!(code!(cuMemHostRegister_v2(start + 64, 4096, 0)), 712);
    ok!(cuMemHostUnregister(start));
    assert_eq!(code!(cuMemHostUnregister(start)), 713);
}

#[test]
fn what_a_stream_frees_is_gone_when_its_turn_has_come() {
    let client = Client::new();
    let (stream, mut address) = (client.stream(), 0);
    ok!(cuMemAllocAsync(&mut address, 64, stream));
    ok!(cuMemFreeAsync(address, stream));
    client.synchronize();
    let mut host = [0u8; 4];
    assert_eq!(code!(cuMemcpyDtoH_v2(host.as_mut_ptr() as usize, address, 4)), 1);
}

#[test]
fn no_bytes_are_an_error_except_in_the_order_of_a_stream() {
    let client = Client::new();
    let mut address = 5;
    assert_eq!(code!(cuMemAlloc_v2(&mut address, 0)), 1);
    let stream = client.stream();
    ok!(cuMemAllocAsync(&mut address, 0, stream));
    assert_eq!(address, 0);
    ok!(cuMemFreeAsync(address, stream));
}

#[test]
fn functions_of_cuda_13_name_their_context() {
    let (first, second) = (Client::on(0), Client::on(1));
    let mut card = 5;
    ok!(cuCtxGetDevice_v2(&mut card, first.0));
    assert_eq!(card, 0);
    ok!(cuCtxGetDevice_v2(&mut card, 0));
    assert_eq!(card, 1);
    ok!(cuCtxSynchronize_v2(first.0));
    ok!(cuCtxSynchronize_v2(0));
    assert_eq!(code!(cuCtxSynchronize_v2(second.0 + 1)), 201);
    ok!(cuCtxSetCurrent(first.0));
}

#[test]
fn a_copy_between_cards_needs_no_access_and_a_second_grant_is_refused() {
    let first = Client::on(0);
    let from = first.put(&[5, 6, 7]);
    let second = Client::on(1);
    let to = second.alloc(12);
    ok!(cuMemcpyPeer(to, second.0, from, first.0, 12));
    assert_eq!(second.get(to, 3), [5, 6, 7]);
    ok!(cuCtxEnablePeerAccess(first.0, 0));
    assert_eq!(code!(cuCtxEnablePeerAccess(first.0, 0)), 704);
    ok!(cuCtxSetCurrent(first.0));
}

#[test]
fn managed_memory_has_one_address_on_both_sides() {
    let client = Client::new();
    let mut address = 0;
    ok!(cuMemAllocManaged(&mut address, 16, 1));
    ok!(cuMemsetD32_v2(address, 6, 4));
    let add = client.function(client.load(ADD), "add");
    assert_eq!(launch(add, 1, 4, 0, 0, &[address, 4]), 0);
    client.synchronize();
    // SAFETY: the driver made it, and no work uses it any more.
    let values = unsafe { std::slice::from_raw_parts(address as *const u32, 4) };
    assert_eq!(values, [106, 107, 108, 109]);
    let mut managed = 0u32;
    ok!(cuPointerGetAttribute(std::ptr::from_mut(&mut managed).cast(), 8, address));
    assert_eq!(managed, 1);
    ok!(cuMemFree_v2(address));
    assert_eq!(code!(cuMemFree_v2(address)), 1);
}

#[test]
fn sizes_beyond_all_addresses_are_refused_at_the_call() {
    let client = Client::new();
    let (address, pinned, host) = (client.alloc(64), client.pinned(16), [0u8; 16]);
    let pinned = pinned.as_ptr() as usize;
    let largest = usize::MAX;
    assert_eq!(code!(cuMemsetD32_v2(address, 1, 1 << 62)), 1);
    assert_eq!(code!(cuMemsetD2D8_v2(address, largest, 1, 4, 3)), 1);
    assert_eq!(code!(cuMemsetD8_v2(pinned as u64, 1, largest)), 1);
    assert_eq!(code!(cuMemcpyHtoD_v2(pinned as u64, host.as_ptr() as usize, largest - 1)), 1);
    assert_eq!(code!(cuMemHostRegister_v2(host.as_ptr() as usize, largest, 0)), 1);
    let (mut place, mut pitch) = (0, 0);
    assert_eq!(code!(cuMemAllocPitch_v2(&mut place, &mut pitch, largest, 1, 4)), 2);
    let rows = CUDA_MEMCPY2D {
        srcMemoryType: 1,
        srcHost: host.as_ptr() as usize,
        dstMemoryType: 2,
        dstDevice: address,
        WidthInBytes: 4,
        Height: 2,
        ..CUDA_MEMCPY2D::default()
    };
    for wrong in [
        CUDA_MEMCPY2D { Height: largest, ..rows },
        CUDA_MEMCPY2D { srcXInBytes: largest, ..rows },
        CUDA_MEMCPY2D { dstY: largest, ..rows },
        CUDA_MEMCPY2D { WidthInBytes: largest, ..rows },
        CUDA_MEMCPY2D { dstPitch: largest, Height: 3, ..rows },
    ] {
        assert_eq!(code!(cuMemcpy2D_v2(&wrong)), 1);
    }
    let planes = CUDA_MEMCPY3D {
        srcMemoryType: 1,
        srcHost: host.as_ptr() as usize,
        dstMemoryType: 2,
        dstDevice: address,
        WidthInBytes: 4,
        Height: 2,
        Depth: largest,
        ..CUDA_MEMCPY3D::default()
    };
    assert_eq!(code!(cuMemcpy3D_v2(&planes)), 1);
    assert_eq!(code!(cuMemcpy3D_v2(&CUDA_MEMCPY3D { Depth: 1, dstZ: largest, ..planes })), 1);
    ok!(cuMemcpy2D_v2(&rows));
}

#[test]
fn a_pool_remembers_the_most_that_was_in_use() {
    let client = Client::new();
    let (mut pool, mut default, stream) = (0, 0, client.stream());
    let props = CUmemPoolProps {
        alloc_type: 1,
        handle_types: 0,
        location: CUmemLocation { kind: 1, id: 0 },
        win32: std::ptr::null_mut(),
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    ok!(cuMemPoolCreate(&mut pool, &props));
    ok!(cuDeviceGetDefaultMemPool(&mut default, 0));
    assert_ne!(pool, default);
    let read = |number| {
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, number, (&raw mut value).cast()));
        value
    };
    for bytes in [4096, 1024] {
        let mut address = 0;
        ok!(cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream));
        ok!(cuMemFreeAsync(address, stream));
        client.synchronize();
    }
    assert_eq!((read(7), read(8)), (0, 4096));
    let (zero, one) = (0u64, 1u64);
    assert_eq!(code!(cuMemPoolSetAttribute(pool, 8, (&raw const one).cast())), 1);
    assert_eq!(code!(cuMemPoolSetAttribute(pool, 7, (&raw const zero).cast())), 1);
    ok!(cuMemPoolSetAttribute(pool, 8, (&raw const zero).cast()));
    assert_eq!(read(8), 0);
}

/// On a card of 64 MB.
#[test]
fn an_allocation_in_a_stream_gets_what_was_freed_earlier_in_it_or_in_another() {
    let client = Client::on(1);
    let add = client.function(client.load(ADD), "add");
    let streams = [client.stream(), client.stream()];
    for stream in [streams[0], streams[0], streams[1]] {
        let mut address = 0;
        ok!(cuMemAllocAsync(&mut address, 40 << 20, stream));
        ok!(cuMemsetD32Async(address, 1, 32, stream));
        assert_eq!(launch(add, 1, 32, 0, stream, &[address, 32]), 0);
        ok!(cuMemFreeAsync(address, stream));
    }
    client.synchronize();
    let mut address = 0;
    ok!(cuMemAllocAsync(&mut address, 40 << 20, streams[0]));
    assert_eq!(code!(cuMemAllocAsync(&mut 0, 40 << 20, streams[0])), 2);
    ok!(cuMemFreeAsync(address, streams[0]));
    client.synchronize();
}
