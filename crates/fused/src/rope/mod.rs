//! Rotary position embedding (RoFormer, arXiv 2104.09864) of interleaved pairs or of halves.
//!
//! ```text
//! interleaved   x0 x1 | x2 x3 | ..         a pair is rotated by its angle: (x0 cos - x1 sin, x1 cos + x0 sin)
//! halves        x0 x2 .. | x1 x3 ..        the first elements of all pairs, then the second ones
//! out           y0 y2 .. | y1 y3 ..        halves
//! back          the rotation by the negative angle, and the original order
//! ```
//!
//! Queries and keys have the same layout, so their products equal those of the interleaved layout. The arithmetic is in
//! f32 and rounds once. The backward keeps only the table.

mod autodiff;
#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use crate::check::Call;
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchTensor, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use cpu::math::over_rows;
use cpu::{Element, vectorised};
use std::mem::MaybeUninit;

/// Cosines and sines of the angles of some positions, on one device.
#[derive(Debug, Clone)]
pub struct RopeTable {
    cos_tp: Tensor<2>,
    sin_tp: Tensor<2>,
}

impl RopeTable {
    /// Makes the table of angles `[t, pairs]`, row by row, in radians; `amplitude` multiplies cosines and sines.
    ///
    /// # Panics
    /// If `pairs` is 0 or does not divide the number of angles.
    pub fn new(angles: impl Iterator<Item = f64>, amplitude: f64, pairs: usize, device: &Device) -> Self {
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|angle| ((angle.cos() * amplitude) as f32, (angle.sin() * amplitude) as f32)).unzip();
        let whole = pairs > 0 && cos.len().is_multiple_of(pairs);
        Call("RopeTable::new").that(whole, format_args!("{} angles are not positions of {pairs} pairs", cos.len()));
        let device = device.clone().inner();
        let table = |values: Vec<f32>| {
            let shape = [values.len() / pairs, pairs];
            Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32))
        };
        Self { cos_tp: table(cos), sin_tp: table(sin) }
    }

    /// The cosines and sines as arguments of operations.
    pub(crate) fn into_dispatch(self) -> [DispatchTensor; 2] {
        [self.cos_tp.into_dispatch(), self.sin_tp.into_dispatch()]
    }

    /// Number of positions and of pairs.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.cos_tp.dims()
    }

    /// Returns the number of positions.
    pub fn positions(&self) -> usize {
        self.cos_tp.dims()[0]
    }

    /// Returns the first `t` positions, in the same memory.
    ///
    /// # Panics
    /// If the table has fewer.
    pub fn first(&self, t: usize) -> Self {
        let has = self.positions();
        Call("RopeTable::first").that(t <= has, format_args!("{t} positions of a table of {has}"));
        let first = |table: &Tensor<2>| table.clone().slice_dim(0, 0..t);
        Self { cos_tp: first(&self.cos_tp), sin_tp: first(&self.sin_tp) }
    }

    /// Returns the rows at these positions.
    ///
    /// # Panics
    /// If the table does not have one of them.
    pub fn at(&self, positions: &[usize]) -> Self {
        if let Some(beyond) = positions.iter().find(|position| **position >= self.positions()) {
            panic!("RopeTable::at: position {beyond} of a table of {}", self.positions());
        }
        let rows: Vec<i64> = positions.iter().map(|position| *position as i64).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [positions.len()]), &self.cos_tp.device());
        let at = |table: &Tensor<2>| table.clone().select(0, rows.clone());
        Self { cos_tp: at(&self.cos_tp), sin_tp: at(&self.sin_tp) }
    }
}

/// Rotates the pairs `(x0, x1), (x2, x3), ...` of each row by its position's angles. The result has the first elements
/// of all pairs, then the second ones.
///
/// # Shapes
/// `x` and the result: `[b, heads, t, d]`; the table: `[t, d / 2]`.
///
/// # Panics
/// If `x` is not f32, bf16 or f16, or if the table has another shape.
pub fn rope(x: Tensor<4>, table: &RopeTable) -> Tensor<4> {
    let t = x.dims()[2];
    rotated(Call("rope"), x, table, t, RopeRule { repeat: 1, halves: false, back: false })
}

/// Rotates the pairs `(x0, x[d/2]), (x1, x[d/2 + 1]), ...` of each row by its position's angles (the layout of GPT-NeoX
/// and Llama in transformers). Rows are laid out by position, as a projection makes them.
///
/// # Shapes
/// `x` and the result: `[b, t, heads, d]`; the table: `[t, d / 2]`.
///
/// # Panics
/// Like [`rope`].
pub fn rope_halves(x: Tensor<4>, table: &RopeTable) -> Tensor<4> {
    let [_, t, heads, _] = x.dims();
    rotated(Call("rope_halves"), x, table, t, RopeRule { repeat: heads, halves: true, back: false })
}

/// Rotates `x`, whose rows have `t` positions.
fn rotated(call: Call, x: Tensor<4>, table: &RopeTable, t: usize, rule: RopeRule) -> Tensor<4> {
    let d = x.dims()[3];
    call.float("x", x.dtype());
    call.that(
        d > 0 && d.is_multiple_of(2),
        format_args!("x has shape {:?}, expected a last dimension of pairs", x.dims()),
    );
    call.shape("table", table.shape(), [t, d / 2]);
    let [cos, sin] = table.clone().into_dispatch();
    Tensor::from_dispatch(Dispatch::fused_rope(x.into_dispatch(), cos, sin, rule))
}

/// Which pairs are rotated, and by which position's angles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeRule {
    /// Consecutive rows that share a position.
    pub repeat: usize,
    /// Whether the input has the first elements of all pairs before the second ones, as the result always has.
    pub halves: bool,
    /// Whether to rotate the gradient of a result back.
    pub back: bool,
}

/// Rotates rows of `2 pairs`; row `i` has position `i / repeat % t`. The tape records this operation; its gradient is
/// the inverse rotation.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait RopeOps: Backend {
    /// Rotates rows of `x` by the statistics `cos_tp` and `sin_tp`, or the gradient of the result back.
    #[fusion(meta = |x, _, _, _| x.clone())]
    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self>;
}

impl RopeOps for Flex {
    fn fused_rope(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        rule: RopeRule,
    ) -> FloatTensor<Self> {
        let ([t, pairs], x) = (cos.shape().dims(), contiguous(&x));
        let (cos, sin) = (contiguous(&cos), contiguous(&sin));
        with_float!(x.dtype(), T => {
            float(rope_cpu::<T>(slice(&x), [slice(&cos), slice(&sin)], [t, pairs], rule), x.shape())
        })
    }
}

fn rope_cpu<T: Element>(
    x: &[T],
    [cos, sin]: [&[f32]; 2],
    [t, pairs]: [usize; 2],
    RopeRule { repeat, halves, back }: RopeRule,
) -> Vec<T> {
    let turn = match (halves, back) {
        (false, false) => turn,
        (false, true) => turn_back,
        (true, false) => turn_halves,
        (true, true) => turn_halves_back,
    };
    let task = |first: usize, [x]: [&[T]; 1], y: &mut [MaybeUninit<T>]| {
        for (i, (x, y)) in x.chunks_exact(2 * pairs).zip(y.chunks_exact_mut(2 * pairs)).enumerate() {
            let position = (first + i) / repeat % t;
            let angles = position * pairs..(position + 1) * pairs;
            turn(x, [&cos[angles.clone()], &sin[angles]], y);
        }
    };
    // SAFETY: each of the functions sets a whole row.
    unsafe { over_rows(2 * pairs, x.len(), [x], task) }
}

vectorised! {
    /// Rotates one row.
    pub(crate) fn turn<T: Element>(x: &[T], angles: [&[f32]; 2], y: &mut [MaybeUninit<T>]) {
        let [cos, sin] = angles;
        let (first, second) = y.split_at_mut(cos.len());
        let halves = first.iter_mut().zip(second);
        for ((x, (first, second)), (cos, sin)) in x.as_chunks::<2>().0.iter().zip(halves).zip(cos.iter().zip(sin)) {
            let [a, b] = x.map(T::to_f32);
            first.write(T::from_f32(a * cos - b * sin));
            second.write(T::from_f32(b * cos + a * sin));
        }
    }
}

vectorised! {
    /// Rotates one row back: the gradient.
    pub(crate) fn turn_back<T: Element>(dy: &[T], angles: [&[f32]; 2], dx: &mut [MaybeUninit<T>]) {
        let [cos, sin] = angles;
        let (first, second) = dy.split_at(cos.len());
        let halves = first.iter().zip(second);
        for ((dx, (first, second)), (cos, sin)) in dx.as_chunks_mut::<2>().0.iter_mut().zip(halves).zip(cos.iter().zip(sin))
        {
            let (first, second) = (first.to_f32(), second.to_f32());
            dx[0].write(T::from_f32(first * cos + second * sin));
            dx[1].write(T::from_f32(second * cos - first * sin));
        }
    }
}

vectorised! {
    /// [`turn`] of a row whose pairs are in two halves.
    fn turn_halves<T: Element>(x: &[T], angles: [&[f32]; 2], y: &mut [MaybeUninit<T>]) {
        rotate_halves(x, angles, y, 1.0);
    }
}

vectorised! {
    /// [`turn_back`] to a row whose pairs are in two halves.
    fn turn_halves_back<T: Element>(dy: &[T], angles: [&[f32]; 2], dx: &mut [MaybeUninit<T>]) {
        rotate_halves(dy, angles, dx, -1.0);
    }
}

/// Rotates the pairs of two halves by their angles times `sign`.
#[inline(always)]
fn rotate_halves<T: Element>(x: &[T], [cos, sin]: [&[f32]; 2], y: &mut [MaybeUninit<T>], sign: f32) {
    let ((a, b), (first, second)) = (x.split_at(cos.len()), y.split_at_mut(cos.len()));
    for (((a, b), (first, second)), (cos, sin)) in
        a.iter().zip(b).zip(first.iter_mut().zip(second)).zip(cos.iter().zip(sin))
    {
        let (a, b, sin) = (a.to_f32(), b.to_f32(), sign * sin);
        first.write(T::from_f32(a * cos - b * sin));
        second.write(T::from_f32(b * cos + a * sin));
    }
}
