//! The stream of a communicator, and its order with all other work on the GPU.

use crate::NcclError;
use cudarc::driver::DriverError;
use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream};
use std::sync::OnceLock;

/// The primary context of a GPU.
#[derive(Clone, Copy)]
pub struct Context {
    card: usize,
    handle: CUcontext,
}

// SAFETY: the driver accepts its handles from any thread, and this one stays.
unsafe impl Send for Context {}

impl Context {
    /// Makes it current on this thread.
    pub fn enter(self) -> Result<(), NcclError> {
        // SAFETY: the context is live.
        let done = unsafe { result::ctx::set_current(self.handle) };
        done.map_err(|error| cuda(self.card, "cuCtxSetCurrent", error))
    }
}

/// A stream in the primary context of a GPU, and the events at its ends.
pub struct Stream {
    context: Context,
    handle: CUstream,
    /// After all other work on the GPU.
    before: CUevent,
    /// After the work in this stream.
    after: CUevent,
}

// SAFETY: the driver accepts its handles from any thread, and nobody else has these.
unsafe impl Send for Stream {}

impl Stream {
    /// Creates a stream on the GPU with this number.
    pub fn new(card: usize) -> Result<Self, NcclError> {
        let open = || {
            result::init()?;
            let device = result::device::get(card as i32)?;
            // SAFETY: the device exists. This reference is never released, so the context stays.
            let context = unsafe { result::primary_ctx::retain(device)? };
            // SAFETY: the context is live.
            unsafe { result::ctx::set_current(context)? };
            let handle = stream::create(stream::StreamKind::NonBlocking)?;
            let event = || event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING);
            let context = Context { card, handle: context };
            Ok(Self { context, handle, before: event()?, after: event()? })
        };
        open().map_err(|error| cuda(card, "the creation of a stream", error))
    }

    /// Returns its handle.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.handle.cast()
    }

    /// Returns the GPU's context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Makes the GPU's context current on this thread.
    pub fn enter(&self) -> Result<(), NcclError> {
        self.context.enter()
    }

    /// Makes what is queued here from now on wait for all work that any thread has queued on the GPU so far. A driver
    /// older than CUDA 12.5 cannot tell a stream so, and the host waits.
    pub fn wait_for_all_work(&self) -> Result<(), NcclError> {
        let Some(record) = record_in_context() else {
            return self.check("cuCtxSynchronize", result::ctx::synchronize());
        };
        // SAFETY: the event is of this context.
        self.check("cuCtxRecordEvent", unsafe { record(self.context.handle, self.before) }.result())?;
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are live.
        self.check("cuStreamWaitEvent", unsafe { stream::wait_event(self.handle, self.before, flags) })
    }

    /// Marks the end of what is queued here.
    pub fn mark(&self) -> Result<(), NcclError> {
        // SAFETY: both are live.
        self.check("cuEventRecord", unsafe { event::record(self.after, self.handle) })
    }

    /// Returns whether the GPU has come to the last mark.
    pub fn is_done(&self) -> Result<bool, NcclError> {
        // SAFETY: the event is live.
        match unsafe { event::query(self.after) } {
            Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            other => self.check("cuEventQuery", other).map(|()| true),
        }
    }

    fn check<T>(&self, call: &'static str, done: Result<T, DriverError>) -> Result<T, NcclError> {
        done.map_err(|error| cuda(self.context.card, call, error))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handles, and the driver keeps what is still in use.
        unsafe {
            let _ = stream::destroy(self.handle);
            let _ = event::destroy(self.before);
            let _ = event::destroy(self.after);
        }
    }
}

fn cuda(card: usize, call: &'static str, error: DriverError) -> NcclError {
    NcclError::Cuda { call, card, reason: error.to_string() }
}

type RecordInContext = unsafe extern "C" fn(CUcontext, CUevent) -> CUresult;

/// Returns `cuCtxRecordEvent`, looked up by name because builds for older CUDA versions do not declare it.
fn record_in_context() -> Option<RecordInContext> {
    static FOUND: OnceLock<Option<RecordInContext>> = OnceLock::new();
    // SAFETY: the driver is loaded, or there would be no stream; the type is that of its documentation.
    *FOUND.get_or_init(|| unsafe { sys::culib().get(b"cuCtxRecordEvent\0").ok().map(|found| *found) })
}
