//! Dropout by position (arXiv 1207.0580, in the inverted form): the mask is a function, computed where it is used and
//! never stored.
//!
//! ```text
//! y = 0 if upper(number) < p 2^32, else x / (1 - p)
//! number = mix(start + (i + 1) gamma),   start = mix(key ^ mix(row + gamma))
//! ```
//!
//! `i` is an element's index in its row, the first dimension. `number` is output `i` of SplitMix64 (Steele, Lea, Flood:
//! Fast Splittable Pseudorandom Number Generators, 2014), and `mix` its finalizer. The backward is the same operation
//! on `dy`.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;
use cpu::math::over_rows;
use cpu::{Element, vectorised};
use std::mem::MaybeUninit;

/// Determines which elements [`dropout`] keeps. There is no generator state, so recomputing a forward drops the same
/// elements, and so does another rank that gets the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// Masks of different keys are independent.
    pub key: u64,
    /// The index in the global batch of the tensor's first row.
    pub first_row: u64,
    /// The index in its row of the first element of each row of the tensor: not 0 if the tensor holds a part of the
    /// rows.
    pub first_index: u64,
}

impl DropoutKey {
    /// Derives the key of one `place` (a number of the caller's choice) in one `layer` at one step of the run with this
    /// `seed`. Its first row is row 0.
    pub fn derive(seed: u64, step: u64, layer: u64, place: u64) -> Self {
        let key = [seed, step, layer, place].into_iter().fold(0, |key, part| mix((key ^ part).wrapping_add(GAMMA)));
        Self { key, first_row: 0, first_index: 0 }
    }

    /// Returns the same key for a tensor whose first row is row `first_row` of the global batch.
    pub fn at_row(self, first_row: u64) -> Self {
        Self { first_row, ..self }
    }

    /// Returns the same key for a tensor that holds the elements of each row from `first_index` on.
    pub fn at_index(self, first_index: usize) -> Self {
        Self { first_index: first_index as u64, ..self }
    }

    /// The start of the numbers of row `row` of the tensor.
    pub(crate) fn row(&self, row: usize) -> u64 {
        let start = mix(self.key ^ mix((self.first_row + row as u64).wrapping_add(GAMMA)));
        start.wrapping_add(self.first_index.wrapping_mul(GAMMA))
    }
}

/// Sets each element to 0 with probability `p`, and divides the others by `1 - p`.
///
/// The decision depends only on the key, on the element's row (the first dimension) in the global batch, and on its
/// index in that row.
///
/// # Shapes
/// Any, with the sequences of the batch as the first dimension; the result has the same shape.
///
/// # Panics
/// If `x` is not f32, bf16 or f16, or if `p` is not in `0..1`.
pub fn dropout<const D: usize>(x: Tensor<D>, p: f64, key: DropoutKey) -> Tensor<D> {
    let (call, row_len) = (Call("dropout"), x.dims()[1..].iter().product::<usize>().max(1));
    call.float("x", x.dtype());
    let rule = DropoutRule::new(call, p, key, row_len);
    if p == 0.0 {
        return x;
    }
    Tensor::from_dispatch(Dispatch::fused_dropout(x.into_dispatch(), rule))
}

/// The parameters of one dropout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutRule {
    /// Masks of different keys are independent.
    pub key: DropoutKey,
    /// Elements of a row.
    pub row_len: usize,
    /// An element is dropped if the upper half of its number is below this: the fraction `p` of the range of a u32.
    pub threshold: u32,
    /// `1 / (1 - p)`
    pub scale: f32,
}

impl DropoutRule {
    /// # Panics
    /// If `p` is not in `0..1`.
    pub(crate) fn new(call: Call, p: f64, key: DropoutKey, row_len: usize) -> Self {
        call.that((0.0..1.0).contains(&p), format_args!("p is {p}, not in 0..1"));
        Self { key, row_len, threshold: (p * 2f64.powi(32)) as u32, scale: (1.0 / (1.0 - p)) as f32 }
    }

    /// The factors of the elements from `index` on in row `row`.
    #[inline(always)]
    pub(crate) fn factors(&self, row: usize, index: usize) -> impl Fn(usize) -> f32 {
        let (threshold, scale) = (self.threshold, self.scale);
        let start = self.key.row(row).wrapping_add((index as u64 + 1).wrapping_mul(GAMMA));
        move |i| {
            let number = mix(start.wrapping_add((i as u64).wrapping_mul(GAMMA)));
            if ((number >> 32) as u32) < threshold { 0.0 } else { scale }
        }
    }
}

/// The operation, which the tape records; it is also its own gradient.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait DropoutOps: Backend {
    /// Applies dropout to `x`; also computes its gradient.
    #[fusion(meta = |x, _| x.clone())]
    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self>;
}

impl DropoutOps for Flex {
    fn fused_dropout(x: FloatTensor<Self>, rule: DropoutRule) -> FloatTensor<Self> {
        let x = contiguous(&x);
        with_float!(x.dtype(), T => float(dropout_cpu::<T>(slice(&x), rule), x.shape()))
    }
}

fn dropout_cpu<T: Element>(x: &[T], rule: DropoutRule) -> Vec<T> {
    let task = |first: usize, [x]: [&[T]; 1], y: &mut [MaybeUninit<T>]| {
        let mut done = 0;
        while done < x.len() {
            let (row, index) = ((first + done) / rule.row_len, (first + done) % rule.row_len);
            let part = done..(done + rule.row_len - index).min(x.len());
            keep(rule, [row, index], &x[part.clone()], &mut y[part.clone()]);
            done = part.end;
        }
    };
    // SAFETY: together the parts cover `y`, and `keep` sets them.
    unsafe { over_rows(1, x.len(), [x], task) }
}

vectorised! {
    /// Processes the elements of a row from `index` on.
    fn keep<T: Element>(rule: DropoutRule, place: [usize; 2], x: &[T], y: &mut [MaybeUninit<T>]) {
        let [row, index] = place;
        let factor = rule.factors(row, index);
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            // Selected, not multiplied: dropped elements become 0 even if they are not finite.
            let factor = factor(i);
            y.write(T::from_f32(if factor == 0.0 { 0.0 } else { x.to_f32() * factor }));
        }
    }
}

/// SplitMix64's increment.
pub(crate) const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finalizer, a bijection.
#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
