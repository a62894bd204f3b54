use crate::kernel::{Kernel, Saves, apply1, contiguous, runs_on, slice};
use crate::math::over_rows;
use crate::precision::rounded;
use burn::backend::{Flex, tensor::FloatTensor};
use burn::tensor::{DType, Device, Int, Shape, Tensor, TensorData};
use multiversion::multiversion;

/// Cosines and sines of the angles of some positions, on one device.
#[derive(Debug, Clone)]
pub struct RopeTable {
    cos_tp: Tensor<2>,
    sin_tp: Tensor<2>,
}

impl RopeTable {
    /// Of angles `[t, pairs]`, row by row, in radians; both are multiplied by `amplitude`.
    pub fn new(angles: impl Iterator<Item = f64>, amplitude: f64, pairs: usize, device: &Device) -> Self {
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles.map(|angle| ((angle.cos() * amplitude) as f32, (angle.sin() * amplitude) as f32)).unzip();
        let device = device.clone().inner();
        let table = |values: Vec<f32>| {
            let shape = [values.len() / pairs, pairs];
            Tensor::from_data(TensorData::new(values, shape), (&device, DType::F32))
        };
        Self { cos_tp: table(cos), sin_tp: table(sin) }
    }

    /// How many positions it has.
    pub fn positions(&self) -> usize {
        self.cos_tp.dims()[0]
    }

    /// Its first `t` positions, in the same memory.
    pub fn first(&self, t: usize) -> Self {
        let first = |table: &Tensor<2>| table.clone().narrow(0, 0, t);
        Self { cos_tp: first(&self.cos_tp), sin_tp: first(&self.sin_tp) }
    }

    /// Its rows at these positions.
    pub fn at(&self, positions: &[usize]) -> Self {
        let rows: Vec<i64> = positions.iter().map(|position| *position as i64).collect();
        let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [positions.len()]), &self.cos_tp.device());
        let at = |table: &Tensor<2>| table.clone().select(0, rows.clone());
        Self { cos_tp: at(&self.cos_tp), sin_tp: at(&self.sin_tp) }
    }
}

/// Rotates the pairs `(x0, x1), (x2, x3), ...` of each row by its position's angles (RoFormer, arXiv 2104.09864).
///
/// The result holds first the first halves of all rotated pairs, then the second ones: where queries and keys are laid out
/// alike, their products are those of the interleaved layout.
///
/// # Shapes
/// `x` and the result: `[b, heads, t, d]`; the table: `[t, d / 2]`.
pub fn rope(x: Tensor<4>, table: &RopeTable) -> Tensor<4> {
    rounded(x, |x| wide(x, table))
}

fn wide(x: Tensor<4>, table: &RopeTable) -> Tensor<4> {
    let [b, heads, t, d] = x.dims();
    assert!(
        table.cos_tp.dims() == [t, d / 2],
        "rope: a table of {:?} for {t} positions and {d} / 2 pairs",
        table.cos_tp.dims()
    );
    if runs_on(&x) {
        let on_cpu = |table: &Tensor<2>| table.clone().try_into_primitive::<Flex>().expect("it is on the device of x");
        let [cos, sin] = [&table.cos_tp, &table.sin_tp].map(|table| contiguous(&on_cpu(table)));
        return apply1(Rope { t, pairs: d / 2, cos, sin }, x);
    }
    let on_device = |table: &Tensor<2>| table.clone().cast(x.dtype()).unsqueeze::<4>();
    let (cos, sin) = (on_device(&table.cos_tp), on_device(&table.sin_tp));
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
    cos: FloatTensor<Flex>,
    sin: FloatTensor<Flex>,
}

impl Rope {
    /// Cosines and sines by the number of a row.
    #[inline(always)]
    fn angles<'a>(&'a self) -> impl Fn(usize) -> (&'a [f32], &'a [f32]) {
        let (cos, sin) = (slice(&self.cos), slice(&self.sin));
        move |row| {
            let start = row % self.t * self.pairs;
            (&cos[start..start + self.pairs], &sin[start..start + self.pairs])
        }
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
    let (d, angles) = (2 * rope.pairs, rope.angles());
    for (i, (x, y)) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)).enumerate() {
        let ((cos, sin), (first, second)) = (angles(first_row + i), y.split_at_mut(rope.pairs));
        for (j, x) in x.as_chunks::<2>().0.iter().enumerate() {
            first[j] = x[0] * cos[j] - x[1] * sin[j];
            second[j] = x[1] * cos[j] + x[0] * sin[j];
        }
    }
}

/// The rotation by the negative angle.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(rope: &Rope, first_row: usize, dy: &[f32], dx: &mut [f32]) {
    let (d, angles) = (2 * rope.pairs, rope.angles());
    for (i, (dy, dx)) in dy.chunks_exact(d).zip(dx.chunks_exact_mut(d)).enumerate() {
        let ((cos, sin), (first, second)) = (angles(first_row + i), dy.split_at(rope.pairs));
        for (j, dx) in dx.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            dx[0] = first[j] * cos[j] + second[j] * sin[j];
            dx[1] = second[j] * cos[j] - first[j] * sin[j];
        }
    }
}
