//! The functions that copy: between host and card, on a card, between cards, by rows and by planes.
//!
//! What the host may rely on is what the API documents, and no more. From memory that is not pinned, bytes are taken at
//! the call, and the rest happens in stream order. A copy to such memory has happened when the call returns. Pinned
//! memory is read or written when the copy's turn comes. A synchronous copy on a card, or from memory that is not
//! pinned, does not hold up the host.

use crate::abi::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUcontext, CUdeviceptr, CUstream};
use crate::abi::{MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED};
use crate::call::{api, unsupported, values};
use crate::card::card_of;
use crate::context::synchronize;
use crate::contexts::contexts;
use crate::copy::{Copy, Shape, Side};
use crate::engine::engine;
use crate::engine::work::Work;
use crate::errors::{Answer, Code};
use crate::streams::{Stream, resolve};
use std::sync::Arc;

/// Queues a copy; `host_waits` for the functions without `Async`.
fn queue(mut copy: Copy, stream: &Stream, host_waits: bool) -> Answer {
    copy.check()?;
    if copy.shape.bytes() == 0 {
        return Ok(());
    }
    let capturing = stream.is_capturing();
    if host_waits && capturing {
        return stream.forbidden();
    }
    let to_pageable = copy.to.is_pageable();
    if copy.from.is_pageable() && !capturing {
        if host_waits {
            // As documented: first what is in the stream, then the staging.
            stream.wait()?;
        }
        if !to_pageable {
            copy.stage();
        }
    }
    let on_card = !copy.from.is_host() && !copy.to.is_host();
    let staged = matches!(copy.from, Side::Staged(_));
    let point = stream.submit(&[], Work::Copy(Arc::new(copy)))?;
    let Some(point) = point else { return Ok(()) };
    if to_pageable || (host_waits && !on_card && !staged) {
        crate::profile::waited();
        engine().wait(&[point]);
        return stream.context.check();
    }
    Ok(())
}

fn line(to: Side, from: Side, bytes: usize) -> Copy {
    Copy { from, to, shape: Shape::line(bytes) }
}

fn host(address: usize) -> Side {
    Side::Host(address)
}

/// A side of a copy by rows: kind of memory, host address, card's address.
fn side(kind: u32, host: usize, device: CUdeviceptr, offset: usize) -> Answer<Side> {
    match kind {
        MEMORY_HOST => host.checked_add(offset).map(Side::Host).ok_or(Code::INVALID_VALUE),
        MEMORY_DEVICE => device.checked_add(offset as u64).map(Side::Device).ok_or(Code::INVALID_VALUE),
        MEMORY_UNIFIED => device.checked_add(offset as u64).map(Side::of).ok_or(Code::INVALID_VALUE),
        3 => unsupported("a copy of an array"),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// `rows * pitch + bytes`, or an invalid value where that is more than there are addresses.
fn offset(rows: usize, pitch: usize, bytes: usize) -> Answer<usize> {
    rows.checked_mul(pitch).and_then(|before| before.checked_add(bytes)).ok_or(Code::INVALID_VALUE)
}

fn rows(copy: *const CUDA_MEMCPY2D) -> Answer<Copy> {
    // SAFETY: null is refused; the client vouches for the rest.
    let c = unsafe { values(copy, 1) }?[0];
    let pitch = |given: usize| if given == 0 { c.WidthInBytes } else { given };
    let (from, to) = (pitch(c.srcPitch), pitch(c.dstPitch));
    if from < offset(1, c.WidthInBytes, c.srcXInBytes)? || to < offset(1, c.WidthInBytes, c.dstXInBytes)? {
        return Err(Code::INVALID_VALUE);
    }
    let shape = Shape { width: c.WidthInBytes, height: c.Height, depth: 1, pitch: (from, to), plane: (0, 0) };
    Ok(Copy {
        from: side(c.srcMemoryType, c.srcHost, c.srcDevice, offset(c.srcY, from, c.srcXInBytes)?)?,
        to: side(c.dstMemoryType, c.dstHost, c.dstDevice, offset(c.dstY, to, c.dstXInBytes)?)?,
        shape,
    })
}

/// Reads a copy of planes.
///
/// # Errors
/// It is null, or what it says is not supported.
///
/// # Safety
/// It is null or readable.
pub unsafe fn planes(copy: *const CUDA_MEMCPY3D) -> Answer<Copy> {
    // SAFETY: null is refused.
    let c = unsafe { values(copy, 1) }?[0];
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let or = |given: usize, default: usize| if given == 0 { default } else { given };
    let pitch = (or(c.srcPitch, c.WidthInBytes), or(c.dstPitch, c.WidthInBytes));
    let plane = (offset(or(c.srcHeight, c.Height), pitch.0, 0)?, offset(or(c.dstHeight, c.Height), pitch.1, 0)?);
    if pitch.0 < offset(1, c.WidthInBytes, c.srcXInBytes)? || pitch.1 < offset(1, c.WidthInBytes, c.dstXInBytes)? {
        return Err(Code::INVALID_VALUE);
    }
    let from = offset(c.srcZ, plane.0, offset(c.srcY, pitch.0, c.srcXInBytes)?)?;
    let to = offset(c.dstZ, plane.1, offset(c.dstY, pitch.1, c.dstXInBytes)?)?;
    Ok(Copy {
        from: side(c.srcMemoryType, c.srcHost, c.srcDevice, from)?,
        to: side(c.dstMemoryType, c.dstHost, c.dstDevice, to)?,
        shape: Shape { width: c.WidthInBytes, height: c.Height, depth: c.Depth, pitch, plane },
    })
}

/// A copy between two cards; each address must be of its context's card.
fn peer(to: CUdeviceptr, at: CUcontext, from: CUdeviceptr, of: CUcontext, bytes: usize) -> Answer<Copy> {
    for (address, context) in [(to, at), (from, of)] {
        if card_of(address).map(|card| card.ordinal) != Some(contexts().get(context)?.card) {
            return Err(Code::INVALID_VALUE);
        }
    }
    Ok(line(Side::Device(to), Side::Device(from), bytes))
}

api! {
    fn cuMemcpy | cuMemcpy_ptds(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        queue(line(Side::of(to), Side::of(from), bytes), &*resolve(0, default)?, true)
    }
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        queue(line(Side::of(to), Side::of(from), bytes), &*resolve(stream, default)?, false)
    }
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(default; to: CUdeviceptr, from: usize, bytes: usize) {
        queue(line(Side::Device(to), host(from), bytes), &*resolve(0, default)?, true)
    }
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(default; to: usize, from: CUdeviceptr, bytes: usize) {
        queue(line(host(to), Side::Device(from), bytes), &*resolve(0, default)?, true)
    }
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        queue(line(Side::Device(to), Side::Device(from), bytes), &*resolve(0, default)?, true)
    }
    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(
        default; to: CUdeviceptr, from: usize, bytes: usize, stream: CUstream,
    ) {
        queue(line(Side::Device(to), host(from), bytes), &*resolve(stream, default)?, false)
    }
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(
        default; to: usize, from: CUdeviceptr, bytes: usize, stream: CUstream,
    ) {
        queue(line(host(to), Side::Device(from), bytes), &*resolve(stream, default)?, false)
    }
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(
        default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    ) {
        queue(line(Side::Device(to), Side::Device(from), bytes), &*resolve(stream, default)?, false)
    }
    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(default; copy: *const CUDA_MEMCPY2D) {
        queue(rows(copy)?, &*resolve(0, default)?, true)
    }
    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(default; copy: *const CUDA_MEMCPY2D) {
        queue(rows(copy)?, &*resolve(0, default)?, true)
    }
    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(default; copy: *const CUDA_MEMCPY2D, stream: CUstream) {
        queue(rows(copy)?, &*resolve(stream, default)?, false)
    }
    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(default; copy: *const CUDA_MEMCPY3D) {
        queue(planes(copy)?, &*resolve(0, default)?, true)
    }
    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(default; copy: *const CUDA_MEMCPY3D, stream: CUstream) {
        queue(planes(copy)?, &*resolve(stream, default)?, false)
    }
    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(default; copy: *const CUDA_MEMCPY3D) {
        queue(planes(copy)?, &*resolve(0, default)?, true)
    }
    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(default; copy: *const CUDA_MEMCPY3D, stream: CUstream) {
        queue(planes(copy)?, &*resolve(stream, default)?, false)
    }
    fn cuMemcpyPeer | cuMemcpyPeer_ptds(
        default; to: CUdeviceptr, at: CUcontext, from: CUdeviceptr, of: CUcontext, bytes: usize,
    ) {
        // It waits for all earlier work of both cards, and holds up all later work.
        let copy = peer(to, at, from, of, bytes)?;
        synchronize(&*contexts().get(at)?)?;
        synchronize(&*contexts().get(of)?)?;
        let stream = resolve(0, default)?;
        queue(copy, &stream, true)?;
        stream.wait()
    }
    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        default; to: CUdeviceptr, at: CUcontext, from: CUdeviceptr, of: CUcontext, bytes: usize, stream: CUstream,
    ) {
        queue(peer(to, at, from, of, bytes)?, &*resolve(stream, default)?, false)
    }
}
