//! What a step moves between a rank's device and the CPU's memory, with [`cpu_offload`](crate::FsdpConfig::cpu_offload).
//!
//! For n elements of a class's shard, with p bytes per element in computation, and r in reductions (p if the class has
//! one shard):
//!
//! | operation | sent | the CPU reads and writes |
//! |---|---|---|
//! | gather; under `zero1` and `shard_grad_op` the optimizer's step | n p | n (4 + p), to cast |
//! | reduce, scatter | n r | n (r + 4), to cast, and 12 n from the second one on, to add |
//! | the last reduce, with copies of the shard | n r, and 4 n for what is summed on the device | n (r + 4), to cast |
//! | sum over stages | 8 n | |
//!
//! What is in fp32 is not cast.

use super::shapes::Class;
use std::iter::Sum;
use std::ops::Add;

/// Bytes that an operation moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// From the device to the CPU's memory, or back.
    pub sent: usize,
    /// Read and written by the CPU, without the optimizer.
    pub touched: usize,
}

const FP32: usize = size_of::<f32>();

impl Offloaded {
    /// Of a class's parameters for the device.
    pub(super) fn parameters(class: &Class) -> Self {
        Self::cast(elements(class), param_bytes(class))
    }

    /// Of a class's gradients in a reduction of `reduced` bytes per element; `adds` to those of earlier ones, and
    /// `last` in a step.
    pub(super) fn gradients(class: &Class, reduced: usize, adds: bool, last: bool) -> Self {
        let n = elements(class);
        let alone = class.shards == 1;
        let bytes = if alone { param_bytes(class) } else { reduced };
        let added = if adds { Self { sent: 0, touched: 3 * FP32 * n } } else { Self::default() };
        if !last || class.replicas == 1 {
            return Self::cast(n, bytes) + added;
        }
        // What is not sharded is summed on the CPU before it goes up.
        let own = if alone { Self::cast(n, bytes) + added } else { Self::default() };
        let up = if alone || adds { Self { sent: FP32 * n, touched: 0 } } else { Self::default() };
        own + up + Self::cast(n, reduced)
    }

    /// Of the sum of a class's gradients over stages.
    pub(super) fn tie(class: &Class) -> Self {
        Self { sent: 2 * FP32 * elements(class), touched: 0 }
    }

    /// Sends elements of so many bytes, which are in fp32 on the CPU.
    fn cast(n: usize, bytes: usize) -> Self {
        Self { sent: n * bytes, touched: if bytes == FP32 { 0 } else { n * (bytes + FP32) } }
    }
}

/// Returns the number of elements of a shard.
pub(super) fn elements(class: &Class) -> usize {
    class.shard / FP32
}

/// Bytes of an element in computation; of a class without parameters, any.
fn param_bytes(class: &Class) -> usize {
    (class.whole * FP32).checked_div(class.whole_fp32).unwrap_or(FP32)
}

impl Add for Offloaded {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, touched: self.touched + other.touched }
    }
}

impl Sum for Offloaded {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
