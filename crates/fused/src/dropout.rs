use crate::kernel::{Kernel, Saves, apply1, runs_on};
use crate::math::over_rows;
use crate::precision::rounded;
use burn::tensor::{Shape, Tensor, TensorData};
use multiversion::multiversion;

/// Which elements [`dropout`] keeps: nothing is drawn in order and nothing remembered, so a forward that is run again drops the
/// same elements, and so does a rank that gets the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// Masks of different keys are independent.
    pub key: u64,
    /// The row of the global batch that the first row of the tensor is.
    pub first_row: u64,
}

impl DropoutKey {
    /// The key of one `place` (a number of the caller's choice) in one `layer`, at one step of the run of this `seed`; its
    /// first row is row 0.
    pub fn derive(seed: u64, step: u64, layer: u64, place: u64) -> Self {
        let key = [seed, step, layer, place].into_iter().fold(0, |key, part| mix((key ^ part).wrapping_add(GAMMA)));
        Self { key, first_row: 0 }
    }

    /// The same key for a tensor whose first row is row `first_row` of the global batch.
    pub fn at_row(self, first_row: u64) -> Self {
        Self { first_row, ..self }
    }

    /// Where the numbers of row `row` of the tensor start.
    fn row(&self, row: usize) -> u64 {
        mix(self.key ^ mix((self.first_row + row as u64).wrapping_add(GAMMA)))
    }
}

/// Sets each element to 0 with probability `p`, and divides the others by `1 - p` (arXiv 1207.0580, in the inverted form).
///
/// Whether an element is kept depends on the key, its row (the first dimension) in the global batch, and its index in that row
/// alone. Element `i` of a row takes output `i` of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014), which is a hash of `start + i * gamma`, and `start` is such a hash of key and row. The backward makes the mask again.
///
/// # Shapes
/// Any, sequences of the batch first, to the same.
///
/// # Panics
/// If `p` is not in `0..1`.
pub fn dropout<const D: usize>(x: Tensor<D>, p: f64, key: DropoutKey) -> Tensor<D> {
    assert!((0.0..1.0).contains(&p), "dropout: p is {p}, not in 0..1");
    if p == 0.0 {
        return x;
    }
    let shape = x.dims();
    let dropout = Dropout {
        key,
        row_len: shape[1..].iter().product::<usize>().max(1),
        threshold: (p * 2f64.powi(32)) as u32,
        scale: (1.0 / (1.0 - p)) as f32,
    };
    rounded(x, |x| match runs_on(&x) {
        true => apply1(dropout, x),
        false => {
            let mask = Tensor::<D>::from_data(dropout.mask(shape), &x.device()).cast(x.dtype());
            x * mask
        }
    })
}

#[derive(Debug)]
struct Dropout {
    key: DropoutKey,
    /// Elements of a row.
    row_len: usize,
    /// An element is dropped if the upper half of its number is below this, which is `p` of what a u32 can be.
    threshold: u32,
    /// `1 / (1 - p)`
    scale: f32,
}

impl Dropout {
    /// What elements are multiplied with.
    fn mask<const D: usize>(&self, shape: [usize; D]) -> TensorData {
        let ones = vec![1.0; shape.iter().product()];
        let mut mask = vec![0.0; ones.len()];
        self.apply(&ones, &mut mask);
        TensorData::new(mask, shape)
    }

    fn apply(&self, x: &[f32], y: &mut [f32]) {
        over_rows(1, [x], y, |first, [x], y| {
            let mut done = 0;
            while done < x.len() {
                let (row, index) = ((first + done) / self.row_len, (first + done) % self.row_len);
                let part = done..(done + self.row_len - index).min(x.len());
                keep(self, self.key.row(row), index, &x[part.clone()], &mut y[part.clone()]);
                done = part.end;
            }
        });
    }
}

impl Kernel<1> for Dropout {
    const SAVES: Saves = Saves::Nothing;

    fn output_shape(&self, [x]: [&Shape; 1]) -> Shape {
        x.clone()
    }

    fn forward(&self, [x]: [&[f32]; 1], output: &mut [f32]) {
        self.apply(x, output);
    }

    fn backward(&self, _: [&[f32]; 1], _: &[f32], cotangent: &[f32], [gradient]: [&mut [f32]; 1]) {
        self.apply(cotangent, gradient);
    }
}

/// The elements from `index` on of a row whose numbers start at `start`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn keep(dropout: &Dropout, start: u64, index: usize, x: &[f32], y: &mut [f32]) {
    let start = start.wrapping_add((index as u64 + 1).wrapping_mul(GAMMA));
    for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
        let number = mix(start.wrapping_add((i as u64).wrapping_mul(GAMMA)));
        *y = if ((number >> 32) as u32) < dropout.threshold { 0.0 } else { x * dropout.scale };
    }
}

/// SplitMix64's increment.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser, a bijection.
#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
