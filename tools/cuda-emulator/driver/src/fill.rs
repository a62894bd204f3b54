//! The functions that fill memory of a card with a value.
//!
//! They do not hold up the host, but where the memory is the host's own: such a fill has happened when the call
//! returns.

use crate::abi::{CUdeviceptr, CUstream};
use crate::call::{api, refuse};
use crate::card::pinned_at;
use crate::engine::engine;
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::streams::resolve;
use std::ffi::c_uint;

/// Queues a fill of `rows` rows of `count` elements.
fn fill(
    to: CUdeviceptr,
    pitch: usize,
    pattern: &[u8],
    count: usize,
    rows: usize,
    (stream, default, waits): (CUstream, CUstream, bool),
) -> Answer {
    let stream = resolve(stream, default)?;
    let too_large = || refuse(Code::INVALID_VALUE, "a fill has more bytes than there are addresses");
    let Some(len) = count.checked_mul(pattern.len()) else { return too_large() };
    if len == 0 || rows == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(pattern.len() as u64) || (rows > 1 && pitch < len) {
        return refuse(Code::INVALID_VALUE, "a fill is not aligned to its elements, or its rows overlap");
    }
    let Some(whole) = pitch.checked_mul(rows - 1).and_then(|before| before.checked_add(len)) else {
        return too_large();
    };
    crate::copy::check(to, whole)?;
    let (len, rows, pitch) = (len as u64, rows as u64, pitch as u64);
    let point = stream.submit(&[], Work::Fill { to, len, rows, pitch, pattern: pattern.to_vec() })?;
    match point.filter(|_| waits && pinned_at(to as usize).is_some()) {
        None => Ok(()),
        Some(point) => {
            crate::profile::waited();
            engine().wait(&[point]);
            stream.context.check()
        }
    }
}

api! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(default; to: CUdeviceptr, value: u8, count: usize) {
        fill(to, 0, &[value], count, 1, (0, default, true))
    }
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(default; to: CUdeviceptr, value: u16, count: usize) {
        fill(to, 0, &value.to_le_bytes(), count, 1, (0, default, true))
    }
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(default; to: CUdeviceptr, value: c_uint, count: usize) {
        fill(to, 0, &value.to_le_bytes(), count, 1, (0, default, true))
    }
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(default; to: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        fill(to, 0, &[value], count, 1, (stream, default, false))
    }
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(default; to: CUdeviceptr, value: u16, count: usize, stream: CUstream) {
        fill(to, 0, &value.to_le_bytes(), count, 1, (stream, default, false))
    }
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(
        default; to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream,
    ) {
        fill(to, 0, &value.to_le_bytes(), count, 1, (stream, default, false))
    }
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        default; to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        fill(to, pitch, &[value], width, height, (0, default, true))
    }
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        default; to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        fill(to, pitch, &value.to_le_bytes(), width, height, (0, default, true))
    }
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        default; to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
    ) {
        fill(to, pitch, &value.to_le_bytes(), width, height, (0, default, true))
    }
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        default; to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream,
    ) {
        fill(to, pitch, &[value], width, height, (stream, default, false))
    }
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        default; to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream,
    ) {
        fill(to, pitch, &value.to_le_bytes(), width, height, (stream, default, false))
    }
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        default; to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream,
    ) {
        fill(to, pitch, &value.to_le_bytes(), width, height, (stream, default, false))
    }
}
