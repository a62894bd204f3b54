//! Gradient clipping by norm, without a number that the host has to wait for.
//!
//! ```text
//! norm = sqrt(sum of g^2) / count        factor = min(1, limit / (norm + 1e-6)), or -1 if a total is not finite
//! ```

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
#[cfg(feature = "cubecl")]
use crate::cube::specs::statistic;
use crate::slices::{contiguous, float, slice};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};

/// How a gradient is clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipRule {
    /// The number of terms whose sum the gradient is.
    pub count: f64,
    /// The highest norm of their mean, if it is limited.
    pub limit: Option<f64>,
}

/// Returns the factor, `[1]`, that clips the norm of the mean gradient to the limit. Multiply gradients by it before
/// the optimizer's step.
///
/// The factor is negative if any of `totals` is not finite. `totals` are f32 and end with an
/// [`add_sum_of_squares`](crate::add_sum_of_squares); anything else that has to be finite precedes it.
///
/// # Panics
/// If `totals` is not f32 or has fewer than two elements.
pub fn clip_factor(totals: Tensor<1>, rule: ClipRule) -> Tensor<1> {
    let (call, [len]) = (Call("clip_factor"), totals.dims());
    call.dtype("totals", totals.dtype(), DType::F32);
    call.that(len >= 2, format_args!("totals has {len} elements, and ends with a sum of two"));
    Tensor::from_dispatch(Dispatch::fused_clip_factor(totals.inner().into_dispatch(), rule))
}

/// The factor. The tape does not record it.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait ClipOps: Backend {
    /// Maps statistics to the factor of gradients, one element.
    #[fusion(meta = |_, _| statistic([1]))]
    fn fused_clip_factor(totals: FloatTensor<Self>, rule: ClipRule) -> FloatTensor<Self>;
}

impl ClipOps for Flex {
    fn fused_clip_factor(totals: FloatTensor<Self>, rule: ClipRule) -> FloatTensor<Self> {
        float(vec![clip_factor_cpu(slice(&contiguous(&totals)), rule)], [1])
    }
}

fn clip_factor_cpu(totals: &[f32], rule: ClipRule) -> f32 {
    if !totals.iter().all(|total| total.is_finite()) {
        return -1.0;
    }
    let square: f64 = totals[totals.len() - 2..].iter().map(|part| f64::from(*part)).sum();
    let norm = square.sqrt() / rule.count;
    rule.limit.filter(|limit| norm > *limit).map_or(1.0, |limit| (limit / (norm + 1e-6)) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn a_norm_above_the_limit_is_clipped_and_totals_that_are_not_finite_are_named() {
        let factor = |totals: [f32; 3], limit| {
            clip_factor(Tensor::from_floats(totals, &Device::flex()), ClipRule { count: 2.0, limit })
                .into_scalar::<f32>()
        };
        assert_eq!(factor([7.0, 64.0, 0.0], Some(5.0)), 1.0);
        assert_eq!(factor([7.0, 64.0, 36.0], Some(2.5)), (2.5 / (5.0 + 1e-6)) as f32);
        assert_eq!(factor([7.0, 64.0, 36.0], None), 1.0);
        for totals in [[f32::NAN, 1.0, 0.0], [0.0, f32::INFINITY, 0.0], [0.0, 1.0, f32::NAN]] {
            assert_eq!(factor(totals, Some(1.0)), -1.0);
        }
    }
}
