//! MPI messages in flight, with the memory that they own until they are done.

use ::mpi::Rank;
use ::mpi::ffi;
use burn::tensor::Bytes;
use std::mem::{MaybeUninit, forget, take};
use std::ops::Range;

/// The longest message; MPI counts with 32 bits, so longer data is split into several messages.
const CHUNK: usize = 1 << 30;

/// Messages in flight, with the memory that MPI reads and writes for them. Only this type hands memory to MPI.
///
/// If transfers are dropped before they are done, a rank has failed. Their memory is then leaked, because MPI may still
/// use it. Therefore the memory and the space for the request are stored here before MPI learns of them: no panic in
/// between can free memory that MPI will write.
#[derive(Default)]
pub struct Transfers {
    pending: Vec<Pending>,
    outgoing: Vec<Bytes>,
    incoming: Vec<Bytes>,
    /// A rank with which MPI refused to exchange messages.
    refused: Option<usize>,
}

struct Pending {
    /// The world number of the other end.
    rank: usize,
    request: ffi::MPI_Request,
}

// SAFETY: a request is a handle that any thread may test, because `MpiWorld::start` requires `Threading::Multiple`.
unsafe impl Send for Transfers {}

impl Transfers {
    /// Sends the same bytes to several ranks.
    pub fn send(&mut self, bytes: Bytes, to: impl IntoIterator<Item = usize>, tag: i32) {
        self.outgoing.push(bytes);
        let Self { outgoing, pending, refused, .. } = self;
        let bytes: &[u8] = &outgoing[outgoing.len() - 1];
        for rank in to {
            for chunk in bytes.chunks(CHUNK) {
                let (count, to) = (chunk.len() as i32, rank as Rank);
                start(pending, refused, rank, |request| {
                    // SAFETY: `outgoing` keeps the memory of `chunk` unchanged and in place until the request is done.
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
            }
        }
    }

    /// Receives into pieces of `bytes`, each from one rank; the pieces are ascending and disjoint.
    ///
    /// # Panics
    /// Panics if the pieces are not ascending and disjoint, or if they exceed `bytes`.
    pub fn receive(&mut self, bytes: Bytes, pieces: impl IntoIterator<Item = (usize, Range<usize>)>, tag: i32) {
        self.incoming.push(bytes);
        let Self { incoming, pending, refused, .. } = self;
        let last = incoming.len() - 1;
        let mut rest: &mut [u8] = &mut incoming[last];
        let mut start_of_rest = 0;
        for (rank, piece) in pieces {
            // Split from the front, so that no two requests get the same bytes.
            let (_, from_piece) = take(&mut rest).split_at_mut(piece.start - start_of_rest);
            let (this, after) = from_piece.split_at_mut(piece.len());
            (rest, start_of_rest) = (after, piece.end);
            for chunk in this.chunks_mut(CHUNK) {
                let (count, from) = (chunk.len() as i32, rank as Rank);
                start(pending, refused, rank, |request| {
                    // SAFETY: `incoming` keeps the memory of `chunk` untouched and in place until the request is done.
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
            }
        }
    }

    /// Returns whether all transfers are done.
    ///
    /// # Errors
    /// Returns a rank with which MPI could not exchange messages. Its transfers never finish, and MPI keeps their
    /// memory.
    pub fn done(&mut self) -> Result<bool, usize> {
        let refused = &mut self.refused;
        self.pending.retain_mut(|pending| {
            let mut flag = 0;
            // SAFETY: the request was started and is not done; `retain_mut` forgets requests that are done.
            let code = unsafe { ffi::MPI_Test(&mut pending.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
            if code != SUCCESS {
                refused.get_or_insert(pending.rank);
            }
            flag == 0 || code != SUCCESS
        });
        match self.refused {
            Some(rank) => Err(rank),
            None => Ok(self.pending.is_empty()),
        }
    }

    /// Returns the other ends of the transfers that are not done.
    pub fn waiting_for(&self) -> impl Iterator<Item = usize> {
        self.pending.iter().map(|pending| pending.rank)
    }

    /// Returns the received bytes, in the order of the calls.
    ///
    /// # Panics
    /// Panics if the transfers are not done.
    pub fn into_received(mut self) -> Vec<Bytes> {
        assert!(self.pending.is_empty(), "MPI still writes there");
        take(&mut self.incoming)
    }
}

/// The code of success. With any other code, Open MPI ends the process by default (`MPI_ERRORS_ARE_FATAL`).
const SUCCESS: i32 = ffi::MPI_SUCCESS as i32;

/// Starts a request with a rank and stores it.
fn start(
    pending: &mut Vec<Pending>,
    refused: &mut Option<usize>,
    rank: usize,
    call: impl FnOnce(*mut ffi::MPI_Request) -> i32,
) {
    pending.reserve(1); // `push` must not panic once the request is started
    let mut request = MaybeUninit::uninit();
    if call(request.as_mut_ptr()) != SUCCESS {
        refused.get_or_insert(rank);
        return;
    }
    // SAFETY: MPI has initialized it.
    pending.push(Pending { rank, request: unsafe { request.assume_init() } });
}

impl Drop for Transfers {
    fn drop(&mut self) {
        if !self.pending.is_empty() || self.refused.is_some() {
            forget((take(&mut self.outgoing), take(&mut self.incoming)));
        }
    }
}
