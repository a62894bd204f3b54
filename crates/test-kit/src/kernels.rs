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

/// Both sides round to 8, 11 or 24 bits: once, or in attention also the factors of products.
fn rounding(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        _ => 4e-6,
    }
}
