//! Kernels against plain Rust, on the device under test.

use burn::tensor::{DType, Device, Int, Tensor};
use fused::cube::launch::set_cpu_units;
use fused::cube::testing;

/// The output of an operation.
#[derive(Debug)]
pub enum Output {
    /// Indices, which kernels return exactly.
    Ints(Vec<i64>),
    /// Numbers, with the dtype that they were rounded to.
    Floats(Vec<f32>, DType),
}

impl Output {
    /// Reads indices.
    ///
    /// # Panics
    /// If they are not in i32.
    pub fn ints<const D: usize>(tensor: Tensor<D, Int>) -> Self {
        assert_eq!(tensor.dtype(), DType::I32);
        Self::Ints(tensor.into_data().iter::<i64>().collect())
    }

    /// Reads numbers.
    pub fn floats<const D: usize>(tensor: Tensor<D>) -> Self {
        let dtype = tensor.dtype();
        Self::Floats(crate::floats(tensor), dtype)
    }
}

/// What the tolerance of numbers is relative to, if that is more than 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// The expected number.
    Number,
    /// The largest expected number of the output.
    Output,
}

/// Checks that the outputs on the test device equal those on the CPU: indices exactly, numbers up to rounding. On
/// CubeCL's CPU runtime, kernels run with one and two units per cube.
///
/// # Panics
/// If they differ.
#[track_caller]
pub fn agree(case: &str, scale: Scale, run: impl Fn(&Device) -> Vec<Output>) {
    let expected = run(&Device::flex());
    for &units in testing::units() {
        let outputs = {
            let _held = set_cpu_units(units);
            run(&testing::device())
        };
        assert_eq!(outputs.len(), expected.len());
        for (i, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            let case = format!("{case}, output {i}, {units} units");
            match (output, expected) {
                (Output::Ints(output), Output::Ints(expected)) => assert_eq!(output, expected, "{case}"),
                (Output::Floats(output, found), Output::Floats(expected, dtype)) => {
                    assert_eq!((output.len(), found), (expected.len(), dtype), "{case}");
                    let largest = expected.iter().fold(1.0f32, |largest, y| largest.max(y.abs()));
                    for (at, (x, y)) in output.iter().zip(expected).enumerate() {
                        let scale = if scale == Scale::Number { y.abs().max(1.0) } else { largest };
                        assert!((x - y).abs() <= rounding(*dtype) * scale, "{case}: {x} for {y} at {at}");
                    }
                }
                _ => panic!("{case}: integers and numbers"),
            }
        }
    }
}

/// Both sides round once, to 8, 11 or 24 bits.
fn rounding(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        _ => 4e-6,
    }
}

/// Pseudo-random arguments (a linear congruential generator).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }

    /// Draws numbers in -2..2, in steps of `1 / steps`.
    pub fn floats(&mut self, len: usize, steps: usize) -> Vec<f32> {
        (0..len).map(|_| self.below(4 * steps) as f32 / steps as f32 - 2.0).collect()
    }
}
