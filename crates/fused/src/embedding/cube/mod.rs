//! The kernels of [`embedding`](super): a gather; for the backward a counting sort of the tokens and a sum per row.
//!
//! A token's place `i` is its index in the input. Tokens are divided into chunks of at least 512. Places are sorted by
//! token, stably, with atomics on integers only, so that the order is reproducible:
//!
//! ```text
//! count        a unit per place      counts[chunk, v]: tokens v in the chunk
//! scan         a unit per row v      counts[chunk, v] becomes the number of tokens v before the chunk;
//!                                    starts[v]: tokens of the rows before v in v's block;
//!                                    blocks[block]: tokens of the rows of a cube
//! scan_blocks  one cube              blocks[block] becomes the number of tokens in the blocks before it
//! place        a cube per chunk      places[blocks[v's] + starts[v] + counts[chunk, v] + v's before i in it] = i
//! parts        a cube per part       parts[part] = sum of dy[places[..]] over 64 places of a row that has this many
//! sum          a cube per row v      dW[v] = sum of v's parts and of dy[places[..]] over the remaining places, rounded
//! ```
//!
//! `counts` takes 4 bytes per chunk and row: for 12,288 tokens and 50,304 rows, 24 chunks and 4.8 MB. Beyond 128
//! chunks, chunks get longer instead.

mod sort;
mod sum;

use self::sort::sort;
use self::sum::sum;
use super::{EmbeddingBackwardOps, EmbeddingOps};
use crate::cube::launch::{Elements, address_type, empty, over_rows, vector_size};
#[cfg(feature = "offline")]
use crate::cube::offline::{KernelCase, buffer, float_cases};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_elem_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

impl EmbeddingOps for CubeBackend {
    /// Gathers the rows of tokens. A token beyond the table gets a row of NaN, so the loss shows it.
    fn fused_embedding(weight: CubeTensor, tokens: CubeTensor) -> CubeTensor {
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
}

/// `width` is the width of a row in vectors.
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

impl EmbeddingBackwardOps for CubeBackend {
    /// Returns the gradient of a table of `rows` rows. A token beyond the table adds nothing.
    fn fused_embedding_backward(tokens: CubeTensor, d_y: CubeTensor, rows: usize) -> CubeTensor {
        let ([n, d], dtype) = (d_y.shape().dims(), d_y.dtype);
        let (tokens, d_y) = (into_contiguous(tokens), into_contiguous(d_y));
        if n * rows * d == 0 {
            return zeros_client(d_y.client.clone(), d_y.device.clone(), [rows, d].into(), dtype);
        }
        let sorted = sort(tokens.clone(), rows);
        sum(tokens, d_y, sorted, rows)
    }
}

/// Lists the kernels with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use embedding_kernel::EmbeddingKernel;

    let mut cases = sort::cases();
    cases.extend(sum::cases());
    for (name, dtype, vector) in float_cases() {
        let int = i32::elem_type_native();
        cases.push(KernelCase::new(format!("embedding {name}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            EmbeddingKernel::new(s, d, t, b(), b(), b(), (), (), (), vector, dtype, int)
        }));
    }
    cases
}
