//! Products of matrices are Burn's.

use super::launch::on_cpu;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::strategy::Strategy;
use cubek::matmul::tiled;
use cubek::std::InputBinding;

/// `a b` of matrices of one dtype, added up in f32, into a matrix of any float.
pub(crate) fn product_into(a: CubeTensor, b: CubeTensor, out: CubeTensor) {
    let dtype = out.dtype;
    if !on_cpu(&a.client) {
        matmul(a, b, Some(out), MatmulStrategy::default(), dtype).expect("Burn multiplies any two matrices");
        return;
    }
    // On CubeCL's CPU runtime Burn would try kernels with barriers for seconds, at each shape.
    let (from, to, client) = (dtype_to_storage_type(a.dtype), dtype_to_storage_type(dtype), a.client.clone());
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: from, rhs: from, out: to });
    let strategy = Strategy::Tiled(tiled::Strategy::CpuGemm(Default::default()));
    let [a, b] = [a, b].map(|matrix| InputBinding::new(matrix.binding(), from));
    launch_ref(&strategy, &client, a, b, out.binding(), &mut types)
        .expect("cubek multiplies any two matrices on the CPU");
}
