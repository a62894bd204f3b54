//! Ranks and the collectives between them: [`Communicator`], the [`Engine`]s below it, and the [`Mesh`] above.
//!
//! A *rank* is one thread, or with the feature `mpi` one process that `mpirun` has started (`MpiWorld`), with one
//! [`Device`](burn::tensor::Device); several ranks may share a device. Tensors go in, tensors come out; this crate
//! knows nothing of parameters, models or training.
//!
//! ```text
//!               rank 0   rank 1   rank 2           rank 0        rank 1        rank 2
//! all_gather      a        b        c       ->       abc           abc           abc
//! reduce_scatter abc      def      ghi      ->      a+d+g         b+e+h         c+f+i
//! all_reduce      ab       cd       ef      ->  a+c+e b+d+f   a+c+e b+d+f   a+c+e b+d+f
//! broadcast(1)    a        b        c       ->        b             b             b
//! gather(1)       a        b        c       ->                   [a, b, c]
//! scatter(1)           [a, b, c]            ->        a             b             c
//! all_to_all     abc      def      ghi      ->       adg           beh           cfi
//! ```
//!
//! Above the collectives stand those with gradients, which a graph's forward and backward run through ([`ops`]): ranks
//! that have heads and columns together ([`TensorParallel`]), and ranks that have parts of a context
//! ([`ContextParallel`]); both together are [`SequenceRanks`].
//!
//! Four laws hold for every engine:
//! * Sums run in rank order, so a result is bitwise the same every time and with every engine. Floats of 16 bits are
//!   added in f32 and rounded once.
//! * Every rank calls the same collectives in the same order. Where shapes, dtypes or collectives disagree, every rank gets
//!   an error that names both sides.
//! * No wait is for ever: when a rank fails, leaves or is late, the others get a [`CommError`] that names it, also
//!   those that wait for somebody else in a group that was split off. Nor does [`run_ranks`] wait for ever for a rank
//!   that is stuck outside of a call. A call that is under way when a rank fails succeeds on all threads or on none. Of
//!   processes, some may have received all that they need, and succeed; they get the error in the next call of that
//!   group. A process that is killed tells nobody, and `mpirun` ends the others.
//! * Each rank meters what it receives: [`Communicator::traffic`], and by the axes of a mesh [`Communicator::traffic_by_axes`].
//!
//! Bytes that a rank receives, of N ranks: `all_gather` of shards of n bytes (N - 1) n; `reduce_scatter` of F bytes
//! (N - 1)/N F; `all_reduce` twice that, or in one round (N - 1) F up to 32 KiB; `broadcast` F and `scatter` n on all
//! but the root, `gather` (N - 1) n on the root alone; `all_to_all` and `recv` what the others send.
//!
//! Control messages that a rank sends in a round, so that all agree on the call: threads 1, to all, and a round wakes
//! each rank once; processes N - 1. A call is one round, but for an `all_reduce` of more than 32 KiB, which is two;
//! `send` between threads needs none.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use comm::Reduce;
//!
//! let sums = comm::run_ranks(vec![Device::flex(); 4], comm::TIMEOUT, |comm| {
//!     let mine = Tensor::<1>::from_floats([comm.rank() as f32, 1.0], comm.device());
//!     comm.all_reduce(mine, Reduce::Sum).map(|sum| sum.into_data().to_vec::<f32>().unwrap())
//! })?;
//! assert_eq!(sums, vec![vec![6.0, 4.0]; 4]);
//! # Ok::<(), comm::RankFailure<comm::CommError>>(())
//! ```

mod communicator;
mod context_parallel;
mod engine;
mod error;
mod first_error;
mod hand_over;
mod local;
mod mesh;
mod meter;
#[cfg(feature = "mpi")]
mod mpi;
pub mod ops;
mod payload;
mod ranks;
mod sequence_ranks;
mod sums;
mod tensor_parallel;
mod timeouts;

pub use communicator::{Communicator, all_reduce_bytes};
pub use context_parallel::ContextParallel;
pub use engine::{Collective, Engine, Signature};
pub use error::{CommError, panic_message};
pub use first_error::FirstError;
pub use hand_over::hand_over;
pub use local::LocalEngine;
pub use mesh::{Axis, Mesh, MeshShape};
pub use meter::{Traffic, TrafficTable};
#[cfg(feature = "mpi")]
pub use mpi::{MpiEngine, MpiWorld};
pub use payload::{Kind, Payload, Reduce};
pub use ranks::{RankFailure, run_ranks};
pub use sequence_ranks::SequenceRanks;
pub use sums::Summands;
pub use tensor_parallel::{Cut, Gathered, TensorParallel, part};
pub use timeouts::{TIMEOUT, Timeouts};
