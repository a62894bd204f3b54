use ::mpi::Rank;
use ::mpi::ffi;
use burn::tensor::Bytes;
use std::mem::{MaybeUninit, forget, take};
use std::ops::Range;

/// MPI counts with 32 bits: what is longer goes as several messages.
const CHUNK: usize = 1 << 30;

/// Messages under way, with the memory that MPI reads and writes for them. The only place that hands memory to MPI.
///
/// Where they are dropped before they are done, a rank has failed: their memory is leaked, for MPI may still use it.
#[derive(Default)]
pub struct Transfers {
    pending: Vec<Pending>,
    outgoing: Vec<Bytes>,
    incoming: Vec<Bytes>,
}

struct Pending {
    /// The other end, by its number in the world.
    rank: usize,
    request: ffi::MPI_Request,
}

// SAFETY: a request is a handle, which any thread may test: `World::start` insists on `Threading::Multiple`.
unsafe impl Send for Transfers {}

impl Transfers {
    /// Sends the same bytes to some ranks.
    pub fn send(&mut self, bytes: Bytes, to: impl IntoIterator<Item = usize>, tag: i32) {
        for rank in to {
            for chunk in bytes.chunks(CHUNK) {
                let request = start(|request| {
                    let (count, to) = (chunk.len() as i32, rank as Rank);
                    // SAFETY: `outgoing` keeps the memory of `chunk`, unchanged and where it is, until the request is done.
                    unsafe {
                        ffi::MPI_Isend(
                            chunk.as_ptr().cast(),
                            count,
                            ffi::RSMPI_UINT8_T,
                            to,
                            tag,
                            ffi::RSMPI_COMM_WORLD,
                            request,
                        )
                    }
                });
                self.pending.push(Pending { rank, request });
            }
        }
        self.outgoing.push(bytes);
    }

    /// Receives into pieces of `bytes`, each from a rank; they ascend and are disjoint.
    pub fn receive(&mut self, mut bytes: Bytes, pieces: impl IntoIterator<Item = (usize, Range<usize>)>, tag: i32) {
        let mut rest: &mut [u8] = &mut bytes;
        let mut start_of_rest = 0;
        for (rank, piece) in pieces {
            // Cut off from the front, so that no two requests are given the same bytes.
            let (_, from_piece) = take(&mut rest).split_at_mut(piece.start - start_of_rest);
            let (this, after) = from_piece.split_at_mut(piece.len());
            (rest, start_of_rest) = (after, piece.end);
            for chunk in this.chunks_mut(CHUNK) {
                let request = start(|request| {
                    let (count, from) = (chunk.len() as i32, rank as Rank);
                    // SAFETY: `incoming` keeps the memory of `chunk`, untouched and where it is, until the request is done.
                    unsafe {
                        ffi::MPI_Irecv(
                            chunk.as_mut_ptr().cast(),
                            count,
                            ffi::RSMPI_UINT8_T,
                            from,
                            tag,
                            ffi::RSMPI_COMM_WORLD,
                            request,
                        )
                    }
                });
                self.pending.push(Pending { rank, request });
            }
        }
        self.incoming.push(bytes);
    }

    /// Whether all are done.
    pub fn done(&mut self) -> bool {
        self.pending.retain_mut(|pending| {
            let mut flag = 0;
            // SAFETY: the request was started and is not done: where it is, `retain_mut` forgets it.
            unsafe { ffi::MPI_Test(&mut pending.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
            flag == 0
        });
        self.pending.is_empty()
    }

    /// The other ends of those that are not done.
    pub fn waiting_for(&self) -> impl Iterator<Item = usize> {
        self.pending.iter().map(|pending| pending.rank)
    }

    /// What has been received, in the order of the calls.
    ///
    /// # Panics
    /// If they are not done.
    pub fn into_received(mut self) -> Vec<Bytes> {
        assert!(self.pending.is_empty(), "MPI still writes there");
        take(&mut self.incoming)
    }
}

fn start(call: impl FnOnce(*mut ffi::MPI_Request) -> i32) -> ffi::MPI_Request {
    let mut request = MaybeUninit::uninit();
    call(request.as_mut_ptr()); // an error ends the process: the world has MPI_ERRORS_ARE_FATAL
    // SAFETY: MPI has written it.
    unsafe { request.assume_init() }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            forget((take(&mut self.outgoing), take(&mut self.incoming)));
        }
    }
}
