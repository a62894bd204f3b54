//! Matrix products, which Burn computes.

use super::launch::{empty, is_llvmpipe, on_cpu};
use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::strategy::Strategy;
use cubek::matmul::{multi_level, tiled};
use cubek::std::InputBinding;

/// Multiplies matrices of one dtype, with sums in f32 and a result of `dtype`.
pub(crate) fn product(a: CubeTensor, b: CubeTensor, dtype: DType) -> CubeTensor {
    let ([rows, _], [_, columns]) = (a.shape().dims(), b.shape().dims());
    let out = empty(&a, [rows, columns], dtype);
    product_into(a, b, out.clone());
    out
}

/// Computes [`product`] into a matrix of any float type.
///
/// For 16-bit matrices on a GPU, Burn tries kernels and keeps the fastest. For f32 the fastest may round the factors to
/// TF32's 10 bits for tensor cores, so f32 always uses the same kernel, which computes in f32.
pub(crate) fn product_into(a: CubeTensor, b: CubeTensor, out: CubeTensor) {
    let (from, dtype, client) = (a.dtype, out.dtype, a.client.clone());
    let strategy = if on_cpu(&client) {
        Strategy::Tiled(tiled::Strategy::CpuGemm(Default::default()))
    } else if from == DType::F32 || is_llvmpipe(client.properties()) {
        Strategy::MultiLevel(multi_level::Strategy::SimpleUnit(Default::default()))
    } else {
        matmul(a, b, Some(out), MatmulStrategy::default(), dtype).expect("Burn multiplies any two matrices");
        return;
    };
    let [from, to] = [from, dtype].map(dtype_to_storage_type);
    let mut types = MatmulElems::from_globals(&MatmulGlobalElems { lhs: from, rhs: from, out: to });
    let [a, b] = [a, b].map(|matrix| InputBinding::new(matrix.binding(), from));
    launch_ref(&strategy, &client, a, b, out.binding(), &mut types).expect("it multiplies any two matrices");
}
