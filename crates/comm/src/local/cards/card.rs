//! A card as copies between cards see it: its context, a stream for copies into it, and the order between those copies
//! and everything else on the card.
//!
//! CubeCL keeps its streams to itself, so an event cannot be recorded in them. Events of the whole context can
//! (`cuCtxRecordEvent`, `cuCtxWaitEvent`, CUDA 12.5 and later): the host then waits for nothing. Older drivers have no such
//! call, and there the host waits.

use cudarc::driver::DriverError;
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A CUDA card.
pub struct Card {
    number: usize,
    context: CUcontext,
    /// Copies into this card run here.
    copies: CUstream,
}

// SAFETY: the driver takes its handles from any thread, and a `Card` lives until the process ends.
unsafe impl Send for Card {}
// SAFETY: see above.
unsafe impl Sync for Card {}

impl Card {
    /// The card of this number.
    pub fn get(number: usize) -> &'static Self {
        static CARDS: Mutex<Option<HashMap<usize, &'static Card>>> = Mutex::new(None);
        let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
        cards.get_or_insert_default().entry(number).or_insert_with(|| Box::leak(Box::new(Self::open(number))))
    }

    fn open(number: usize) -> Self {
        let opened = result::device::get(number as i32).and_then(|device| {
            // SAFETY: the device exists. CubeCL uses its primary context as well, and nobody releases this hold.
            let context = unsafe { result::primary_ctx::retain(device)? };
            // SAFETY: the context is live.
            unsafe { result::ctx::set_current(context)? };
            Ok(Self { number, context, copies: stream::create(stream::StreamKind::NonBlocking)? })
        });
        opened.unwrap_or_else(|error| panic!("cuda:{number} cannot be opened for copies: {error}"))
    }

    /// An event after everything that any thread has handed to this card so far.
    pub fn event_after_all(&'static self) -> Event {
        let event = self.event();
        let recorded = match ContextEvents::get() {
            // SAFETY: the event is of this context.
            Some(events) => unsafe { (events.record)(self.context, event.handle) }.result(),
            // The event, never recorded, counts as passed.
            None => result::ctx::synchronize(),
        };
        self.expect("cuCtxRecordEvent", recorded);
        event
    }

    /// Everything that any thread hands to this card from now on waits for the event, which may be another card's.
    ///
    /// # Errors
    /// The driver's, with which nothing waits.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        match ContextEvents::get() {
            // SAFETY: both are live.
            Some(events) => unsafe { (events.wait)(self.context, event.handle) }.result(),
            // SAFETY: the event is live.
            None => unsafe { event::synchronize(event.handle) },
        }
    }

    /// Copies into this card that are queued from now on wait for the event, which may be another card's.
    pub fn copies_wait_for(&self, event: &Event) {
        self.enter();
        // SAFETY: stream and event are live.
        let waits = unsafe { stream::wait_event(self.copies, event.handle, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) };
        self.expect("cuStreamWaitEvent", waits);
    }

    /// Queues a copy into this card.
    ///
    /// # Safety
    /// Both addresses are of so many bytes of memory on their cards, which lives and is used by nobody else until the
    /// copy is over; that is what events are for.
    pub unsafe fn copy(&self, to: u64, from_card: &Self, from: u64, bytes: usize) {
        self.reach(from_card);
        // SAFETY: the caller's.
        let queued =
            unsafe { result::memcpy_peer_async(self.context, to, from_card.context, from, bytes, self.copies) };
        self.expect(&format!("a copy of {bytes} bytes from cuda:{}", from_card.number), queued);
    }

    /// An event after the copies into this card that are queued so far.
    pub fn event_after_copies(&'static self) -> Event {
        let event = self.event();
        // SAFETY: event and stream are of this context.
        self.expect("cuEventRecord", unsafe { event::record(event.handle, self.copies) });
        event
    }

    fn event(&'static self) -> Event {
        self.enter();
        let handle = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Event { handle: self.expect("cuEventCreate", handle) }
    }

    /// Lets this card read the other's memory, so that copies do not go through the host. Where the machine has no way
    /// from card to card, the driver takes the one through the host.
    fn reach(&self, other: &Self) {
        static ASKED: Mutex<Option<HashSet<(usize, usize)>>> = Mutex::new(None);
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number == other.number || !asked.get_or_insert_default().insert((self.number, other.number)) {
            return;
        }
        self.enter();
        // SAFETY: the context is live. Whether it was allowed before, is now or cannot be: copies work.
        let _ = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
    }

    /// Makes its context this thread's.
    fn enter(&self) {
        // SAFETY: the context is live.
        self.expect("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) });
    }

    /// # Panics
    /// If the driver refuses: the card is lost, and all that is on it.
    fn expect<T>(&self, what: &str, done: Result<T, DriverError>) -> T {
        done.unwrap_or_else(|error| panic!("cuda:{}: {what}: {error}", self.number))
    }
}

/// A mark in a card's work.
pub struct Event {
    handle: CUevent,
}

// SAFETY: the driver takes its handles from any thread.
unsafe impl Send for Event {}
// SAFETY: see above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle. What waits for the event has taken note of it.
        let _ = unsafe { event::destroy(self.handle) };
    }
}

/// The calls of CUDA 12.5. By name, because a build for an older CUDA does not know them.
struct ContextEvents {
    record: unsafe extern "C" fn(CUcontext, CUevent) -> CUresult,
    wait: unsafe extern "C" fn(CUcontext, CUevent) -> CUresult,
}

impl ContextEvents {
    /// None with a driver that is older.
    fn get() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<ContextEvents>> = OnceLock::new();
        let find = || {
            // SAFETY: the driver is loaded, or there were no card; the types are those of its documentation.
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
