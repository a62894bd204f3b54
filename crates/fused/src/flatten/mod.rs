//! Copies tensors, such as the gradients of a unit's parameters, to their offsets in one buffer.
//!
//! ```text
//! | part 0 | zeros | part 1 | part 2 | zeros |
//! ```
//!
//! On a device, Burn's `cat` launches one kernel per part, and another one if a part has another dtype.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use burn::tensor::{DType, Device, Tensor};

/// Makes one buffer of `len` elements of `dtype` from parts at these offsets, in order, with zeros between and after
/// them. The result is not tracked.
///
/// # Panics
/// If a part is not f32, bf16 or f16, if a part begins before the end of the previous one, or if the last one ends
/// after `len`.
pub fn flatten(parts: Vec<(usize, Tensor<1>)>, len: usize, dtype: DType, device: &Device) -> Tensor<1> {
    let parts = checked(Call("flatten"), parts, len, dtype);
    #[cfg(feature = "cubecl")]
    let parts = match cube::flatten(parts, None, len, dtype) {
        Ok(flat) => return flat,
        Err(parts) => parts,
    };
    concatenated(parts, len, dtype, device)
}

/// Returns `flat` with these parts at their places, on a device in the memory of `flat`. A part that was written there
/// (see [`weight_gradients`](crate::weight_gradients)) is not moved; elements that belong to no part are unchanged.
/// None of the tensors is tracked.
///
/// # Panics
/// Like [`flatten`].
pub fn flatten_into(flat: Tensor<1>, parts: Vec<(usize, Tensor<1>)>) -> Tensor<1> {
    let ([len], dtype) = (flat.dims(), flat.dtype());
    let parts = checked(Call("flatten_into"), parts, len, dtype);
    #[cfg(feature = "cubecl")]
    if !parts.is_empty() && flat.device() != Device::flex() {
        return cube::flatten(parts, Some(flat), len, dtype).expect("the parts are where the buffer is");
    }
    let put = |flat: Tensor<1>, (start, part): (usize, Tensor<1>)| {
        let end = start + part.dims()[0];
        flat.slice_assign(start..end, part.cast(dtype))
    };
    parts.into_iter().fold(flat, put)
}

/// The parts without their graphs, if they fit.
fn checked(call: Call, parts: Vec<(usize, Tensor<1>)>, len: usize, dtype: DType) -> Vec<(usize, Tensor<1>)> {
    call.float("dtype", dtype);
    let mut end = 0;
    for (start, part) in &parts {
        call.float("a part", part.dtype());
        call.that(*start >= end, format_args!("a part begins at {start}, and the one before it ends at {end}"));
        end = start + part.dims()[0];
    }
    call.that(end <= len, format_args!("the parts end at {end}, and the buffer has {len} elements"));
    parts.into_iter().map(|(start, part)| (start, part.inner())).collect()
}

fn concatenated(parts: Vec<(usize, Tensor<1>)>, len: usize, dtype: DType, device: &Device) -> Tensor<1> {
    let zeros = |len: usize| Tensor::zeros([len], (device, dtype));
    let (mut pieces, mut end) = (vec![], 0);
    for (start, part) in parts {
        if start > end {
            pieces.push(zeros(start - end));
        }
        end = start + part.dims()[0];
        pieces.push(part.cast(dtype));
    }
    if len > end || pieces.is_empty() {
        pieces.push(zeros(len - end));
    }
    Tensor::cat(pieces, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_at_their_places_and_zeros_between_them() {
        let device = Device::flex();
        let part = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
        let parts = vec![(1, part(&[1.0, 2.0])), (3, part(&[3.0]).cast(DType::F16)), (5, part(&[4.0]))];
        let flat = flatten(parts, 7, DType::F32, &device);
        assert_eq!(flat.into_data().iter::<f32>().collect::<Vec<_>>(), [0.0, 1.0, 2.0, 3.0, 0.0, 4.0, 0.0]);
        let flat = flatten_into(Tensor::ones([4], &device), vec![(1, part(&[2.0, 3.0]))]);
        assert_eq!(flat.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0, 3.0, 1.0]);
        assert_eq!(flatten(vec![], 2, DType::BF16, &device).dims(), [2]);
    }
}
