//! The copy engine: tensor maps, the boxes that `cp.async.bulk.tensor` moves, and reductions.

mod instruction;
mod map;
mod reduction;
mod request;
mod runs;

pub use instruction::{BulkTensor, Direction, Offsets};
pub use map::{Element, Fill, Mode, TensorMap};
pub use reduction::{Operation, Reduction};
pub use request::Request;
pub use runs::{Load, Run, Source};

use super::Refused;

/// Largest number of dimensions of a tensor.
pub(super) const RANK: usize = 5;

/// What `cp.async.bulk` and `cp.reduce.async.bulk` ask of their operands: a size and addresses that are multiples of 16.
pub fn check_bulk(to: u64, from: u64, bytes: u64) -> Result<(), Refused> {
    for (what, value) in [("destination", to), ("source", from), ("size", bytes)] {
        if !value.is_multiple_of(16) {
            return Err(Refused(format!("a bulk copy's {what}, {value:#x}, is not a multiple of 16")));
        }
    }
    Ok(())
}
