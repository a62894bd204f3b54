//! Pseudorandom numbers in steps that bf16 holds exactly, and tensors of them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::bf16;
use rayon::prelude::*;

/// A sequence of numbers with random access.
#[derive(Debug, Clone, Copy)]
pub struct Numbers(pub u32);

impl Numbers {
    /// Number `i`, in `-1..1` in steps of 1/64.
    pub fn at(self, i: usize) -> f32 {
        (self.bits(i) >> 25) as f32 / 64.0 - 1.0
    }

    /// The first `len` numbers, with all the digits of the dtype. In f32, products of them are rounded; in TF32, so are
    /// the numbers themselves.
    pub fn in_dtype(self, len: usize, dtype: DType) -> Vec<f32> {
        let fine = |i| (self.bits(i) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        if dtype == DType::F32 { (0..len).map(fine).collect() } else { self.vec(len) }
    }

    /// Number `i` as an integer below `bound`.
    pub fn below(self, i: usize, bound: usize) -> usize {
        ((u64::from(self.bits(i)) * bound as u64) >> 32) as usize
    }

    fn bits(self, i: usize) -> u32 {
        mix((i as u32).wrapping_mul(0x9e37_79b9) ^ mix(self.0 ^ (i >> 32) as u32))
    }

    /// The first `len` numbers.
    pub fn vec(self, len: usize) -> Vec<f32> {
        (0..len).map(|i| self.at(i)).collect()
    }

    /// A tensor of the first numbers of the sequence times `scale`, a power of two.
    pub fn tensor<const D: usize>(self, shape: [usize; D], scale: f32, dtype: DType, device: &Device) -> Tensor<D> {
        let values = (0..shape.iter().product()).into_par_iter().map(|i| self.at(i) * scale);
        let data = match dtype {
            DType::BF16 => TensorData::new(values.map(bf16::from_f32).collect::<Vec<_>>(), shape),
            _ => TensorData::new(values.collect::<Vec<_>>(), shape),
        };
        Tensor::from_data(data, (device, dtype))
    }
}

/// A bijection of u32: the "lowbias32" constants of Chris Wellons' hash prospector.
fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// A tensor of these values, which the dtype holds exactly.
pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    let data = match dtype {
        DType::BF16 => TensorData::new(values.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>(), shape),
        _ => TensorData::new(values.to_vec(), shape),
    };
    Tensor::from_data(data, (device, dtype))
}

/// A tensor of i32.
pub fn ints<const D: usize>(values: &[i32], shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (device, DType::I32))
}
