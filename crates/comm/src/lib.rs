//! Ranks and the collectives between them: [`Communicator`], the [`Engine`]s below it, and the [`Mesh`] above.
//!
//! A *rank* is a thread, or with the feature `mpi` a process started by `mpirun` (`MpiWorld`). Each rank has one
//! [`Device`](burn::tensor::Device); several ranks may share a device. Collectives take and return tensors. This crate
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
//! Three types build on the collectives and provide gradients, so a graph's forward and backward run through them
//! ([`ops`]). [`TensorParallel`] ranks split heads and columns, [`ContextParallel`] ranks split sequences, and
//! [`SequenceRanks`] combines both.
//!
//! Four properties hold for every engine:
//! * Sums run in rank order, so a result is bitwise the same every time, for threads and processes. On several machines
//!   with the same number of ranks, they run in rank order within each machine and then from machine to machine
//!   ([`HierarchicalEngine`]). 16-bit floats are added in f32 and rounded once. Only NCCL, with the feature `nccl`, has
//!   an order of its own, which is the same every time on the same machines.
//! * Every rank calls the same collectives in the same order. If shapes, dtypes or collectives disagree, every rank
//!   gets an error that names both sides.
//! * No wait lasts forever. If a rank fails, leaves or is late, the others get a [`CommError`] that names it, even if
//!   they wait for another rank in a group that was split off. Nor does [`run_ranks`] wait forever for a rank that is
//!   stuck outside a call. If a rank fails during a call, the call succeeds on all threads or on none. Processes that
//!   have already received all their parts succeed and get the error in the next call of that group. A killed process
//!   reports nothing; `mpirun` ends the others.
//! * Each rank meters the bytes it receives, and how many of them come from other machines: [`Communicator::traffic`],
//!   and per mesh axis [`Communicator::traffic_by_axes`].
//!
//! A rank among N ranks on one machine receives these bytes. `all_gather` of shards of n bytes: (N - 1) n.
//! `reduce_scatter` of F bytes: (N - 1)/N F. `all_reduce` of F bytes: twice that, or (N - 1) F in one round for up to
//! 32 KiB. `broadcast` of F bytes and `scatter` of n bytes: F and n, except on the root. `gather` of n bytes: (N - 1) n
//! on the root only. `all_to_all` and `recv`: whatever the others send.
//!
//! Before data moves, the ranks of a round agree on the call with control messages. A thread sends one message to all
//! ranks and is woken once per round; a process sends N - 1 messages. A call takes one round, except that an
//! `all_reduce` of more than 32 KiB takes two. `send` between threads needs no round.
//!
//! On several machines, [`HierarchicalEngine`] moves each byte across the network once per machine.
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
//!
//! What each rank gets from each collective, `cargo run --example collectives`:
//!
//! ```ignore
#![doc = include_str!("../examples/collectives.rs")]
//! ```

mod communicator;
mod context_parallel;
mod engine;
mod error;
mod first_error;
pub mod flight;
mod hand_over;
mod hierarchical;
mod local;
mod mesh;
mod meter;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
pub mod ops;
mod payload;
mod rank_group;
mod rank_list;
mod ranks;
mod sequence_ranks;
mod sums;
mod tensor_parallel;
mod timeouts;

pub use communicator::Communicator;
#[doc(hidden)]
pub use communicator::all_reduce_bytes;
pub use context_parallel::ContextParallel;
pub use engine::{Collective, Engine, Metered, Signature};
pub use error::CommError;
#[doc(hidden)]
pub use error::panic_message;
pub use first_error::FirstError;
#[doc(hidden)]
pub use hand_over::hand_over;
pub use hierarchical::HierarchicalEngine;
pub use local::LocalEngine;
pub use mesh::{Axis, Mesh, MeshShape};
pub use meter::{Cost, Traffic, TrafficTable};
#[cfg(feature = "mpi")]
pub use mpi::{MpiEngine, MpiWorld};
#[cfg(feature = "nccl")]
pub use nccl::NcclEngine;
pub use payload::{Kind, Payload, Reduce};
pub use rank_group::RankGroup;
#[doc(hidden)]
pub use rank_list::rank_list;
#[doc(hidden)]
pub use ranks::run_ranks_on_machines;
pub use ranks::{RankFailure, run_ranks};
pub use sequence_ranks::SequenceRanks;
#[doc(hidden)]
pub use sums::Summands;
pub use tensor_parallel::{Gathered, TensorParallel, TensorShard, part};
pub use timeouts::{TIMEOUT, Timeouts};
