use crate::kernel::runs_on;
use crate::precision::widened;
use burn::backend::Flex;
use burn::tensor::Tensor;
use rayon::prelude::*;

/// The sum of `x^2` in f64. To f32's precision it does not depend on how the elements are divided over tensors.
pub fn sum_of_squares(x: Tensor<1>) -> f64 {
    let x = widened(x);
    if !runs_on(&x) {
        return f64::from((x.clone() * x).sum().into_scalar::<f32>());
    }
    let x = x.try_into_primitive::<Flex>().expect("on the CPU").to_contiguous();
    let values: &[f32] = x.as_slice().expect("contiguous f32");
    const TASK: usize = 64 * 1024;
    let sum = |values: &[f32]| values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let sums: Vec<f64> = values.par_chunks(TASK).map(sum).collect();
    sums.iter().sum()
}
