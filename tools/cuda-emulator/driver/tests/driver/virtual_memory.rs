//! Virtual memory: a range that grows, as allocators with expandable segments do it.

use crate::{Client, code, kernels::ADD, launch, ok};
use emulated_cuda::abi::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation};
use emulated_cuda::fill::cuMemsetD32_v2;
use emulated_cuda::transfer::{cuMemcpyDtoD_v2, cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use emulated_cuda::virtual_memory::*;
use std::ptr::null_mut;

const CARD: CUmemLocation = CUmemLocation { kind: 1, id: 0 };
const PROP: CUmemAllocationProp =
    CUmemAllocationProp { alloc_type: 1, handle_types: 0, location: CARD, win32: null_mut(), flags: [0; 8] };
const ACCESS: CUmemAccessDesc = CUmemAccessDesc { location: CARD, flags: 3 };

#[test]
fn a_range_grows_by_mappings_and_keeps_bytes_that_are_mapped_again() {
    let client = Client::new();
    let mut grain = 0;
    ok!(cuMemGetAllocationGranularity(&mut grain, &PROP, 0));
    let mut start = 0;
    ok!(cuMemAddressReserve(&mut start, 4 * grain, 0, 0, 0));
    let mut handles = [0; 2];
    for (i, handle) in handles.iter_mut().enumerate() {
        ok!(cuMemCreate(handle, grain, &PROP, 0));
        ok!(cuMemMap(start + (i * grain) as u64, grain, 0, *handle, 0));
    }
    // Neither the host nor a kernel may use it before it has access.
    assert_eq!(code!(cuMemsetD32_v2(start, 7, 1)), 1);
    ok!(cuMemSetAccess(start, 2 * grain, &ACCESS, 1));
    // Across the border of both mappings, by the host, by copies and by a kernel.
    let border = start + grain as u64 - 8;
    ok!(cuMemsetD32_v2(border, 7, 4));
    assert_eq!(client.get(border, 4), [7; 4]);
    let words = [1u32, 2, 3, 4];
    ok!(cuMemcpyHtoD_v2(border, words.as_ptr() as usize, 16));
    ok!(cuMemcpyDtoD_v2(border - 4, border, 16));
    assert_eq!(client.get(border - 4, 5), [1, 2, 3, 4, 4]);
    let add = client.function(client.load(ADD), "add");
    assert_eq!(launch(add, 1, 32, 0, 0, &[border, 4]), 0);
    client.synchronize();
    assert_eq!(client.get(border - 4, 5), [1, 102, 104, 106, 107]);
    assert_eq!(code!(cuMemsetD32_v2(start + 2 * grain as u64 - 4, 7, 2)), 1);
    // The second part moves to the end, with what is in it.
    ok!(cuMemUnmap(start + grain as u64, grain));
    let mut host = [0u32; 2];
    assert_eq!(code!(cuMemcpyDtoH_v2(host.as_mut_ptr() as usize, border, 16)), 1);
    let end = start + 3 * grain as u64;
    ok!(cuMemMap(end, grain, 0, handles[1], 0));
    ok!(cuMemSetAccess(end, grain, &ACCESS, 1));
    assert_eq!(client.get(end, 2), [106, 107]);
    let mut flags = 0;
    ok!(cuMemGetAccess(&mut flags, &CARD, end + 5));
    assert_eq!(flags, 3);
    // Bytes live as long as they have a handle or a mapping.
    handles.iter().for_each(|handle| ok!(cuMemRelease(*handle)));
    assert_eq!(client.get(end, 2), [106, 107]);
    assert_eq!(code!(cuMemAddressFree(start, 4 * grain)), 1);
    ok!(cuMemUnmap(start, grain));
    ok!(cuMemUnmap(end, grain));
    ok!(cuMemAddressFree(start, 4 * grain));
    assert_eq!(code!(cuMemMap(start, grain, 0, handles[0], 0)), 1);
}

#[test]
fn ranges_beyond_all_addresses_are_refused() {
    let client = Client::new();
    let (mut grain, mut start) = (0, 0);
    ok!(cuMemGetAllocationGranularity(&mut grain, &PROP, 0));
    ok!(cuMemAddressReserve(&mut start, 4 * grain, 0, 0, 0));
    let (mut handle, second) = (0, start + grain as u64);
    ok!(cuMemCreate(&mut handle, grain, &PROP, 0));
    ok!(cuMemMap(second, grain, 0, handle, 0));
    let beyond = usize::MAX - grain + 1;
    assert_eq!(code!(cuMemSetAccess(second, beyond, &ACCESS, 1)), 1);
    assert_eq!(code!(cuMemUnmap(second, beyond)), 1);
    assert_eq!(code!(cuMemMap(second + grain as u64, beyond, 0, handle, 0)), 1);
    ok!(cuMemUnmap(second, grain));
    ok!(cuMemRelease(handle));
    ok!(cuMemAddressFree(start, 4 * grain));
    drop(client);
}
