//! Collectives between NVIDIA GPUs by NCCL.
//!
//! NCCL is loaded when the first [`UniqueId`] or [`Communicator`] is made, so a build needs neither NCCL nor CUDA. A
//! [`Communicator`] never waits without end: its owner passes a check to every call, which is made while the call waits
//! and ends it with an error. The communicator is then aborted, which frees its GPU.
//!
//! ```text
//! other streams   kernels |                            | kernels of the caller, which has seen the end
//! this stream             | all-reduce ............... |
//! this thread       queue | poll, check, poll, check.. | return
//! ```
//!
//! The host waits for the end of each call, since a GPU that waits for a lost rank can be freed only by the host.
//!
//! # What the caller must ensure
//! * All ranks make the same calls of a communicator in the same order. NCCL does not compare them: it waits, or moves
//!   wrong bytes.
//! * If a GPU belongs to several communicators, all ranks queue their calls in one order, across communicators.
//! * If a call fails on one rank, the check fails on all others.
//!
//! Sums have an order that NCCL chooses by the number of ranks, their connections and the size. It is the same each
//! time on the same machines. Each step rounds to the element type.

mod communicator;
mod error;
mod library;
mod stream;

pub use communicator::{Call, Communicator, Element, Reduction, UniqueId};
pub use error::NcclError;
pub use library::version;
