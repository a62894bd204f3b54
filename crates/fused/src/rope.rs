use crate::kernel::{Kernel, Saves, apply1, runs_on};
use crate::math::over_rows;
use crate::precision::rounded;
use burn::tensor::{Shape, Tensor, TensorData};
use multiversion::multiversion;

/// Rotates the pairs `(x0, x1), (x2, x3), ...` of each row by its position's angles (RoFormer, arXiv 2104.09864).
///
/// The result holds first the first halves of all rotated pairs, then the second ones: where queries and keys are laid out
/// alike, their products are those of the interleaved layout.
///
/// # Shapes
/// `x` and the result: `[b, heads, t, d]`; `cos` and `sin` of the angles: `[t, d / 2]`, row by row.
pub fn rope(x: Tensor<4>, cos: &[f32], sin: &[f32]) -> Tensor<4> {
    rounded(x, |x| wide(x, cos, sin))
}

fn wide(x: Tensor<4>, cos: &[f32], sin: &[f32]) -> Tensor<4> {
    let [b, heads, t, d] = x.dims();
    assert!(cos.len() == t * d / 2 && sin.len() == cos.len(), "rope: tables of {t} positions and {d} / 2 pairs");
    if runs_on(&x) {
        return apply1(Rope { t, pairs: d / 2, cos: cos.to_vec(), sin: sin.to_vec() }, x);
    }
    let (device, dtype) = (x.device(), x.dtype());
    let table =
        |values: &[f32]| Tensor::<2>::from_data(TensorData::new(values.to_vec(), [t, d / 2]), &device).cast(dtype);
    let (cos, sin) = (table(cos).unsqueeze::<4>(), table(sin).unsqueeze::<4>());
    let pairs = x.reshape([b, heads, t, d / 2, 2]);
    let half = |i: usize| pairs.clone().slice([0..b, 0..heads, 0..t, 0..d / 2, i..i + 1]).reshape([b, heads, t, d / 2]);
    let (first, second) = (half(0), half(1));
    let rotated_first = first.clone() * cos.clone() - second.clone() * sin.clone();
    Tensor::cat(vec![rotated_first, second * cos + first * sin], 3)
}

#[derive(Debug)]
struct Rope {
    t: usize,
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Cosines and sines of row number `row`.
    #[inline(always)]
    fn angles(&self, row: usize) -> (&[f32], &[f32]) {
        let start = row % self.t * self.pairs;
        (&self.cos[start..start + self.pairs], &self.sin[start..start + self.pairs])
    }
}

impl Kernel<1> for Rope {
    const SAVES: Saves = Saves::Nothing;

    fn output_shape(&self, [x]: [&Shape; 1]) -> Shape {
        x.clone()
    }

    fn forward(&self, x: [&[f32]; 1], output: &mut [f32]) {
        over_rows(2 * self.pairs, x, output, |row, [x], y| forward(self, row, x, y));
    }

    fn backward(&self, _: [&[f32]; 1], _: &[f32], cotangent: &[f32], [gradient]: [&mut [f32]; 1]) {
        over_rows(2 * self.pairs, [cotangent], gradient, |row, [dy], dx| backward(self, row, dy, dx));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(rope: &Rope, first_row: usize, x: &[f32], y: &mut [f32]) {
    let d = 2 * rope.pairs;
    for (i, (x, y)) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)).enumerate() {
        let ((cos, sin), (first, second)) = (rope.angles(first_row + i), y.split_at_mut(rope.pairs));
        for (j, x) in x.as_chunks::<2>().0.iter().enumerate() {
            first[j] = x[0] * cos[j] - x[1] * sin[j];
            second[j] = x[1] * cos[j] + x[0] * sin[j];
        }
    }
}

/// The rotation by the negative angle.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(rope: &Rope, first_row: usize, dy: &[f32], dx: &mut [f32]) {
    let d = 2 * rope.pairs;
    for (i, (dy, dx)) in dy.chunks_exact(d).zip(dx.chunks_exact_mut(d)).enumerate() {
        let ((cos, sin), (first, second)) = (rope.angles(first_row + i), dy.split_at(rope.pairs));
        for (j, dx) in dx.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            dx[0] = first[j] * cos[j] + second[j] * sin[j];
            dx[1] = second[j] * cos[j] - first[j] * sin[j];
        }
    }
}
