use burn::tensor::Tensor;
use burn::tensor::module;

/// `x W + b`: `[.., from]` to `[.., to]`, with `W: [from, to]` and `b: [to]`.
///
/// All rows are one matrix. Burn's own `linear` may keep the leading dimensions as a batch of small products, each of which reads and
/// packs all of `W` again.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let mut shape = x.dims();
    let from = shape[D - 1];
    let rows = shape[..D - 1].iter().product::<usize>();
    shape[D - 1] = weight.dims()[1];
    module::linear(x.reshape([rows, from]), weight, bias).reshape(shape)
}
