//! Pinned host memory: made here, or registered.

use crate::abi::CUdeviceptr;
use crate::call::{api, out};
use crate::card::{Pinned, pin, pinned_at, unpin};
use crate::contexts::current;
use crate::engine::engine;
use crate::errors::{Answer, Code};
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_uint, c_void};

/// Alignment of pinned memory: a page.
const PAGE: usize = 4096;

/// Flags of memory that the driver moves between host and cards by itself: here, pinned memory.
pub const MANAGED: u32 = u32::MAX;

/// Makes pinned memory. Its bytes are not zero, so that a program that relies on zeros is found out.
///
/// # Errors
/// Out of memory, or no bytes are asked for.
pub fn make(bytes: usize, flags: c_uint) -> Answer<*mut u8> {
    let context = current()?;
    crate::captures::forbid_unsafe(&context)?;
    let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Code::OUT_OF_MEMORY)?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the size is not 0.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        return Err(Code::OUT_OF_MEMORY);
    }
    // SAFETY: it was just made with this size.
    unsafe { start.write_bytes(0xa5, bytes.min(1 << 20)) };
    pin(Pinned { start: start as usize, len: bytes, context: context.handle, flags, ours: true })?;
    Ok(start)
}

/// Frees what [`make`] made, after the work that may use it.
///
/// # Errors
/// No such memory starts there.
pub fn free(address: usize) -> Answer {
    let context = current()?;
    let row = pinned_at(address).filter(|row| row.start == address && row.ours).ok_or(Code::INVALID_VALUE)?;
    crate::profile::waited();
    engine().wait(&engine().tails(context.handle));
    engine().wait(&engine().tails(row.context));
    let row = unpin(address, true, Code::INVALID_VALUE)?;
    let layout = Layout::from_size_align(row.len, PAGE).map_err(|_| Code::INVALID_VALUE)?;
    // SAFETY: `make` made it with this layout, and the table has just given it up.
    unsafe { dealloc(row.start as *mut u8, layout) };
    Ok(())
}

api! {
    fn cuMemAllocHost_v2(to: *mut *mut c_void, bytes: usize) {
        out(to, make(bytes, 0)?.cast())
    }
    fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) {
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        out(to, make(bytes, flags)?.cast())
    }
    fn cuMemFreeHost(address: usize) {
        if address == 0 {
            return Ok(());
        }
        free(address)
    }
    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) {
        let context = current()?;
        if address == 0 || bytes == 0 || flags > 15 {
            return Err(Code::INVALID_VALUE);
        }
        pin(Pinned { start: address, len: bytes, context: context.handle, flags, ours: false })
    }
    fn cuMemHostUnregister(address: usize) {
        let context = current()?;
        crate::profile::waited();
        engine().wait(&engine().tails(context.handle));
        unpin(address, false, Code::HOST_MEMORY_NOT_REGISTERED).map(|_| ())
    }
    fn cuMemHostGetDevicePointer_v2(to: *mut CUdeviceptr, address: usize, flags: c_uint) {
        current()?;
        if flags != 0 || pinned_at(address).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        out(to, address as CUdeviceptr)
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, address: usize) {
        current()?;
        // Memory of the driver is always mapped where addresses are unified.
        let row = pinned_at(address).filter(|row| row.ours).ok_or(Code::INVALID_VALUE)?;
        out(flags, row.flags | 2)
    }
    fn cuProfilerStart() {
        current().map(|_| ())
    }
    fn cuProfilerStop() {
        current().map(|_| ())
    }
}
