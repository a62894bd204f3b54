//! Reductions of the ranks' bytes in a ring's order, rounded at each step to the element type.

use crate::abi::{DType, Reduction};
use half::{bf16, f16};

/// Combines the ranks' bytes. `first(i)` is the rank with which element i begins; the others follow as in a ring.
pub fn reduce(dtype: DType, how: Reduction, ranks: &[Vec<u8>], first: impl Fn(usize) -> usize) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::I8 => combine::<i8, 1>(how, ranks, first),
        DType::U8 => combine::<u8, 1>(how, ranks, first),
        DType::I32 => combine::<i32, 4>(how, ranks, first),
        DType::U32 => combine::<u32, 4>(how, ranks, first),
        DType::I64 => combine::<i64, 8>(how, ranks, first),
        DType::U64 => combine::<u64, 8>(how, ranks, first),
        DType::F16 => combine::<f16, 2>(how, ranks, first),
        DType::BF16 => combine::<bf16, 2>(how, ranks, first),
        DType::F32 => combine::<f32, 4>(how, ranks, first),
        DType::F64 => combine::<f64, 8>(how, ranks, first),
        DType::F8 => return None,
    })
}

fn combine<E: Element<SIZE>, const SIZE: usize>(
    how: Reduction,
    ranks: &[Vec<u8>],
    first: impl Fn(usize) -> usize,
) -> Vec<u8> {
    let (n, len) = (ranks.len(), ranks[0].len() / SIZE);
    let value = |rank: usize, i: usize| {
        let mut bytes = [0; SIZE];
        bytes.copy_from_slice(&ranks[rank][i * SIZE..(i + 1) * SIZE]);
        E::read(bytes).before(how, n)
    };
    let element = |i: usize| {
        let order = (0..n).map(|step| value((first(i) + step) % n, i));
        let total = order.reduce(|a, b| a.with(b, how)).expect("a communicator has ranks");
        total.after(how, n).write()
    };
    (0..len).flat_map(element).collect()
}

trait Element<const SIZE: usize>: Copy {
    fn read(bytes: [u8; SIZE]) -> Self;
    fn write(self) -> [u8; SIZE];
    fn with(self, other: Self, how: Reduction) -> Self;
    /// What is done with each rank's value first: NCCL averages floats by scaling them.
    fn before(self, how: Reduction, ranks: usize) -> Self;
    /// What is done with the result: NCCL divides sums of integers.
    fn after(self, how: Reduction, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty, $size:literal;)*) => {$(
        impl Element<$size> for $type {
            fn read(bytes: [u8; $size]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            fn write(self) -> [u8; $size] {
                self.to_ne_bytes()
            }
            fn with(self, other: Self, how: Reduction) -> Self {
                match how {
                    Reduction::Sum | Reduction::Average => self.wrapping_add(other),
                    Reduction::Product => self.wrapping_mul(other),
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }
            fn before(self, _: Reduction, _: usize) -> Self {
                self
            }
            fn after(self, how: Reduction, ranks: usize) -> Self {
                if how == Reduction::Average { self / ranks as $type } else { self }
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty, $size:literal, $wide:ty, $from:expr, $into:expr;)*) => {$(
        impl Element<$size> for $type {
            fn read(bytes: [u8; $size]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            fn write(self) -> [u8; $size] {
                self.to_ne_bytes()
            }
            fn with(self, other: Self, how: Reduction) -> Self {
                let (a, b): ($wide, $wide) = ($into(self), $into(other));
                $from(match how {
                    Reduction::Sum | Reduction::Average => a + b,
                    Reduction::Product => a * b,
                    Reduction::Max => a.max(b),
                    Reduction::Min => a.min(b),
                })
            }
            fn before(self, how: Reduction, ranks: usize) -> Self {
                if how == Reduction::Average { $from($into(self) * (1.0 / ranks as $wide)) } else { self }
            }
            fn after(self, _: Reduction, _: usize) -> Self {
                self
            }
        }
    )*};
}

integers! { i8, 1; u8, 1; i32, 4; u32, 4; i64, 8; u64, 8; }
floats! {
    f32, 4, f32, std::convert::identity, std::convert::identity;
    f64, 8, f64, std::convert::identity, std::convert::identity;
    f16, 2, f32, f16::from_f32, f16::to_f32;
    bf16, 2, f32, bf16::from_f32, bf16::to_f32;
}
