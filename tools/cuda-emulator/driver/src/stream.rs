//! The functions that make streams, ask them, and queue waits and calls in them.

use crate::abi::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUhostFn, CUstream, CUstreamCallback};
use crate::call::{api, out, out_opt, unsupported};
use crate::capture::abandon;
use crate::card::pinned_at;
use crate::contexts::current;
use crate::engine::work::{UserData, Work};
use crate::engine::{Class, engine};
use crate::errors::{Answer, Code};
use crate::event::{external, wait_in};
use crate::streams::{Kind, Stream, pass_gates, resolve, streams};
use std::ffi::{c_int, c_uint, c_void};

fn create(to: *mut CUstream, flags: c_uint, priority: c_int) -> Answer {
    let context = current()?;
    let (kind, class) = match flags {
        0 => (Kind::Blocking, Class::Blocking),
        1 => (Kind::NonBlocking, Class::NonBlocking),
        _ => return Err(Code::INVALID_VALUE),
    };
    let stream = streams().add(|handle| Stream::new(handle, context.clone(), kind, priority.clamp(-5, 0)));
    engine().open(stream.handle, context, class);
    pass_gates(&stream);
    // SAFETY: checked for null.
    unsafe { out(to, stream.handle) }
}

/// Queues a write of a value, or a wait for one.
fn value(stream: &Stream, work: Work) -> Answer {
    let (Work::WaitValue { at, width, .. } | Work::WriteValue { at, width, .. }) = work else {
        return Err(Code::INVALID_VALUE);
    };
    crate::copy::check(at, width)?;
    if !at.is_multiple_of(width as u64) {
        return Err(Code::INVALID_VALUE);
    }
    stream.submit(&[], work).map(|_| ())
}

fn wait_value(stream: &Stream, at: CUdeviceptr, value: u64, width: usize, flags: c_uint) -> Answer {
    // The flag above the comparison asks for a flush of writes from other devices, of which there are none.
    self::value(stream, Work::WaitValue { at, value, width, compare: flags & 3 })
}

api! {
    fn cuStreamCreate(to: *mut CUstream, flags: c_uint) {
        create(to, flags, 0)
    }
    fn cuStreamCreateWithPriority(to: *mut CUstream, flags: c_uint, priority: c_int) {
        create(to, flags, priority)
    }
    fn cuStreamDestroy_v2(handle: CUstream) {
        // A stream knows its context: Numba destroys streams at exit, when no context is current.
        if !matches!(streams().get(handle)?.kind, Kind::Blocking | Kind::NonBlocking) {
            return Err(Code::INVALID_HANDLE);
        }
        abandon(&*streams().remove(handle)?);
        engine().close(handle);
        Ok(())
    }
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(default; stream: CUstream) {
        resolve(stream, default)?.wait()
    }
    fn cuStreamQuery | cuStreamQuery_ptsz(default; stream: CUstream) {
        let stream = resolve(stream, default)?;
        if stream.is_capturing() {
            return stream.forbidden();
        }
        let points = match stream.kind {
            Kind::Legacy => engine().blocking_tails(stream.context.handle),
            _ => vec![engine().tail(stream.handle)],
        };
        match engine().poll(&points) {
            true => stream.context.check(),
            false => Err(Code::NOT_READY),
        }
    }
    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(default; stream: CUstream, event: CUevent, flags: c_uint) {
        let stream = resolve(stream, default)?;
        match flags {
            0 => wait_in(&stream, event),
            1 => external(&stream, event, Work::WaitEvent(event)),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        default; stream: CUstream, function: Option<CUhostFn>, data: *mut c_void,
    ) {
        let work = Work::Host(function.ok_or(Code::INVALID_VALUE)?, UserData(data));
        resolve(stream, default)?.submit(&[], work).map(|_| ())
    }
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(
        default; stream: CUstream, function: Option<CUstreamCallback>, data: *mut c_void, flags: c_uint,
    ) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let work = Work::Callback(stream, function.ok_or(Code::INVALID_VALUE)?, UserData(data));
        resolve(stream, default)?.submit(&[], work).map(|_| ())
    }
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(default; stream: CUstream, to: *mut c_int) {
        out(to, resolve(stream, default)?.priority)
    }
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(default; stream: CUstream, to: *mut c_uint) {
        out(to, c_uint::from(resolve(stream, default)?.kind == Kind::NonBlocking))
    }
    fn cuStreamGetId | cuStreamGetId_ptsz(default; stream: CUstream, to: *mut u64) {
        out(to, resolve(stream, default)?.handle as u64)
    }
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(default; stream: CUstream, to: *mut CUcontext) {
        out(to, resolve(stream, default)?.context.handle)
    }
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(
        default; stream: CUstream, to: *mut CUcontext, green: *mut usize,
    ) {
        out_opt(green, 0);
        out(to, resolve(stream, default)?.context.handle)
    }
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(default; stream: CUstream, to: *mut CUdevice) {
        out(to, resolve(stream, default)?.context.card as CUdevice)
    }
    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(default; to: CUstream, from: CUstream) {
        // Attributes are wishes about caches and priorities.
        resolve(to, default)?;
        resolve(from, default).map(|_| ())
    }
    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(
        default; stream: CUstream, _number: c_uint, _value: *const c_void,
    ) {
        resolve(stream, default).map(|_| ())
    }
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(
        _default; _stream: CUstream, _number: c_uint, _value: *mut c_void,
    ) {
        unsupported("cuStreamGetAttribute")
    }
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(
        default; stream: CUstream, at: CUdeviceptr, bytes: usize, flags: c_uint,
    ) {
        // To all streams, to the host, or to one stream: where managed memory lies changes no result.
        let managed = pinned_at(at as usize).filter(|row| row.flags == crate::host::MANAGED);
        let whole = managed.is_some_and(|row| row.start == at as usize && (bytes == 0 || bytes == row.len));
        let of_one = flags == 4 && stream != 0;
        if !whole || !(flags == 1 || flags == 2 || of_one) {
            return Err(Code::INVALID_VALUE);
        }
        resolve(stream, default)?.submit(&[], Work::Nothing).map(|_| ())
    }
    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(
        default; stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        wait_value(&*resolve(stream, default)?, at, value.into(), 4, flags)
    }
    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(
        default; stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        wait_value(&*resolve(stream, default)?, at, value, 8, flags)
    }
    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(
        default; stream: CUstream, at: CUdeviceptr, value: u32, _flags: c_uint,
    ) {
        self::value(&*resolve(stream, default)?, Work::WriteValue { at, value: value.into(), width: 4 })
    }
    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(
        default; stream: CUstream, at: CUdeviceptr, value: u64, _flags: c_uint,
    ) {
        self::value(&*resolve(stream, default)?, Work::WriteValue { at, value, width: 8 })
    }
}
