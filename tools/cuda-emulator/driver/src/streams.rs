//! All streams, what they take, and the default ones.

use crate::abi::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream};
use crate::captures::{Capture, forbid};
use crate::contexts::{Context, current};
use crate::engine::work::Work;
use crate::engine::{Batch, Class, Point, engine};
use crate::errors::{Answer, Code};
use crate::handles::Table;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a stream is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The legacy default stream.
    Legacy,
    /// The default stream of a thread.
    OfThread,
    /// Made, in order with the legacy default stream.
    Blocking,
    /// Made, apart from the legacy default stream.
    NonBlocking,
}

/// A stream.
pub struct Stream {
    /// Its handle.
    pub handle: CUstream,
    /// Its context.
    pub context: Arc<Context>,
    /// What it is.
    pub kind: Kind,
    /// Its priority, which clients may ask for.
    pub priority: c_int,
    capture: Mutex<Option<Arc<Capture>>>,
}

/// All live streams.
pub fn streams() -> &'static Table<Stream> {
    static STREAMS: Table<Stream> = Table::new(Code::INVALID_HANDLE);
    &STREAMS
}

/// The stream of a handle; 0 is the default stream that the symbol stands for.
///
/// # Errors
/// There is no such stream, no current context, or its context has had a fault.
pub fn resolve(handle: CUstream, default: CUstream) -> Answer<Arc<Stream>> {
    let context = current()?;
    let stream = match if handle == 0 { default } else { handle } {
        CU_STREAM_LEGACY => streams().get(context.legacy)?,
        CU_STREAM_PER_THREAD => streams().get(of_thread(&context))?,
        handle => streams().get(handle)?,
    };
    stream.context.check()?;
    Ok(stream)
}

/// Handle of the calling thread's default stream in a context.
fn of_thread(context: &Arc<Context>) -> CUstream {
    let mut of_threads = context.of_threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *of_threads.entry(std::thread::current().id()).or_insert_with(|| {
        let stream = streams().add(|handle| Stream::new(handle, context.clone(), Kind::OfThread, 0));
        engine().open(stream.handle, context.clone(), Class::Blocking);
        pass_gates(&stream);
        stream.handle
    })
}

/// Makes a new stream wait for what its context waits for.
pub fn pass_gates(stream: &Stream) {
    let gate = engine().tail(stream.context.gates);
    if !engine().is_done(gate) {
        let _ = engine().submit(stream.handle, &[gate], Work::Nothing);
    }
}

/// Refuses work of the legacy default stream while a blocking stream of its context is being captured.
///
/// # Errors
/// Such a capture is in progress; it is invalidated.
fn forbid_legacy(context: &Context) -> Answer {
    let blocking = |capture: &Capture| {
        capture
            .streams()
            .iter()
            .any(|&stream| streams().get(stream).is_ok_and(|stream| stream.kind != Kind::NonBlocking))
    };
    forbid(|capture| capture.is_of(context) && blocking(capture), Code::STREAM_CAPTURE_IMPLICIT)
}

impl Stream {
    /// A stream of a context.
    pub fn new(handle: CUstream, context: Arc<Context>, kind: Kind, priority: c_int) -> Self {
        Self { handle, context, kind, priority, capture: Mutex::default() }
    }

    /// Its capture, if one is in progress. While it is locked, no other thread begins or ends one, or submits work to
    /// the stream. Lock an event inside this lock, never the other way round.
    pub fn capture(&self) -> MutexGuard<'_, Option<Arc<Capture>>> {
        self.capture.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether its work becomes nodes of a graph.
    pub fn is_capturing(&self) -> bool {
        self.capture().is_some()
    }

    /// Queues work, or makes it a node of the graph that is being captured, which has no point.
    ///
    /// # Errors
    /// The stream is gone, or the legacy default stream would depend on a capture.
    pub fn submit(&self, after: &[Point], work: Work) -> Answer<Option<Point>> {
        match self.capture().as_ref() {
            Some(capture) => capture.add(self.handle, work).map(|()| None),
            None => self.batch(|batch| batch.submit(self.handle, after, work)).map(Some),
        }
    }

    /// Queues what `queue` submits. The caller holds the lock of [`Self::capture`] and has found no capture.
    ///
    /// # Errors
    /// The legacy default stream would depend on a capture, or those of `queue`.
    pub fn batch<T>(&self, queue: impl FnOnce(&mut Batch) -> Answer<T>) -> Answer<T> {
        if self.kind == Kind::Legacy {
            forbid_legacy(&self.context)?;
        }
        engine().batch(queue)
    }

    /// What a call answers that a capture forbids; the capture is invalidated.
    ///
    /// # Errors
    /// Always.
    pub fn forbidden<T>(&self) -> Answer<T> {
        if let Some(capture) = self.capture().as_ref() {
            capture.invalidate();
        }
        Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Waits on the host until its work is done.
    ///
    /// # Errors
    /// The code of a fault, or that it is being captured.
    pub fn wait(&self) -> Answer {
        if self.is_capturing() {
            return self.forbidden();
        }
        crate::profile::waited();
        // The legacy default stream's wait is for all blocking streams before it too.
        match self.kind {
            Kind::Legacy => {
                forbid_legacy(&self.context)?;
                let point = engine().submit(self.handle, &[], Work::Nothing)?;
                engine().wait(&[point]);
            }
            _ => engine().wait(&[engine().tail(self.handle)]),
        }
        self.context.check()
    }
}
