//! What copies between CUDA GPUs need to know of one GPU: its context, a stream for copies into it, and the ordering of
//! those copies with all other work on the GPU.
//!
//! CubeCL does not expose its streams, so events cannot be recorded in them. Instead, events are recorded for the whole
//! context (`cuCtxRecordEvent`, `cuCtxWaitEvent`, CUDA 12.5 and later), and the host does not wait. Older drivers lack
//! these calls, and the host waits.

use cudarc::driver::DriverError;
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A CUDA GPU.
pub struct Card {
    number: usize,
    context: CUcontext,
    /// The stream of the copies into this GPU.
    copies: CUstream,
}

// SAFETY: the driver accepts its handles from any thread, and a `Card` lives until the process ends.
unsafe impl Send for Card {}
// SAFETY: see above.
unsafe impl Sync for Card {}

impl Card {
    /// Returns the GPU with this number.
    pub fn get(number: usize) -> &'static Self {
        static CARDS: Mutex<Option<HashMap<usize, &'static Card>>> = Mutex::new(None);
        let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
        cards.get_or_insert_default().entry(number).or_insert_with(|| Box::leak(Box::new(Self::open(number))))
    }

    /// Returns its number.
    #[cfg(feature = "nccl")]
    pub fn number(&self) -> usize {
        self.number
    }

    fn open(number: usize) -> Self {
        let opened = result::device::get(number as i32).and_then(|device| {
            // SAFETY: the device exists. CubeCL uses its primary context as well, and this reference is never released.
            let context = unsafe { result::primary_ctx::retain(device)? };
            // SAFETY: the context is live.
            unsafe { result::ctx::set_current(context)? };
            Ok(Self { number, context, copies: stream::create(stream::StreamKind::NonBlocking)? })
        });
        opened.unwrap_or_else(|error| panic!("cuda:{number} cannot be opened for copies: {error}"))
    }

    /// Returns an event after all work that any thread has queued on this GPU so far.
    pub fn event_after_all(&'static self) -> Event {
        let event = self.event();
        let recorded = match ContextEvents::get() {
            // SAFETY: the event belongs to this context.
            Some(events) => unsafe { (events.record)(self.context, event.handle) }.result(),
            // An event that was never recorded counts as passed.
            None => result::ctx::synchronize(),
        };
        self.expect("cuCtxRecordEvent", recorded);
        event
    }

    /// Makes all work that any thread queues on this GPU from now on wait for the event, which may belong to another
    /// GPU.
    ///
    /// # Errors
    /// Returns the driver's error; nothing waits then.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        match ContextEvents::get() {
            // SAFETY: both are live.
            Some(events) => unsafe { (events.wait)(self.context, event.handle) }.result(),
            // SAFETY: the event is live.
            None => unsafe { event::synchronize(event.handle) },
        }
    }

    /// Makes copies into this GPU that are queued from now on wait for the event, which may belong to another GPU.
    pub fn copies_wait_for(&self, event: &Event) {
        self.enter();
        // SAFETY: stream and event are live.
        let waits = unsafe { stream::wait_event(self.copies, event.handle, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) };
        self.expect("cuStreamWaitEvent", waits);
    }

    /// Queues a copy into this GPU.
    ///
    /// # Safety
    /// Both addresses must point to `bytes` bytes of memory on their GPUs. That memory must stay alive and unused by
    /// others until the copy has finished, which events ensure.
    pub unsafe fn copy(&self, to: u64, from_card: &Self, from: u64, bytes: usize) {
        self.reach(from_card);
        // SAFETY: guaranteed by the caller.
        let queued =
            unsafe { result::memcpy_peer_async(self.context, to, from_card.context, from, bytes, self.copies) };
        self.expect(&format!("a copy of {bytes} bytes from cuda:{}", from_card.number), queued);
    }

    /// Returns an event after all copies into this GPU that are queued so far.
    pub fn event_after_copies(&'static self) -> Event {
        let event = self.event();
        // SAFETY: event and stream belong to this context.
        self.expect("cuEventRecord", unsafe { event::record(event.handle, self.copies) });
        event
    }

    fn event(&'static self) -> Event {
        self.enter();
        let handle = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Event { handle: self.expect("cuEventCreate", handle) }
    }

    /// Gives this GPU access to the other GPU's memory, so that copies bypass the host. If the machine has no path
    /// between the GPUs, the driver copies through the host.
    fn reach(&self, other: &Self) {
        static ASKED: Mutex<Option<HashSet<(usize, usize)>>> = Mutex::new(None);
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number == other.number || !asked.get_or_insert_default().insert((self.number, other.number)) {
            return;
        }
        self.enter();
        // SAFETY: the context is live. Copies work whether access was allowed before, is allowed now, or cannot be
        // allowed.
        let _ = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
    }

    /// Makes the GPU's context current on this thread.
    fn enter(&self) {
        // SAFETY: the context is live.
        self.expect("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) });
    }

    /// Unwraps the result of a driver call.
    ///
    /// # Panics
    /// Panics if the driver refuses: the GPU and everything on it are lost.
    fn expect<T>(&self, what: &str, done: Result<T, DriverError>) -> T {
        done.unwrap_or_else(|error| panic!("cuda:{}: {what}: {error}", self.number))
    }
}

/// A marker in a GPU's work.
pub struct Event {
    handle: CUevent,
}

// SAFETY: the driver accepts its handles from any thread.
unsafe impl Send for Event {}
// SAFETY: see above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle. Work that waits for the event is already registered with the driver.
        let _ = unsafe { event::destroy(self.handle) };
    }
}

/// The calls of CUDA 12.5, looked up by name because builds for older CUDA versions do not declare them.
struct ContextEvents {
    record: unsafe extern "C" fn(CUcontext, CUevent) -> CUresult,
    wait: unsafe extern "C" fn(CUcontext, CUevent) -> CUresult,
}

impl ContextEvents {
    /// Returns `None` with an older driver.
    fn get() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<ContextEvents>> = OnceLock::new();
        let find = || {
            // SAFETY: the driver is loaded, or there would be no GPU; the types are those of its documentation.
            unsafe {
                let driver = sys::culib();
                Some(Self {
                    record: *driver.get(b"cuCtxRecordEvent\0").ok()?,
                    wait: *driver.get(b"cuCtxWaitEvent\0").ok()?,
                })
            }
        };
        FOUND.get_or_init(find).as_ref()
    }
}
