use crate::kernel::runs_on;
use crate::precision::widened;
use burn::backend::Flex;
use burn::tensor::Tensor;
use rayon::prelude::*;

/// The sum of `x^2` in f64. To f32's precision it does not depend on how the elements are divided over tensors.
pub fn sum_of_squares(x: Tensor<1>) -> f64 {
    let x = widened(x.inner());
    if !runs_on(&x) {
        return by_rows(x);
    }
    let x = x.try_into_primitive::<Flex>().expect("on the CPU").to_contiguous();
    let values: &[f32] = x.as_slice().expect("contiguous f32");
    const TASK: usize = 64 * 1024;
    let sum = |values: &[f32]| values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let sums: Vec<f64> = values.par_chunks(TASK).map(sum).collect();
    sums.iter().sum()
}

/// The same on devices without a loop of our own: the device adds up the squares of rows in f32, whose error does not grow with the tensor,
/// and the host the rows in f64.
fn by_rows(x: Tensor<1>) -> f64 {
    const ROW: usize = 1024;
    let len = x.dims()[0];
    let whole = len / ROW * ROW;
    let on_host = |sums: Tensor<1>| sums.into_data().iter::<f64>().sum::<f64>();
    let rows = (whole > 0).then(|| {
        let rows = x.clone().slice(0..whole).reshape([whole / ROW, ROW]);
        on_host((rows.clone() * rows).sum_dim(1).reshape([whole / ROW]))
    });
    let rest = (whole < len).then(|| {
        let rest = x.slice(whole..len);
        on_host((rest.clone() * rest).sum())
    });
    rows.into_iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn rows_add_up_to_the_sum_in_f64() {
        for len in [1, 1023, 1024, 1025, 3_000_001] {
            let values: Vec<f32> = (0..len).map(|i| 0.5 + (i % 7) as f32 * 0.01).collect();
            let exact: f64 = values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let x = Tensor::<1>::from_data(TensorData::new(values, [len]), &Device::flex());
            for found in [by_rows(x.clone()), sum_of_squares(x)] {
                assert!((found / exact - 1.0).abs() < 1e-6, "{len}: {found}, not {exact}");
            }
        }
    }
}
