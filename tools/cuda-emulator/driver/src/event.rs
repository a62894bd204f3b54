//! Events: marks in a stream that others wait for, and that keep the time.
//!
//! An event knows its context: a thread without a current one may wait for it, ask it and destroy it, as CubeCL does on
//! cards.

use crate::abi::{CUcontext, CUevent, CUgraphNode, CUstream};
use crate::call::{api, out, refuse};
use crate::capture::join;
use crate::captures::{Capture, forbid_wait};
use crate::contexts::{Context, contexts, current};
use crate::engine::work::{Stamp, Work};
use crate::engine::{Point, engine};
use crate::errors::{Answer, Code};
use crate::handles::Table;
use crate::streams::{Stream, resolve, streams};
use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard};

/// The last record of an event.
#[derive(Clone, Default)]
enum Record {
    /// There was none: waiting for it waits for nothing.
    #[default]
    Never,
    /// In a stream.
    At(Point, Arc<Stamp>),
    /// In a stream that was captured: the nodes before it.
    Captured(Arc<Capture>, Vec<CUgraphNode>),
}

/// An event.
pub struct Event {
    /// Its handle.
    pub handle: CUevent,
    context: Arc<Context>,
    timing: bool,
    last: Mutex<Record>,
}

/// All live events.
pub fn events() -> &'static Table<Event> {
    static EVENTS: Table<Event> = Table::new(Code::INVALID_HANDLE);
    &EVENTS
}

impl Event {
    fn last(&self) -> MutexGuard<'_, Record> {
        self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sets where it was recorded last.
    pub fn set(&self, point: Point, stamp: Arc<Stamp>) {
        *self.last() = Record::At(point, stamp);
    }

    /// Refuses a record in work of another card.
    ///
    /// # Errors
    /// An invalid handle, which stderr explains.
    pub fn check(&self, context: &Context) -> Answer {
        match self.context.card == context.card {
            true => Ok(()),
            false => refuse(Code::INVALID_HANDLE, "an event is recorded in work of another card"),
        }
    }

    /// When its last record is passed.
    ///
    /// # Errors
    /// It was never recorded, or in a capture.
    fn stamp(&self) -> Answer<Arc<Stamp>> {
        match &*self.last() {
            Record::At(_, stamp) => Ok(stamp.clone()),
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    /// Where it was recorded last.
    ///
    /// # Errors
    /// It was recorded in a capture.
    pub fn point(&self) -> Answer<Option<Point>> {
        match &*self.last() {
            Record::Never => Ok(None),
            Record::At(point, _) => Ok(Some(*point)),
            Record::Captured(..) => Err(Code::CAPTURED_EVENT),
        }
    }
}

/// Ends the events of a context.
pub fn close_all(context: CUcontext) {
    drop(events().remove_all(|event| event.context.handle == context));
}

/// Makes later work of a stream wait for an event.
///
/// # Errors
/// There is no such event, or a capture would be tied to work outside it.
pub fn wait_in(stream: &Stream, event: CUevent) -> Answer {
    let last = events().get(event)?.last().clone();
    match last {
        Record::Captured(capture, nodes) => join(&capture, stream, &nodes),
        Record::Never => Ok(()),
        Record::At(point, _) => match stream.capture().as_ref() {
            Some(capture) => {
                capture.invalidate();
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            None => stream.batch(|batch| batch.submit(stream.handle, &[point], Work::Nothing)).map(|_| ()),
        },
    }
}

fn record(event: CUevent, stream: &Stream) -> Answer {
    let event = events().get(event)?;
    event.check(&stream.context)?;
    match stream.capture().as_ref() {
        Some(capture) => *event.last() = Record::Captured(capture.clone(), capture.frontier(stream.handle)),
        None => {
            let stamp = Arc::new(Stamp::default());
            let work = Work::Record(stamp.clone());
            event.set(stream.batch(|batch| batch.submit(stream.handle, &[], work))?, stamp);
        }
    }
    Ok(())
}

/// Makes work with an event a node of the graph that a stream is captured into, as the flag for external events asks.
///
/// # Errors
/// There is no such event, or the stream is not being captured.
pub fn external(stream: &Stream, event: CUevent, work: Work) -> Answer {
    events().get(event)?;
    let capture = stream.capture();
    capture.as_ref().ok_or(Code::INVALID_VALUE)?.add(stream.handle, work)
}

/// Records an event after all work of a context.
fn record_in_context(event: CUevent, context: CUcontext) -> Answer {
    let (event, context) = (events().get(event)?, contexts().get(context)?);
    if event.context.handle != context.handle {
        return refuse(Code::INVALID_HANDLE, "cuCtxRecordEvent: the event is of another context");
    }
    context.check()?;
    forbid_wait(&context)?;
    let (stamp, after) = (Arc::new(Stamp::default()), engine().tails(context.handle));
    let point = engine().submit(context.marks, &after, Work::Record(stamp.clone()))?;
    event.set(point, stamp);
    Ok(())
}

/// Makes later work of all streams of a context wait for an event.
fn wait_in_context(context: CUcontext, event: CUevent) -> Answer {
    let context = contexts().get(context)?;
    context.check()?;
    let Some(point) = events().get(event)?.point()? else { return Ok(()) };
    forbid_wait(&context)?;
    engine().submit(context.gates, &[point], Work::Nothing)?;
    for stream in streams().all().iter().filter(|stream| stream.context.handle == context.handle) {
        engine().submit(stream.handle, &[point], Work::Nothing)?;
    }
    Ok(())
}

fn elapsed(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Answer {
    let (start, end) = (events().get(start)?, events().get(end)?);
    if !start.timing || !end.timing {
        return Err(Code::INVALID_HANDLE);
    }
    // One after the other: both may be the same event.
    let (first, last) = (start.stamp()?, end.stamp()?);
    start.context.check()?;
    let (Some(first), Some(last)) = (first.0.get(), last.0.get()) else { return Err(Code::NOT_READY) };
    let seconds = match last.checked_duration_since(*first) {
        Some(after) => after.as_secs_f32(),
        None => -first.duration_since(*last).as_secs_f32(),
    };
    // SAFETY: checked for null.
    unsafe { out(milliseconds, seconds * 1000.0) }
}

api! {
    fn cuEventCreate(to: *mut CUevent, flags: c_uint) {
        let context = current()?;
        if flags > 7 || (flags & 4 != 0 && flags & 2 == 0) {
            return Err(Code::INVALID_VALUE);
        }
        if flags & 4 != 0 {
            return crate::call::unsupported("an event that other processes share");
        }
        let timing = flags & 2 == 0;
        out(to, events().add(|handle| Event { handle, context, timing, last: Mutex::default() }).handle)
    }
    fn cuEventDestroy_v2(event: CUevent) {
        events().remove(event).map(|_| ())
    }
    fn cuEventRecord | cuEventRecord_ptsz(default; event: CUevent, stream: CUstream) {
        record(event, &*resolve(stream, default)?)
    }
    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(
        default; event: CUevent, stream: CUstream, flags: c_uint,
    ) {
        let stream = resolve(stream, default)?;
        match flags {
            0 => record(event, &stream),
            1 => external(&stream, event, Work::RecordEvent(event)),
            _ => Err(Code::INVALID_VALUE),
        }
    }
    fn cuEventSynchronize(event: CUevent) {
        let event = events().get(event)?;
        if let Some(point) = event.point()? {
            crate::profile::waited();
            engine().wait(&[point]);
        }
        event.context.check()
    }
    fn cuEventQuery(event: CUevent) {
        let event = events().get(event)?;
        match event.point()? {
            Some(point) if !engine().poll(&[point]) => Err(Code::NOT_READY),
            _ => event.context.check(),
        }
    }
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) {
        record_in_context(event, context)
    }
    fn cuCtxWaitEvent(context: CUcontext, event: CUevent) {
        wait_in_context(context, event)
    }
}
