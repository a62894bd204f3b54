//! The squared norm of a gradient.
//!
//! A device sums parts of [`PART`] elements, whose rounding error does not grow with the tensor, and the host adds the
//! parts in f64. On the CPU everything is f64.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::statistic;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};
use cpu::{Element, Pieces, team, vectorised};

/// Elements per part: 124 million elements make 1,900 numbers for the host.
pub(crate) const PART: usize = 64 * 1024;

/// Number of parts of this many elements.
#[cfg(feature = "cubecl")]
pub(crate) fn parts(len: usize) -> usize {
    len.div_ceil(PART)
}

/// Returns the sum of `x^2` in f64. To f32 precision, it does not depend on how the elements are divided into tensors.
///
/// # Panics
/// If `x` is not f32, bf16 or f16.
pub fn sum_of_squares(x: Tensor<1>) -> f64 {
    Call("sum_of_squares").float("x", x.dtype());
    let parts = Tensor::<1>::from_dispatch(Dispatch::fused_sum_of_squares(x.inner().into_dispatch()));
    parts.into_data().iter::<f64>().sum()
}

/// Returns `sum` plus `factor` times the sum of `x^2`. `sum` and the result are `[2]`: an f32, and the rounding error
/// that it does not hold. Start with zeros. Nothing is read back to the host.
///
/// # Panics
/// If `x` is not f32, bf16 or f16, or if `sum` is not two f32 numbers.
pub fn add_sum_of_squares(sum: Tensor<1>, x: Tensor<1>, factor: f64) -> Tensor<1> {
    let call = Call("add_sum_of_squares");
    call.float("x", x.dtype());
    call.dtype("sum", sum.dtype(), DType::F32);
    call.shape("sum", sum.dims(), [2]);
    let parts = Dispatch::fused_sum_of_squares(x.inner().into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_add_parts(sum.inner().into_dispatch(), parts, factor))
}

/// Sums of squares. The tape does not record it.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait SumOfSquaresOps: Backend {
    /// Returns parts of the sum of squares of `x_n`, which the host adds in f64.
    #[fusion(meta = |x| statistic([parts(x.shape[0])]))]
    fn fused_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Adds `factor` times these parts to a sum. The sum is a statistic of two elements; the second holds the rounding
    /// error of the first.
    #[fusion(meta = |sum, _, _| sum.clone())]
    fn fused_add_parts(sum: FloatTensor<Self>, parts: FloatTensor<Self>, factor: f64) -> FloatTensor<Self>;
}

impl SumOfSquaresOps for Flex {
    fn fused_sum_of_squares(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let x = contiguous(&x);
        let parts = with_float!(x.dtype(), T => sum_of_squares_cpu::<T>(slice(&x)));
        let len = parts.len();
        float(parts, [len])
    }

    fn fused_add_parts(sum: FloatTensor<Self>, parts: FloatTensor<Self>, factor: f64) -> FloatTensor<Self> {
        float(add_parts_cpu(slice(&contiguous(&sum)), slice(&contiguous(&parts)), factor).to_vec(), [2])
    }
}

/// Sums each part in f64.
fn sum_of_squares_cpu<T: Element>(x: &[T]) -> Vec<f64> {
    let mut sums = vec![0.0; x.len().div_ceil(PART)];
    let parts = Pieces::new(&mut sums);
    team::for_each(x.len().div_ceil(PART), |i| {
        // SAFETY: each task has its own sum.
        unsafe { parts.part(i, 1)[0] = of_part(&x[i * PART..x.len().min((i + 1) * PART)]) };
    });
    sums
}

/// Returns a sum, with its rounding error, plus `factor` times the sum of parts.
fn add_parts_cpu(sum: &[f32], parts: &[f64], factor: f64) -> [f32; 2] {
    let sum = f64::from(sum[0]) + f64::from(sum[1]) + factor * parts.iter().sum::<f64>();
    [sum as f32, (sum - f64::from(sum as f32)) as f32]
}

vectorised! {
    /// Sums in lanes, so that additions do not wait for each other.
    fn of_part<T: Element>(x: &[T]) -> f64 {
        const LANES: usize = 32;
        let square = |x: &T| f64::from(x.to_f32()) * f64::from(x.to_f32());
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut lanes = [0.0f64; LANES];
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += square(x));
        }
        lanes.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn parts_add_up_to_the_sum_in_f64() {
        for len in [1, 65_535, 65_537, 3_000_001] {
            let values: Vec<f32> = (0..len).map(|i| 0.5 + (i % 7) as f32 * 0.01).collect();
            let exact: f64 = values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let x = Tensor::<1>::from_data(TensorData::new(values, [len]), &Device::flex());
            let found = sum_of_squares(x);
            assert!((found / exact - 1.0).abs() < 1e-6, "{len}: {found}, not {exact}");
        }
    }
}
