//! Communicators whose calls end: with a result, or because the caller's check fails.

use crate::NcclError;
use crate::library::{Address, Config, Handle, IN_PROGRESS, Id, Library, SUCCESS};
use crate::stream::Stream;
use std::ffi::c_int;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What names a communicator before it exists. One rank makes it, and all ranks of the communicator get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// Makes one.
    ///
    /// # Errors
    /// NCCL is missing, or finds no network interface.
    pub fn new() -> Result<Self, NcclError> {
        let (library, mut id) = (Library::get()?, Id([0; 128]));
        // SAFETY: the place is valid.
        match unsafe { (library.get_unique_id)(&mut id) } {
            SUCCESS => Ok(Self(id.0)),
            code => Err(library.error("ncclGetUniqueId", 0, code, std::ptr::null_mut())),
        }
    }
}

/// An element type. Numbers are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Element {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    BF16 = 9,
}

/// How values are combined. Numbers are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum = 0,
    Max = 2,
}

/// A call on memory of the communicator's GPU. `count` is in elements, addresses are in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Reads `count` elements and writes N times as many, in rank order.
    AllGather {
        /// What is read.
        from: u64,
        /// What is written.
        to: u64,
        /// Elements of a rank.
        count: usize,
        /// Their type.
        element: Element,
    },
    /// Reads N times `count` elements and writes this rank's `count` elements of the result.
    ReduceScatter {
        /// What is read.
        from: u64,
        /// What is written.
        to: u64,
        /// Elements of the result.
        count: usize,
        /// Their type.
        element: Element,
        /// How they are combined.
        how: Reduction,
    },
    /// Reads and writes `count` elements.
    AllReduce {
        /// What is read.
        from: u64,
        /// What is written.
        to: u64,
        /// Elements.
        count: usize,
        /// Their type.
        element: Element,
        /// How they are combined.
        how: Reduction,
    },
    /// Sends bytes to a rank, which receives as many.
    Send {
        /// What is read.
        from: u64,
        /// Number of bytes.
        bytes: usize,
        /// The rank.
        to: usize,
    },
    /// Receives bytes from a rank.
    Recv {
        /// What is written.
        to: u64,
        /// Number of bytes.
        bytes: usize,
        /// The rank.
        from: usize,
    },
}

/// One rank's part in a communicator, with a stream of its own.
///
/// A failed call aborts it; all later calls return an error. If it is dropped in order, it waits up to ten seconds for
/// the other ranks to drop theirs.
pub struct Communicator {
    library: &'static Library,
    handle: Handle,
    rank: usize,
    size: usize,
    card: usize,
    stream: Stream,
}

// SAFETY: NCCL allows calls from any thread, one at a time, which `&mut self` ensures.
unsafe impl Send for Communicator {}

/// A poll first yields to other threads, in case the end is near; then it sleeps.
const SPINS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);
/// How long a drop waits for the other ranks.
const LET_GO: Duration = Duration::from_secs(10);

impl Communicator {
    /// Joins the communicator of `id` as `rank` of `size`, with the GPU number `card`. Returns when all ranks have
    /// joined.
    ///
    /// # Errors
    /// `check` fails, NCCL or the GPU is missing, or two ranks have the same GPU.
    pub fn new<E: From<NcclError>>(
        id: UniqueId,
        rank: usize,
        size: usize,
        card: usize,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        let (library, stream, config) = (Library::get()?, Stream::new(card)?, Config::non_blocking());
        let mut found = Self { library, handle: std::ptr::null_mut(), rank, size, card, stream };
        // SAFETY: the places are valid, and the GPU's context is current.
        let code =
            unsafe { (library.init_rank_config)(&mut found.handle, size as c_int, Id(id.0), rank as c_int, &config) };
        let joined = found.started("ncclCommInitRankConfig", code).map_err(E::from);
        let joined = joined.and_then(|()| found.settle("ncclCommInitRankConfig", check));
        found.or_abort(joined)?;
        Ok(found)
    }

    /// Returns this rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Runs calls as one group, after all work that any thread has queued on the GPU so far, and returns when they are
    /// done. `launched` is called when they are in the GPU's queue; `check` is called while this waits.
    ///
    /// # Errors
    /// `check` fails, or NCCL or the driver returns an error. What the calls write is then undefined.
    ///
    /// # Safety
    /// All addresses must be those of enough memory on the GPU, which stays until this returns, and which nobody uses
    /// meanwhile.
    pub unsafe fn run<E: From<NcclError>>(
        &mut self,
        calls: &[Call],
        launched: impl FnOnce(),
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        if self.handle.is_null() {
            return Err(NcclError::Aborted(self.card).into());
        }
        // SAFETY: the caller's.
        let queued = unsafe { self.queue(calls) }.map_err(E::from);
        // Only when nothing is in progress are the calls in the stream.
        let queued = queued.and_then(|()| self.settle("ncclGroupEnd", &mut check));
        let done = queued.and_then(|()| {
            self.stream.mark()?;
            launched();
            self.wait(check)
        });
        self.or_abort(done)
    }

    unsafe fn queue(&self, calls: &[Call]) -> Result<(), NcclError> {
        self.stream.enter()?;
        self.stream.wait_for_all_work()?;
        // SAFETY: no arguments.
        self.started("ncclGroupStart", unsafe { (self.library.group_start)() })?;
        // A group that has begun must end, also after an error.
        // SAFETY: the caller's.
        let queued = calls.iter().try_for_each(|call| unsafe { self.call(*call) });
        // SAFETY: no arguments.
        let ended = self.started("ncclGroupEnd", unsafe { (self.library.group_end)() });
        queued.and(ended)
    }

    unsafe fn call(&self, call: Call) -> Result<(), NcclError> {
        let Self { library, handle, ref stream, .. } = *self;
        let (stream, at) = (stream.handle(), |address: u64| address as usize as Address);
        let bytes = Element::U8 as c_int;
        // SAFETY: the caller's.
        let (name, code) = unsafe {
            match call {
                Call::AllGather { from, to, count, element } => {
                    let code = (library.all_gather)(at(from), at(to), count, element as c_int, handle, stream);
                    ("ncclAllGather", code)
                }
                Call::ReduceScatter { from, to, count, element, how } => {
                    let (element, how) = (element as c_int, how as c_int);
                    let code = (library.reduce_scatter)(at(from), at(to), count, element, how, handle, stream);
                    ("ncclReduceScatter", code)
                }
                Call::AllReduce { from, to, count, element, how } => {
                    let (element, how) = (element as c_int, how as c_int);
                    let code = (library.all_reduce)(at(from), at(to), count, element, how, handle, stream);
                    ("ncclAllReduce", code)
                }
                Call::Send { from, bytes: len, to } => {
                    ("ncclSend", (library.send)(at(from), len, bytes, to as c_int, handle, stream))
                }
                Call::Recv { to, bytes: len, from } => {
                    ("ncclRecv", (library.recv)(at(to), len, bytes, from as c_int, handle, stream))
                }
            }
        };
        self.started(name, code)
    }

    /// Turns the result of a call into one of this crate: a call in progress has started.
    fn started(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.library.error(call, self.card, code, self.handle)),
        }
    }

    /// Returns whether a call is in progress.
    fn is_in_progress(&self, call: &'static str) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the handle is live and the place valid.
        let code = unsafe { (self.library.get_async_error)(self.handle, &mut state) };
        self.started("ncclCommGetAsyncError", code)?;
        self.started(call, state).map(|()| state == IN_PROGRESS)
    }

    /// Waits until no call is in progress.
    fn settle<E: From<NcclError>>(
        &self,
        call: &'static str,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        for polls in 0u32.. {
            if !self.is_in_progress(call)? {
                break;
            }
            check()?;
            pause(polls);
        }
        Ok(())
    }

    /// Waits until the GPU has come to the mark.
    fn wait<E: From<NcclError>>(&self, mut check: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        for polls in 0u32.. {
            if self.stream.is_done()? {
                break;
            }
            self.is_in_progress("a call of NCCL")?;
            check()?;
            pause(polls);
        }
        Ok(())
    }

    /// Aborts if a call has failed.
    fn or_abort<T, E>(&mut self, done: Result<T, E>) -> Result<T, E> {
        if done.is_err() {
            self.abort();
        }
        done
    }

    /// Frees the GPU from calls that wait for other ranks, within ten seconds or not at all. Nothing happens if this was
    /// done before.
    pub fn abort(&mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        if handle.is_null() || self.stream.enter().is_err() {
            return;
        }
        let (start, library, context) = (Instant::now(), self.library, self.stream.context());
        let handle = handle.expose_provenance();
        // Users of several versions of NCCL report aborts that hang: in a wait for a proxy thread that is stuck in the
        // network, or for the GPU. This rank must still be able to say why it fails, so the thread is left behind.
        let in_time = within(LET_GO, move || {
            if context.enter().is_ok() {
                // SAFETY: the handle is live and not used again.
                let _ = unsafe { (library.abort)(std::ptr::with_exposed_provenance_mut(handle)) };
            }
        });
        if !in_time {
            // The GPU may still wait, and write to the memory of the call. The caller returns an error, with which the
            // program ends.
            eprintln!("warning: ncclCommAbort on cuda:{} has not returned within {LET_GO:?}", self.card);
            return;
        }
        // The memory of the call must not be used by others before its kernels have ended.
        let marked = self.stream.mark().is_ok();
        while marked && self.stream.is_done().is_ok_and(|done| !done) && start.elapsed() < LET_GO {
            thread::sleep(NAP);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.handle.is_null() || self.stream.enter().is_err() {
            return;
        }
        let start = Instant::now();
        let in_time = || if start.elapsed() < LET_GO { Ok(()) } else { Err(NcclError::Aborted(self.card)) };
        // SAFETY: the handle is live.
        let ended = self.started("ncclCommFinalize", unsafe { (self.library.finalize)(self.handle) });
        if ended.and_then(|()| self.settle("ncclCommFinalize", in_time)).is_err() {
            self.abort();
            return;
        }
        // SAFETY: the handle is live and not used again.
        let _ = unsafe { (self.library.destroy)(self.handle) };
    }
}

/// Runs `work` on a thread of its own and returns whether it has ended in time. If not, the thread stays behind.
fn within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, ended) = mpsc::channel();
    let run = move || {
        work();
        let _ = done.send(());
    };
    thread::Builder::new().name("NCCL abort".into()).spawn(run).is_ok() && ended.recv_timeout(limit).is_ok()
}

fn pause(polls: u32) {
    if polls < SPINS { thread::yield_now() } else { thread::sleep(NAP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_is_left_behind() {
        assert!(within(Duration::from_secs(60), || ()));
        assert!(!within(Duration::from_millis(1), thread::park));
    }
}
