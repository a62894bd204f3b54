//! The functions that open, close and ask contexts, primary and created.

use crate::abi::{CUcontext, CUdevice};
use crate::call::{api, out, out_opt, unsupported};
use crate::capture::abandon;
use crate::captures::forbid_wait;
use crate::card::{Card, card};
use crate::contexts::{Context, contexts, current, current_any, pop, push, set_current, top};
use crate::engine::{Class, Point, engine};
use crate::errors::{Answer, Code};
use crate::handles::fresh;
use crate::streams::{Kind, Stream, streams};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens a context with the queues that every context has.
fn open(handle: CUcontext, card: usize, flags: c_uint) -> Arc<Context> {
    let context = contexts().add_at(handle, |handle| Context::new(handle, card, flags));
    streams().add_at(context.legacy, |handle| Stream::new(handle, context.clone(), Kind::Legacy, 0));
    engine().open(context.legacy, context.clone(), Class::Legacy);
    for queue in [context.marks, context.gates] {
        engine().open(queue, context.clone(), Class::NonBlocking);
    }
    context
}

/// Waits until all work of a context is done.
///
/// # Errors
/// The code of a fault.
pub fn synchronize(context: &Context) -> Answer {
    let points: Vec<Point> = engine().tails(context.handle);
    crate::profile::waited();
    engine().wait(&points);
    context.check()
}

/// Takes away a context's access to another card, unless another context of its card has it too.
fn release_peer(context: &Context, peer: usize) {
    // After the kernels that may use it.
    engine().wait(&engine().tails(context.handle));
    let others = contexts().all();
    let kept = |other: &Context| other.card == context.card && locked(&other.peers).contains(&peer);
    if !others.iter().any(|other| kept(other)) {
        context.card().memory.disable_peer(peer);
    }
}

/// Ends a context with all that belongs to it.
fn close(context: &Context) {
    engine().wait(&engine().tails(context.handle));
    for stream in streams().remove_all(|stream| stream.context.handle == context.handle) {
        abandon(&stream);
        engine().close(stream.handle);
    }
    for queue in [context.marks, context.gates] {
        engine().close(queue);
    }
    crate::module::close_all(context.handle);
    crate::event::close_all(context.handle);
    context.card().free_all(context.handle);
    let _ = contexts().remove(context.handle);
    for peer in std::mem::take(&mut *locked(&context.peers)) {
        release_peer(context, peer);
    }
}

fn create(to: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    let card = card(device)?;
    let context = open(fresh(), card.ordinal, flags);
    push(context.handle);
    // SAFETY: checked for null in `out`.
    unsafe { out(to, context.handle) }
}

/// The primary context of a card, made if there is none, without retaining it.
pub fn primary(card: &Card) -> Arc<Context> {
    let mut primary = locked(&card.primary);
    if primary.handle == 0 {
        primary.handle = fresh();
    }
    contexts().get(primary.handle).unwrap_or_else(|_| open(primary.handle, card.ordinal, primary.flags))
}

fn release(card: &Card, all: bool) -> Answer {
    let mut primary = locked(&card.primary);
    if !all && primary.retained == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    primary.retained = if all { primary.retained } else { primary.retained - 1 };
    let handle = primary.handle;
    let end = all || primary.retained == 0;
    drop(primary);
    if end && let Ok(context) = contexts().get(handle) {
        close(&context);
    }
    Ok(())
}

api! {
    fn cuDevicePrimaryCtxRetain(to: *mut CUcontext, device: CUdevice) {
        let card = card(device)?;
        let context = primary(card);
        locked(&card.primary).retained += 1;
        out(to, context.handle)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        release(card(device)?, false)
    }
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        release(card(device)?, true)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) {
        let card = card(device)?;
        let mut primary = locked(&card.primary);
        primary.flags = flags;
        if let Ok(context) = contexts().get(primary.handle) {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let primary = locked(&card(device)?.primary);
        out_opt(flags, primary.flags);
        out_opt(active, c_int::from(contexts().get(primary.handle).is_ok()));
        Ok(())
    }
    fn cuCtxCreate_v2(to: *mut CUcontext, flags: c_uint, device: CUdevice) {
        create(to, flags, device)
    }
    fn cuCtxCreate_v3(to: *mut CUcontext, _affinity: *const c_void, count: c_int, flags: c_uint, device: CUdevice) {
        if count != 0 {
            return unsupported("cuCtxCreate_v3 with an affinity");
        }
        create(to, flags, device)
    }
    fn cuCtxCreate_v4(to: *mut CUcontext, params: *const c_void, flags: c_uint, device: CUdevice) {
        if !params.is_null() {
            return unsupported("cuCtxCreate_v4 with parameters");
        }
        create(to, flags, device)
    }
    fn cuCtxDestroy_v2(handle: CUcontext) {
        let context = contexts().get(handle)?;
        if locked(&context.card().primary).handle == handle {
            return Err(Code::INVALID_CONTEXT);
        }
        close(&context);
        if top() == handle {
            pop()?;
        }
        Ok(())
    }
    fn cuCtxPushCurrent_v2(handle: CUcontext) {
        contexts().get(handle)?;
        push(handle);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(to: *mut CUcontext) {
        let handle = pop()?;
        out_opt(to, handle);
        Ok(())
    }
    fn cuCtxSetCurrent(handle: CUcontext) {
        if handle != 0 {
            contexts().get(handle)?;
        }
        set_current(handle);
        Ok(())
    }
    fn cuCtxGetCurrent(to: *mut CUcontext) {
        out(to, top())
    }
    fn cuCtxGetDevice(to: *mut CUdevice) {
        out(to, current_any()?.card as CUdevice)
    }
    fn cuCtxGetDevice_v2(to: *mut CUdevice, handle: CUcontext) {
        let context = if handle == 0 { current_any()? } else { contexts().get(handle)? };
        out(to, context.card as CUdevice)
    }
    fn cuCtxGetId(handle: CUcontext, to: *mut u64) {
        let context = if handle == 0 { current_any()? } else { contexts().get(handle)? };
        out(to, context.handle as u64)
    }
    fn cuCtxGetApiVersion(handle: CUcontext, to: *mut c_uint) {
        if handle == 0 { current_any()? } else { contexts().get(handle)? };
        out(to, 3020)
    }
    fn cuCtxGetFlags(to: *mut c_uint) {
        out(to, current_any()?.flags.load(Ordering::Relaxed))
    }
    fn cuCtxSetFlags(flags: c_uint) {
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }
    fn cuCtxSynchronize() {
        let context = current()?;
        forbid_wait(&context)?;
        synchronize(&context)
    }
    fn cuCtxSynchronize_v2(handle: CUcontext) {
        let context = if handle == 0 { current()? } else { contexts().get(handle)? };
        context.check()?;
        forbid_wait(&context)?;
        synchronize(&context)
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        out_opt(least, 0);
        out_opt(greatest, -5);
        Ok(())
    }
    fn cuCtxGetLimit(to: *mut usize, limit: c_uint) {
        // Stack, buffer of printf, heap, depth of nested synchronization, pending nested launches, fetch granularity.
        const DEFAULTS: [usize; 7] = [1024, 7 << 20, 8 << 20, 2, 2048, 64, 0];
        let context = current()?;
        let default = DEFAULTS.get(limit as usize).copied().ok_or(Code::UNSUPPORTED_LIMIT)?;
        out(to, locked(&context.limits).get(&limit).copied().unwrap_or(default))
    }
    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        let context = current()?;
        if limit > 6 {
            return Err(Code::UNSUPPORTED_LIMIT);
        }
        locked(&context.limits).insert(limit, value);
        Ok(())
    }
    fn cuCtxGetCacheConfig(to: *mut c_uint) {
        current()?;
        out(to, 0)
    }
    fn cuCtxSetCacheConfig(_config: c_uint) {
        // A wish about caches, which change no result.
        current().map(|_| ())
    }
    fn cuCtxGetSharedMemConfig(to: *mut c_uint) {
        current()?;
        out(to, 1)
    }
    fn cuCtxSetSharedMemConfig(_config: c_uint) {
        // Banks of 8 bytes have been gone since compute capability 5.0; cards ignore the wish.
        current().map(|_| ())
    }
    fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) {
        const CURRENT_CONTEXT: c_uint = 0;
        const TO_OWNER: c_uint = 100;
        const TO_ALL_DEVICES: c_uint = 200;
        current()?;
        // No device beside the cards writes to their memory, so no write is under way.
        match (target, scope) {
            (CURRENT_CONTEXT, TO_OWNER | TO_ALL_DEVICES) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let context = current()?;
        let peer = contexts().get(peer)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peer.card == context.card {
            return Err(Code::INVALID_DEVICE);
        }
        if !locked(&context.peers).insert(peer.card) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        context.card().memory.enable_peer(&peer.card().memory);
        Ok(())
    }
    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let context = current()?;
        let peer = contexts().get(peer)?;
        if !locked(&context.peers).remove(&peer.card) {
            return Err(Code::PEER_ACCESS_NOT_ENABLED);
        }
        release_peer(&context, peer.card);
        Ok(())
    }
}
