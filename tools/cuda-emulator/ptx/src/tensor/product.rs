//! Sums of products of a 16 x 8 tile, in f32 and in the order of `k`.
//!
//! Vectors run across columns, so a sum's terms are added one after another whatever their length.

use super::vector::vectorised;

/// The sums of a tile, by row.
pub(super) type Sums = [[f32; 8]; 16];

vectorised! {
    /// Sums `a[row][k] * b[k][column]` over `k`, for the first `rows` rows, 8 or 16; `a` lies by rows of `b.len()`.
    ///
    /// Eight rows at a time: so many sums are independent that the processor does not wait for one.
    fn tile(a: &[f32], b: &[[f32; 8]], rows: usize, sums: &mut Sums) {
        let k = b.len();
        for (eight, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate().take(rows / 8) {
            let a: [&[f32]; 8] = std::array::from_fn(|i| &a[(8 * eight + i) * k..][..k]);
            let mut sum = [[0f32; 8]; 8];
            for (step, b) in b.iter().enumerate() {
                for (a, sum) in a.iter().zip(&mut sum) {
                    for (sum, b) in sum.iter_mut().zip(b) {
                        *sum += a[step] * b;
                    }
                }
            }
            *sums = sum;
        }
    }
}
