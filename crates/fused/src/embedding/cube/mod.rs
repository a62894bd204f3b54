//! The kernels of [`embedding`](super): a gather, and backward a counting sort of the tokens and a sum a row.
//!
//! Tokens are cut into chunks of 512 or more. Places `i` are sorted by token, stably, with nothing but integers in
//! atomics, so that they are the same at every run:
//!
//! ```text
//! count        a unit a place           counts[chunk, v]: v's tokens in the chunk
//! scan         a unit a row v           counts[chunk, v] becomes how many came before the chunk; starts[v]: rows' tokens before v in its block;
//!                                       blocks[block]: tokens of the rows of a cube
//! scan_blocks  one cube                 blocks[block] becomes how many tokens the blocks before it have
//! place        a cube a chunk           places[blocks[v's] + starts[v] + counts[chunk, v] + those of v before i in the chunk] = i
//! sum          a cube a row v           dW[v] = sum of dy[places[..]], in f32, in their order
//! ```
//!
//! `counts` takes 4 bytes a chunk and row: 12,288 tokens and 50,304 rows are 24 chunks and 4.8 MB. Instead of more than
//! 128 chunks there are longer ones.

mod sort;

use self::sort::sort;
use crate::cube::launch::{Elements, address_type, empty, over_rows, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use crate::cube::rounded;
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// The rows of the tokens. That of a token beyond the table is not a number, so the loss shows it.
pub(crate) fn embedding(weight: CubeTensor, tokens: CubeTensor) -> CubeTensor {
    let ([rows, d], [n], dtype) = (weight.shape().dims(), tokens.shape().dims(), weight.dtype);
    let (weight, tokens) = (into_contiguous(weight), into_contiguous(tokens));
    let y = empty(&weight, [n, d], dtype);
    if n * d > 0 {
        let vector = vector_size(&weight.client, d, dtype);
        let (count, dim) = over_rows(&weight.client, n, d / vector);
        let int = dtype_to_elem_type(tokens.dtype);
        embedding_kernel::launch(
            &weight.client.clone(),
            count,
            dim,
            address_type([&weight, &y]),
            vector,
            weight.elements(),
            tokens.elements(),
            y.clone().elements(),
            n,
            rows,
            d / vector,
            dtype_to_elem_type(dtype),
            int,
        );
    }
    y
}

/// `width` is that of a row in vectors.
#[cube(launch, address_type = "dynamic")]
fn embedding_kernel<F: Float, I: Int, V: Size>(
    weight: &[Vector<F, V>],
    tokens: &[I],
    y: &mut [Vector<F, V>],
    n: usize,
    rows: usize,
    width: usize,
    #[define(F)] _dtype: ElemType,
    #[define(I)] _int: ElemType,
) {
    let mut place = CUBE_POS;
    while place < n {
        let token = u32::cast_from(tokens[place]) as usize;
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut value = Vector::<F, V>::new(F::new(f32::NAN));
            if token < rows {
                value = weight[token * width + i];
            }
            y[place * width + i] = value;
            i += CUBE_DIM as usize;
        }
        place += CUBE_COUNT;
    }
}

/// The gradient of a table of `rows` rows. A token beyond it has none.
pub(crate) fn embedding_backward(tokens: CubeTensor, d_y: CubeTensor, rows: usize) -> CubeTensor {
    let ([n, d], dtype) = (d_y.shape().dims(), d_y.dtype);
    let (tokens, d_y) = (into_contiguous(tokens), into_contiguous(d_y));
    let (client, device) = (d_y.client.clone(), d_y.device.clone());
    if n * rows * d == 0 {
        return zeros_client(client, device, [rows, d].into(), dtype);
    }
    let (sorted, d_weight) = (sort(tokens, rows), empty(&d_y, [rows, d], dtype));
    let vector = vector_size(&client, d, dtype);
    let (count, dim) = over_rows(&client, rows, d / vector);
    // SAFETY: places are below `n`, and there is one more start than rows.
    unsafe {
        sum_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type([&d_y, &d_weight]),
            vector,
            d_y.elements(),
            sorted.places.elements(),
            sorted.starts.elements(),
            sorted.blocks.elements(),
            d_weight.clone().elements(),
            rows,
            d / vector,
            sorted.block,
            dtype_to_elem_type(dtype),
        );
    }
    d_weight
}

/// `width` is that of a row in vectors, `block` how many rows have a number in `blocks`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_kernel<F: Float, V: Size>(
    d_y: &[Vector<F, V>],
    places: &[i32],
    starts: &[i32],
    blocks: &[i32],
    d_weight: &mut [Vector<F, V>],
    rows: usize,
    width: usize,
    #[comptime] block: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut row = CUBE_POS;
    while row < rows {
        let first = (blocks[row / block] + starts[row]) as usize;
        let end = (blocks[(row + 1usize) / block] + starts[row + 1usize]) as usize;
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut sum = Vector::<f32, V>::new(0.0f32);
            let mut at = first;
            while at < end {
                sum += Vector::cast_from(d_y[places[at] as usize * width + i]);
                at += 1usize;
            }
            d_weight[row * width + i] = rounded(sum);
            i += CUBE_DIM as usize;
        }
        row += CUBE_COUNT;
    }
}

/// The kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use embedding_kernel::EmbeddingKernel;
    use sum_kernel::SumKernel;

    let dim = || CubeDim::new_1d(256);
    let mut cases = sort::cases();
    for (name, dtype, vector) in float_cases() {
        let int = i32::elem_type_native();
        cases.push(KernelCase::new(format!("embedding {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(dim()), gpu.device(), gpu.target());
            EmbeddingKernel::new(s, d, t, b(), b(), b(), (), (), (), vector, dtype, int)
        }));
        cases.push(KernelCase::new(format!("embedding sum {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.unchecked(dim()), gpu.device(), gpu.target());
            SumKernel::new(s, d, t, b(), b(), b(), b(), b(), (), (), vector, 256, dtype)
        }));
    }
    cases
}
