//! The kernels of [`cross_entropy`](super): Burn multiplies (with cubek, on tensor cores), and one cube per row of
//! logits computes the loss and the gradient.
//!
//! ```text
//! a unit takes some columns    largest, sum = sum of e^(x - largest), in one pass   l = largest + ln(sum) - x[target]
//! gradients replace logits     e^(x - largest) / sum, less 1 for the target
//! ```
//!
//! A chunk is as many rows as have [`CHUNK_BYTES`] of logits, in multiples of [`ROWS`], so that products fill a GPU:
//! 2,560 rows of 50,304 columns in bf16. Each chunk adds a product in f32 to the head's gradient.

use super::{CrossEntropyBackwardOps, CrossEntropyOps};
use super::{CrossEntropyRule, ROWS};
use crate::cube::launch::{Elements, address_type, empty, empty_like, on_cpu, over_rows, units, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::{Reduction, cube_reduce, cube_sum, product, product_into, rounded};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Rows of logits start at multiples of this many elements, for loads of 16 bytes and tensor cores: GPT-2's 50,257
/// become 50,304.
const COLUMNS: usize = 128;
/// Maximum number of bytes of logits per chunk on a GPU.
const CHUNK_BYTES: usize = 256 << 20;

impl CrossEntropyOps for CubeBackend {
    /// Computes the mean cross entropy and z-loss.
    fn fused_cross_entropy(
        x: CubeTensor,
        head: CubeTensor,
        targets: CubeTensor,
        rule: CrossEntropyRule,
    ) -> (CubeTensor, CubeTensor) {
        let of = Of::new(x, head, targets, rule);
        for [first, len] in of.chunks() {
            of.over_logits(&of.logits(first, len), first, false);
        }
        of.means()
    }
}

impl CrossEntropyBackwardOps for CubeBackend {
    /// Computes the same, and the gradients of `x` and, in f32, of the head for a cotangent of n.
    fn fused_cross_entropy_with_gradients(
        x: CubeTensor,
        head: CubeTensor,
        targets: CubeTensor,
        rule: CrossEntropyRule,
    ) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
        let of = Of::new(x, head, targets, rule);
        let (head_vd, d_x) = (transposed(&of.head_dv), empty_like(&of.x));
        let mut d_head: Option<CubeTensor> = None;
        for [first, len] in of.chunks() {
            let (rows, logits) = (rows_of(&of.x, first, len), of.logits(first, len));
            of.over_logits(&logits, first, true);
            product_into(logits.clone(), head_vd.clone(), rows_of(&d_x, first, len));
            let (a, b) = match rule.transposed {
                false => (transposed(&rows), logits),
                true => (transposed(&logits), rows),
            };
            d_head = Some(match d_head {
                None => product(a, b, DType::F32),
                Some(sum) => CubeBackend::float_add(sum, product(a, b, DType::F32)),
            });
        }
        let d_head = of.without_padding(d_head.expect("at least one row"));
        let (cross_entropy, z_loss) = of.means();
        (cross_entropy, z_loss, d_x, d_head)
    }
}

/// The inputs, and the losses of rows.
struct Of {
    x: CubeTensor,
    /// The head, with columns of zeros up to a multiple of [`COLUMNS`].
    head_dv: CubeTensor,
    targets: CubeTensor,
    vocab: usize,
    rule: CrossEntropyRule,
    /// Loss and log-sum-exp, `[n, 2]`.
    losses_n2: CubeTensor,
}

impl Of {
    fn new(x: CubeTensor, head: CubeTensor, targets: CubeTensor, rule: CrossEntropyRule) -> Self {
        let (x, targets, along) = (into_contiguous(x), into_contiguous(targets), usize::from(!rule.transposed));
        let vocab = head.shape()[along];
        let head = match vocab.next_multiple_of(COLUMNS) - vocab {
            0 => head,
            missing => {
                let mut shape = head.shape();
                shape[along] = missing;
                let zeros = CubeBackend::float_zeros(shape, &head.device, head.dtype.into());
                CubeBackend::float_cat(vec![head, zeros], along)
            }
        };
        let head_dv = if rule.transposed { transposed(&head) } else { head };
        let losses_n2 = empty(&x, [x.shape()[0], 2], DType::F32);
        Self { x, head_dv, targets, vocab, rule, losses_n2 }
    }

    /// The first row and the number of rows of each chunk.
    fn chunks(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let ([n, _], [_, columns]) = (self.x.shape().dims(), self.head_dv.shape().dims());
        // CubeCL's CPU runtime exists for tests, which need several chunks.
        let bytes = if on_cpu(&self.x.client) { 0 } else { CHUNK_BYTES };
        let rows = (bytes / (columns * self.x.dtype.size()) / ROWS).max(1) * ROWS;
        (0..n).step_by(rows).map(move |first| [first, rows.min(n - first)])
    }

    fn logits(&self, first: usize, len: usize) -> CubeTensor {
        product(rows_of(&self.x, first, len), self.head_dv.clone(), self.x.dtype)
    }

    /// Removes the padding columns from the head's gradient.
    fn without_padding(&self, d_head: CubeTensor) -> CubeTensor {
        let [d, columns] = self.head_dv.shape().dims();
        match (columns == self.vocab, self.rule.transposed) {
            (true, _) => d_head,
            (false, true) => rows_of(&d_head, 0, self.vocab),
            (false, false) => CubeBackend::float_slice(d_head, &[(0..d).into(), (0..self.vocab).into()]),
        }
    }

    /// Writes loss and log-sum-exp of the rows from row `first` on and, if wanted, replaces the logits by their
    /// gradients.
    fn over_logits(&self, logits: &CubeTensor, first: usize, gradients: bool) {
        let [rows, columns] = logits.shape().dims();
        let vector = vector_size(&logits.client, columns, logits.dtype);
        let units = units(&logits.client, columns / vector);
        let (count, _) = over_rows(&logits.client, rows, columns / vector);
        cross_entropy_loss_kernel::launch(
            &logits.client,
            count,
            CubeDim::new_1d(units as u32),
            address_type([logits]),
            vector,
            logits.clone().elements(),
            self.targets.clone().elements(),
            self.losses_n2.clone().elements(),
            first,
            rows,
            columns / vector,
            self.vocab,
            2.0 * self.rule.z_loss_coef,
            gradients,
            self.rule.ignores,
            units,
            dtype_to_elem_type(logits.dtype),
            dtype_to_elem_type(self.targets.dtype),
        );
    }

    fn means(self) -> (CubeTensor, CubeTensor) {
        let ([n, _], client) = (self.losses_n2.shape().dims(), self.losses_n2.client.clone());
        let [cross_entropy, z_loss] = [0, 1].map(|_| empty(&self.losses_n2, [1], DType::F32));
        let units = units(&client, n);
        cross_entropy_mean_kernel::launch(
            &client,
            CubeCount::new_single(),
            CubeDim::new_1d(units as u32),
            self.losses_n2.elements(),
            cross_entropy.clone().elements(),
            z_loss.clone().elements(),
            n,
            self.rule.z_loss_coef,
            units,
        );
        (cross_entropy, z_loss)
    }
}

/// Rows of a contiguous tensor, in its memory. 256 rows are a multiple of the 512 bytes to which tensors are aligned.
fn rows_of(tensor: &CubeTensor, first: usize, len: usize) -> CubeTensor {
    let [_, width] = tensor.shape().dims();
    let mut rows = tensor.clone();
    rows.handle = rows.handle.offset_start((first * width * tensor.dtype.size()) as u64);
    *rows.meta.shape_mut() = [len, width].into();
    rows
}

fn transposed(matrix: &CubeTensor) -> CubeTensor {
    CubeBackend::float_transpose(matrix.clone())
}

/// `width` is the width of a row in vectors; columns from `vocab` on are ignored and get gradients of 0. `z` is twice
/// the z-loss's coefficient. A target beyond the vocabulary makes the loss NaN; a negative one, if `ignores`, makes
/// loss, log-sum-exp and gradients 0.
#[cube(launch, address_type = "dynamic")]
fn cross_entropy_loss_kernel<F: Float, I: Int, V: Size>(
    logits: &mut [Vector<F, V>],
    targets: &[I],
    losses_n2: &mut [f32],
    first: usize,
    rows: usize,
    width: usize,
    vocab: usize,
    z: f32,
    #[comptime] gradients: bool,
    #[comptime] ignores: bool,
    #[comptime] units: usize,
    #[define(F)] _dtype: ElemType,
    #[define(I)] _int: ElemType,
) {
    let unit = UNIT_POS as usize;
    let mut shared = Shared::<[f32]>::new_slice(units);
    let mut row = CUBE_POS;
    while row < rows {
        let start = row * width;
        // Each element of the vectors has a separate largest value and sum, and so has each unit.
        let mut largest = Vector::<f32, V>::new(f32::MIN);
        let mut sum = Vector::<f32, V>::new(0.0f32);
        let mut i = unit;
        while i < width {
            let x = in_vocabulary::<V>(Vector::cast_from(logits[start + i]), i, vocab);
            let next = max(largest, x);
            sum = sum * (largest - next).exp() + (x - next).exp();
            largest = next;
            i += units;
        }
        let mut of_unit = largest.extract(0usize);
        #[unroll]
        for lane in 1..V::value() {
            of_unit = max(of_unit, largest.extract(lane));
        }
        let of_row = cube_reduce(of_unit, &mut shared, units, Reduction::Max);
        let part = (sum * (largest - Vector::new(of_row)).exp()).vector_sum();
        let total = cube_sum(part, &mut shared, units);

        let mut ignored = false;
        if comptime!(ignores) {
            ignored = i32::cast_from(targets[first + row]) < 0i32;
        }
        let log_sum_exp = select(ignored, 0.0f32, of_row + total.ln());
        let at = 2 * (first + row);
        if unit == 0usize {
            losses_n2[at + 1] = log_sum_exp;
        }
        let token = u32::cast_from(targets[first + row]) as usize;
        let (target, lane) = (token / V::value(), token % V::value());
        if token >= vocab {
            if unit == 0usize {
                losses_n2[at] = select(ignored, 0.0f32, f32::NAN);
            }
        } else if unit == target % units {
            // No other unit writes gradients there.
            let x = Vector::<f32, V>::cast_from(logits[start + target]);
            let mut of_target = x.extract(0usize);
            #[unroll]
            for j in 1..V::value() {
                of_target = select(lane == j, x.extract(j), of_target);
            }
            losses_n2[at] = log_sum_exp - of_target;
        }
        if comptime!(gradients) {
            let factor = Vector::<f32, V>::new(select(ignored, 0.0f32, (1.0f32 + z * log_sum_exp) / total));
            let mut i = unit;
            while i < width {
                let x = in_vocabulary::<V>(Vector::cast_from(logits[start + i]), i, vocab);
                let mut gradient = (x - Vector::new(of_row)).exp() * factor;
                if i == target {
                    #[unroll]
                    for j in 0..V::value() {
                        let of_target = select(lane == j, 1.0f32, 0.0f32);
                        gradient.insert(j, gradient.extract(j) - of_target);
                    }
                }
                logits[start + i] = rounded(gradient);
                i += units;
            }
        }
        row += CUBE_COUNT;
    }
}

/// Columns beyond the vocabulary become the smallest number, which softmax turns into 0.
#[cube]
fn in_vocabulary<V: Size>(x: Vector<f32, V>, i: usize, vocab: usize) -> Vector<f32, V> {
    let mut seen = Vector::<f32, V>::new(f32::MIN);
    let column = i * V::value();
    if column + V::value() <= vocab {
        seen = x;
    } else {
        #[unroll]
        for lane in 0..V::value() {
            seen.insert(lane, select(column + lane < vocab, x.extract(lane), f32::MIN));
        }
    }
    seen
}

#[cube(launch)]
fn cross_entropy_mean_kernel(
    losses_n2: &[f32],
    cross_entropy: &mut [f32],
    z_loss: &mut [f32],
    n: usize,
    z_loss_coef: f32,
    #[comptime] units: usize,
) {
    let mut loss = 0.0f32;
    let mut square = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < n {
        let log_sum_exp = losses_n2[2 * i + 1];
        loss += losses_n2[2 * i];
        square += log_sum_exp * log_sum_exp;
        i += units;
    }
    let mut shared = Shared::<[f32]>::new_slice(units);
    let loss = cube_sum(loss, &mut shared, units);
    let square = cube_sum(square, &mut shared, units);
    if UNIT_POS == 0 {
        cross_entropy[0] = loss / n as f32;
        z_loss[0] = z_loss_coef * square / n as f32;
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use cross_entropy_loss_kernel::CrossEntropyLossKernel;
    use cross_entropy_mean_kernel::CrossEntropyMeanKernel;

    let mut cases = vec![KernelCase::new("cross_entropy mean", |gpu| {
        let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
        CrossEntropyMeanKernel::new(s, d, t, b(), b(), b(), (), (), 256)
    })];
    for (name, dtype, vector) in float_cases() {
        for [gradients, ignores] in [[false, false], [true, false], [true, true]] {
            let name = format!("cross_entropy {name} gradients={gradients} ignores={ignores}");
            cases.push(KernelCase::new(name, move |gpu| {
                let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
                let int = i32::elem_type_native();
                CrossEntropyLossKernel::new(
                    s,
                    d,
                    t,
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    (),
                    (),
                    (),
                    vector,
                    gradients,
                    ignores,
                    256,
                    dtype,
                    int,
                )
            }));
        }
    }
    cases
}
