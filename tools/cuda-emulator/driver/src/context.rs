//! Contexts: primary and created, the stack of each thread, and errors that stay.

use crate::abi::{CUcontext, CUdevice};
use crate::call::{api, out, out_opt, unsupported};
use crate::card::{Card, card, cards};
use crate::engine::{Class, Point, engine};
use crate::errors::{Answer, Code};
use crate::handles::{Table, fresh};
use crate::say::say;
use crate::stream::{Kind, Stream, streams};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A context.
pub struct Context {
    /// Its handle.
    pub handle: CUcontext,
    /// Number of its card.
    pub card: usize,
    flags: AtomicU32,
    /// The first fault; 0 is none.
    sticky: AtomicI32,
    limits: Mutex<HashMap<c_uint, usize>>,
    /// Cards whose memory kernels of this context may use.
    peers: Mutex<BTreeSet<usize>>,
    /// The legacy default stream.
    legacy: usize,
    /// The default streams of threads.
    of_threads: Mutex<HashMap<ThreadId, usize>>,
    /// Queue of the marks that come after all work of the context: `cuCtxRecordEvent`.
    pub marks: usize,
    /// Queue of what all later work of the context comes after: `cuCtxWaitEvent`.
    pub gates: usize,
}

/// All live contexts.
pub fn contexts() -> &'static Table<Context> {
    static CONTEXTS: Table<Context> = Table::new(Code::INVALID_CONTEXT);
    &CONTEXTS
}

thread_local! {
    /// The stack of this thread; its last is current.
    static STACK: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The context that is current in this thread, with a fault or not.
fn current_any() -> Answer<Arc<Context>> {
    let top = STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0);
    if top == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    contexts().get(top).map_err(|_| Code::CONTEXT_IS_DESTROYED)
}

/// The context that is current in this thread.
///
/// # Errors
/// There is none, it is destroyed, or it has had a fault, whose code every later call gets.
pub fn current() -> Answer<Arc<Context>> {
    let context = current_any()?;
    context.check()?;
    Ok(context)
}

impl Context {
    fn open(handle: CUcontext, card: usize, flags: c_uint) -> Arc<Context> {
        let (legacy, marks, gates) = (fresh(), fresh(), fresh());
        let context = contexts().add_at(handle, |handle| Context {
            handle,
            card,
            flags: AtomicU32::new(flags),
            sticky: AtomicI32::new(0),
            limits: Mutex::default(),
            peers: Mutex::default(),
            legacy,
            of_threads: Mutex::default(),
            marks,
            gates,
        });
        streams().add_at(legacy, |handle| Stream::new(handle, context.clone(), Kind::Legacy, 0));
        engine().open(legacy, context.clone(), Class::Legacy);
        for queue in [marks, gates] {
            engine().open(queue, context.clone(), Class::NonBlocking);
        }
        context
    }

    /// Its card.
    pub fn card(&self) -> &'static Card {
        &cards()[self.card]
    }

    /// Whether a fault has ended it.
    ///
    /// # Errors
    /// The code of the fault.
    pub fn check(&self) -> Answer {
        match self.sticky.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Ends it by a fault: every later call answers `code`.
    pub fn fail(&self, code: Code) {
        if self.sticky.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            say(&format!(
                "card {}: from here on every call in this context answers {} ({})",
                self.card,
                code.name(),
                code.0
            ));
        }
    }

    /// Handle of the legacy default stream.
    pub fn legacy(&self) -> usize {
        self.legacy
    }

    /// Handle of the calling thread's default stream.
    pub fn of_thread(self: &Arc<Self>) -> usize {
        *locked(&self.of_threads).entry(std::thread::current().id()).or_insert_with(|| {
            let stream = streams().add(|handle| Stream::new(handle, self.clone(), Kind::OfThread, 0));
            engine().open(stream.handle, self.clone(), Class::Blocking);
            crate::event::pass_gates(&stream);
            stream.handle
        })
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// The code of a fault.
    pub fn synchronize(&self) -> Answer {
        let points: Vec<Point> = engine().tails(self.handle);
        crate::profile::waited();
        engine().wait(&points);
        self.check()
    }

    /// Takes away the access to another card, unless another context of this card has it too.
    fn release_peer(&self, peer: usize) {
        // After the kernels that may use it.
        engine().wait(&engine().tails(self.handle));
        let others = contexts().all();
        let kept = |other: &Context| other.card == self.card && locked(&other.peers).contains(&peer);
        if !others.iter().any(|other| kept(other)) {
            self.card().memory.disable_peer(peer);
        }
    }

    /// Ends it with all that belongs to it.
    fn close(&self) {
        engine().wait(&engine().tails(self.handle));
        for stream in streams().remove_all(|stream| stream.context.handle == self.handle) {
            engine().close(stream.handle);
        }
        for queue in [self.marks, self.gates] {
            engine().close(queue);
        }
        crate::module::close_all(self.handle);
        crate::event::close_all(self.handle);
        self.card().free_all(self.handle);
        let _ = contexts().remove(self.handle);
        for peer in std::mem::take(&mut *locked(&self.peers)) {
            self.release_peer(peer);
        }
    }
}

fn push(handle: CUcontext) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

fn pop() -> Answer<CUcontext> {
    STACK.with_borrow_mut(|stack| stack.pop()).ok_or(Code::INVALID_CONTEXT)
}

/// Makes a context current instead of the one that is; 0 leaves none.
fn set_current(handle: CUcontext) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

fn create(to: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    let card = card(device)?;
    let context = Context::open(fresh(), card.ordinal, flags);
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
    contexts().get(primary.handle).unwrap_or_else(|_| Context::open(primary.handle, card.ordinal, primary.flags))
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
        context.close();
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
        context.close();
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&handle) {
                stack.pop();
            }
        });
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
        out(to, STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0))
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
        crate::capture::forbid_wait(&context)?;
        context.synchronize()
    }
    fn cuCtxSynchronize_v2(handle: CUcontext) {
        let context = if handle == 0 { current()? } else { contexts().get(handle)? };
        context.check()?;
        crate::capture::forbid_wait(&context)?;
        context.synchronize()
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
        context.release_peer(peer.card);
        Ok(())
    }
}
