//! Ranks and the collectives between them: one trait, [`Communicator`], and its engines.
//!
//! A *rank* is one thread with one [`Device`](burn::tensor::Device); several ranks may share a device. Tensors go in,
//! tensors come out; this crate knows nothing of parameters, models or training.
//!
//! ```text
//!             rank 0   rank 1   rank 2          rank 0      rank 1      rank 2
//! all_gather    a        b        c      ->      abc         abc         abc
//! reduce_scatter abc     def      ghi    ->     a+d+g       b+e+h       c+f+i
//! all_reduce    ab       cd       ef     ->  a+c+e b+d+f  a+c+e b+d+f  a+c+e b+d+f
//! broadcast(1)  a        b        c      ->       b           b           b
//! ```
//!
//! Three laws hold for every engine:
//! * Sums run in rank order, so a result is bitwise the same every time.
//! * Every rank calls the same collectives in the same order. Where shapes, dtypes or collectives disagree, every rank gets
//!   an error that names both sides.
//! * No wait is for ever: when a rank fails, leaves or is late, the others get a [`CommError`] that names it.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use comm::Communicator;
//!
//! let sums = comm::run_ranks(vec![Device::flex(); 4], comm::TIMEOUT, |comm| {
//!     let mine = Tensor::<1>::from_floats([comm.rank() as f32, 1.0], comm.device());
//!     comm.all_reduce(mine).map(|sum| sum.into_data().to_vec::<f32>().unwrap())
//! })?;
//! assert_eq!(sums, vec![vec![6.0, 4.0]; 4]);
//! # Ok::<(), comm::RankFailure<comm::CommError>>(())
//! ```

mod communicator;
mod local;
mod ranks;

pub use communicator::{Collective, CommError, Communicator};
pub use local::LocalCommunicator;
pub use ranks::{RankFailure, TIMEOUT, run_ranks};
