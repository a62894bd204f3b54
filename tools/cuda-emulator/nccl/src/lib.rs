//! An NCCL (`libnccl.so.2`) between the cards that [`cuda-driver`](../../driver) emulates, in one process or several.
//!
//! It uses the driver's public functions alone, as a library for real cards could. A launch puts two things into each
//! stream that it is given: a host function that says that the stream has come so far, and a wait for a word in pinned
//! memory. A thread, the proxy, moves the bytes when all ranks have come so far, and then writes the word.
//!
//! ```text
//! stream of rank 0    kernels | arrived, wait for the word ........... | kernels
//! stream of rank 1    kernels, kernels, kernels | arrived, wait ...... | kernels
//! proxy                                           moves bytes, writes the words
//! ```
//!
//! Each process that has ranks of a communicator tells the others how far its ranks have come, with the bytes that these
//! need, and finds out by itself what can run. All come to the same result, since each rank's operations arrive in order.
//!
//! What it imitates, so that a program which relies on more fails here:
//! * Calls queue work and return. Calls in a group start at the end of the outermost one, as one launch on each card.
//! * Launches on a card run one after another, in the order in which the host has issued them, whatever communicator
//!   they are of. Ranks that issue two communicators' work in different orders wait forever, of which NCCL warns.
//! * A collective runs when all ranks have issued it with the same arguments, a send when its receiver has. Calls that
//!   do not match wait forever; they are never an error.
//! * A communicator with `blocking = 0` answers `ncclInProgress`, and its work is not in the stream before
//!   `ncclCommGetAsyncError` answers success.
//! * `ncclCommAbort` frees the rank that calls it. Of the others, the next rank learns of it, and the rest wait. If a
//!   process ends before its ranks have left a communicator, all ranks of other processes learn of it.
//! * From the start of a launch to its end, what it will write is filled with ones (NaN). Sums are added in a ring's
//!   order and rounded at each step.
//!
//! All processes are of one user on one machine. A card is known by its ordinal: like the ranks of a process, those of
//! several must have different ones.

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod abi;
pub mod api;
mod arithmetic;
mod cuda;
mod group;
mod launches;
mod links;
mod meetings;
mod members;
mod message;
mod proxy;
mod say;
mod state;
mod worlds;
