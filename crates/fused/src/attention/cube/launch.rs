//! Selection and launch of the attention kernels for a problem.

use super::rows::{HeadRows, rule_launch};
use super::{Backward, Problem, mma, simt};
use crate::cube::launch::{Elements, address_type, empty, units};
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::MmaConfig;
use cubecl::prelude::*;

/// The kernels that multiply the matrices.
enum Body {
    /// Portable kernels, with the number of elements per load and store.
    Simt(simt::SimtShape, usize),
    Mma(mma::MmaShape),
}

impl Body {
    /// Chooses tensor cores if the device has them for this dtype, and widths, strides and the number of sums suit
    /// them.
    fn of<const N: usize>(problem: &Problem, gradients: [(&HeadRows, usize); N]) -> Self {
        let widths = problem.widths;
        let inputs = [(&problem.q, widths.qk()), (&problem.k, widths.nope), (&problem.v, widths.v)];
        // The rotated part of a query begins inside its row.
        let parts = [(&problem.q, widths.nope), (&problem.k_rope, widths.rope)];
        let all = inputs.into_iter().chain(parts).chain(gradients);
        let vector = all.map(|(rows, width)| rows.vector_size(width)).min().unwrap_or(1);

        let (properties, dtype) = (problem.q.tensor.client.properties(), problem.q.tensor.dtype);
        let (hardware, matmul) = (&properties.hardware, &properties.features.matmul);
        let (element, dropout) = (dtype_to_elem_type(dtype), problem.rule.dropout.is_some());
        let documents = problem.documents();
        let shape = mma::MmaShape { widths, dropout, documents };
        let wanted =
            MmaConfig { a_type: element, b_type: element, cd_type: f32::elem_type_native(), m: 16, n: 8, k: 16 };
        if vector == mma::VECTOR
            && dtype.size() == 2
            && matmul.mma.contains(&wanted)
            && matmul.ldmatrix.contains(&element)
            && hardware.plane_size_min == 32
            && hardware.plane_size_max == 32
            && shape.sums() <= mma::SUMS
            && shape.shared_memory() <= hardware.max_shared_memory_size
        {
            return Self::Mma(shape);
        }
        // Large tiles gain little on CubeCL's CPU runtime.
        let tiles = if hardware.num_cpu_cores.is_some() { [16, 8, 4].as_slice() } else { &[64, 32, 16, 8, 4] };
        let shapes = tiles.iter().map(|tile| simt::SimtShape { widths, tile: *tile, dropout, documents });
        let shape = shapes.into_iter().find(|shape| shape.shared_memory() <= hardware.max_shared_memory_size);
        let shape = shape.unwrap_or_else(|| panic!("attention: {widths:?} do not fit into the device's shared memory"));
        Self::Simt(shape, vector)
    }

    /// Launches one cube per tile of `rows` rows, head and sequence.
    fn grid(&self, problem: &Problem, [heads, rows]: [usize; 2]) -> (CubeCount, CubeDim) {
        let (tile, units) = match self {
            Self::Simt(shape, _) => (shape.tile, units(&problem.q.tensor.client, shape.units())),
            Self::Mma(_) => (mma::TILE, mma::UNITS),
        };
        let count = CubeCount::Static(rows.div_ceil(tile) as u32, heads as u32, problem.b as u32);
        (count, CubeDim::new_1d(units as u32))
    }
}

/// Launches a kernel of the body by name, with a grid over these heads and rows. Both bodies take the same arguments,
/// except for the vector size, which is fixed for tensor cores.
macro_rules! launch {
    ($module:ident::$kernel:ident, $body:expr, $problem:expr, $grid:expr, buffers: [$($buffer:expr),*], rows: [$($strides_of:expr),*]) => {{
        let Problem { heads, t, s, rule, q, k, v, k_rope, table: [cos, sin], first_keys, .. } = $problem;
        let first_keys = if $problem.documents() { first_keys.clone() } else { empty(first_keys, [1], DType::I32) };
        let (count, dim) = $body.grid($problem, $grid);
        let addresses = address_type([&q.tensor, &k.tensor, &v.tensor]);
        let dtype = dtype_to_elem_type(q.tensor.dtype);
        // SAFETY: no kernel reads or writes rows past the last query and key, and shared memory is as long as its
        // shape says. Gradients that share a buffer occupy disjoint parts of it.
        unsafe {
            match $body {
                Body::Simt(shape, vector) => simt::$module::$kernel::launch_unchecked(
                    &q.tensor.client, count, dim, addresses, *vector,
                    q.arg(), k.arg(), v.arg(), k_rope.arg(), cos.clone().elements(), sin.clone().elements(),
                    first_keys.elements(),
                    $($buffer.clone().elements(),)*
                    q.strides_of(), k.strides_of(), v.strides_of(), k_rope.strides_of(), $($strides_of.strides_of(),)*
                    rule_launch([*heads, $problem.group(), *t, *s], *rule), *shape, dtype,
                ),
                Body::Mma(shape) => mma::$module::$kernel::launch_unchecked(
                    &q.tensor.client, count, dim, addresses,
                    q.arg(), k.arg(), v.arg(), k_rope.arg(), cos.clone().elements(), sin.clone().elements(),
                    first_keys.elements(),
                    $($buffer.clone().elements(),)*
                    q.strides_of(), k.strides_of(), v.strides_of(), k_rope.strides_of(), $($strides_of.strides_of(),)*
                    rule_launch([*heads, $problem.group(), *t, *s], *rule), *shape, dtype,
                ),
            }
        }
    }};
}

pub(super) fn forward(problem: &Problem, y: &HeadRows, l: &CubeTensor) {
    let body = &Body::of(problem, [(y, problem.widths.v)]);
    launch!(forward::attention_forward, body, problem, [problem.heads, problem.t], buffers: [y.tensor, l], rows: [y]);
}

pub(super) fn backward(problem: &Problem, given: &Backward) {
    let (widths, Backward { d_y, l, delta, d_q, d_k, d_v, d_k_rope }) = (problem.widths, given);
    let gradients = [(d_y, widths.v), (d_q, widths.qk()), (d_k, widths.nope), (d_v, widths.v)];
    let body = &Body::of(problem, gradients);
    launch!(dkv::attention_dkv, body, problem, [problem.kv_heads, problem.s],
        buffers: [d_y.tensor, l, delta, d_k.tensor, d_v.tensor, d_k_rope], rows: [d_y, d_k, d_v]);
    launch!(dq::attention_dq, body, problem, [problem.heads, problem.t],
        buffers: [d_y.tensor, l, delta, d_q.tensor], rows: [d_y, d_q]);
}
