//! Allocating and freeing memory of cards, and what is known about an address.

use crate::abi::{CUcontext, CUdevice, CUdeviceptr, CUmemLocation, CUstream, MEMORY_DEVICE, MEMORY_HOST};
use crate::call::{api, out, out_opt, unsupported, values};
use crate::card::{Owner, allocation, card_of, pinned_at};
use crate::contexts::{contexts, current};
use crate::engine::engine;
use crate::errors::{Answer, Code};
use std::ffi::{c_int, c_uint, c_void};

/// Bytes to which rows of `cuMemAllocPitch` are rounded up.
const PITCH: usize = 512;

/// Frees an allocation of `cuMemAlloc` and its like, after all work of its context, which a driver waits for too.
fn free(address: CUdeviceptr) -> Answer {
    if address == 0 {
        return Ok(());
    }
    current()?;
    if pinned_at(address as usize).is_some_and(|row| row.flags == crate::host::MANAGED) {
        return crate::host::free(address as usize);
    }
    let card = card_of(address).ok_or(Code::INVALID_VALUE)?;
    if let Some(owner) = card.owner(address) {
        crate::profile::waited();
        engine().wait(&engine().tails(owner.context));
    }
    card.free(address)?;
    current().map(|_| ())
}

api! {
    fn cuMemAlloc_v2(to: *mut CUdeviceptr, bytes: usize) {
        let context = current()?;
        crate::captures::forbid_unsafe(&context)?;
        out(to, context.card().alloc(bytes, Owner { context: context.handle, pool: 0 }, "cuMemAlloc")?)
    }
    fn cuMemAllocPitch_v2(to: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) {
        let context = current()?;
        if ![4, 8, 16].contains(&element) {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Code::OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        out(pitch, row)?;
        out(to, context.card().alloc(bytes, Owner { context: context.handle, pool: 0 }, "cuMemAllocPitch")?)
    }
    fn cuMemAllocManaged(to: *mut CUdeviceptr, bytes: usize, flags: c_uint) {
        // Attached to all streams, or to the host first.
        if !(1..=2).contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        out(to, crate::host::make(bytes, crate::host::MANAGED)? as CUdeviceptr)
    }
    fn cuMemFree_v2(address: CUdeviceptr) {
        free(address)
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let card = current()?.card();
        out_opt(free, (card.total() - card.memory.used()) as usize);
        out_opt(total, card.total() as usize);
        Ok(())
    }
    fn cuMemGetAddressRange_v2(start: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        current()?;
        let found = allocation(address).map(|(_, found)| (found.address, found.size as usize));
        let pinned = || pinned_at(address as usize).map(|row| (row.start as CUdeviceptr, row.len));
        let found = found.or_else(pinned).ok_or(Code::NOT_FOUND)?;
        out_opt(start, found.0);
        out_opt(size, found.1);
        Ok(())
    }
    fn cuPointerGetAttribute(to: *mut c_void, number: c_uint, address: CUdeviceptr) {
        if to.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        attribute(to, number, address)
    }
    fn cuPointerGetAttributes(
        count: c_uint,
        numbers: *const c_uint,
        to: *const *mut c_void,
        address: CUdeviceptr,
    ) {
        // An address that is not known gets zeros here, and no error.
        for (number, to) in values(numbers, count as usize)?.into_iter().zip(values(to, count as usize)?) {
            if attribute(to, number, address) == Err(Code::INVALID_VALUE) {
                match width(number) {
                    4 if number == 9 => out(to.cast::<c_int>(), -2)?,
                    4 => out(to.cast::<u32>(), 0)?,
                    _ => out(to.cast::<u64>(), 0)?,
                }
            }
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: *const c_void, number: c_uint, address: CUdeviceptr) {
        // Synchronous copies of a region: all synchronous copies wait here.
        match number {
            6 if allocation(address).is_some() => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuMemAdvise(_address: CUdeviceptr, _bytes: usize, _advice: c_uint, _device: CUdevice) {
        // Where managed memory lies changes no result.
        current().map(|_| ())
    }
    fn cuMemAdvise_v2(_address: CUdeviceptr, _bytes: usize, _advice: c_uint, _location: CUmemLocation) {
        current().map(|_| ())
    }
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(
        default; _address: CUdeviceptr, _bytes: usize, _device: CUdevice, stream: CUstream,
    ) {
        crate::streams::resolve(stream, default)?.submit(&[], crate::engine::work::Work::Nothing).map(|_| ())
    }
    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(
        default; _address: CUdeviceptr, _bytes: usize, _location: CUmemLocation, _flags: c_uint, stream: CUstream,
    ) {
        crate::streams::resolve(stream, default)?.submit(&[], crate::engine::work::Work::Nothing).map(|_| ())
    }
}

/// Bytes of an attribute of a pointer.
fn width(number: c_uint) -> usize {
    if matches!(number, 2 | 6 | 8 | 9 | 10 | 13 | 14 | 15 | 16 | 21) { 4 } else { 8 }
}

/// Writes an attribute of a pointer.
unsafe fn attribute(to: *mut c_void, number: c_uint, address: CUdeviceptr) -> Answer {
    struct Known {
        context: CUcontext,
        card: usize,
        start: u64,
        size: u64,
        id: u64,
        pool: usize,
        host: bool,
        managed: bool,
    }
    let known = if let Some((card, found)) = allocation(address) {
        let owner = card.owner(found.address);
        let context = owner.map_or(0, |owner| owner.context);
        let pool = owner.map_or(0, |owner| owner.pool);
        Known {
            context,
            card: card.ordinal,
            start: found.address,
            size: found.size,
            id: found.id,
            pool,
            host: false,
            managed: false,
        }
    } else if let Some(row) = pinned_at(address as usize) {
        let card = contexts().get(row.context).map_or(0, |context| context.card);
        let (start, size, managed) = (row.start as u64, row.len as u64, row.flags == crate::host::MANAGED);
        Known { context: row.context, card, start, size, id: start, pool: 0, host: true, managed }
    } else {
        return Err(Code::INVALID_VALUE);
    };
    let value = match number {
        1 => known.context as u64,
        2 => u64::from(if known.host && !known.managed { MEMORY_HOST } else { MEMORY_DEVICE }),
        3 => address,
        4 if known.host => address,
        4 => return Err(Code::INVALID_VALUE),
        8 => u64::from(known.managed),
        6 | 10 | 14 | 15 | 21 => 0,
        7 | 20 => (known.card as u64) << 48 | known.id,
        9 => known.card as u64,
        11 | 19 => known.start,
        12 | 18 => known.size,
        13 => 1,
        // Read and write.
        16 => 3,
        17 => known.pool as u64,
        _ => return unsupported(&format!("cuPointerGetAttribute of attribute {number}")),
    };
    // SAFETY: the client vouches for a place of the attribute's width.
    unsafe { if width(number) == 4 { out(to.cast::<u32>(), value as u32) } else { out(to.cast::<u64>(), value) } }
}
