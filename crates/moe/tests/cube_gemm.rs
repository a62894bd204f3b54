//! The grouped products as CubeCL kernels, on CubeCL's CPU runtime, against sums in f64.
#![cfg(feature = "cpu-jit")]

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::bf16;
use moe::kernels::grouped_gemm::grouped_gemm;
use moe::kernels::launch::set_cpu_units;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Units and tiers are set for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Case {
    r: usize,
    p: usize,
    q: usize,
    segments: Vec<i32>,
}

/// Eighths between -1 and 1, which bf16 holds exactly.
fn eighths(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + seed * 11 + i / 7) % 17) as f32 / 8.0 - 1.0).collect()
}

struct Products {
    y: Vec<f32>,
    d_x: Vec<f32>,
    d_weight: Vec<f32>,
}

fn reference(case: &Case, x: &[f32], weight: &[f32], d_y: &[f32]) -> Products {
    let Case { r, p, q, segments } = case;
    let (r, p, q) = (*r, *p, *q);
    let mut y = vec![0f64; r * q];
    let mut d_x = vec![0f64; r * p];
    let mut d_weight = vec![0f64; weight.len()];
    for (e, borders) in segments.windows(2).enumerate() {
        for row in borders[0] as usize..borders[1] as usize {
            for i in 0..p {
                for j in 0..q {
                    let w = (e * p + i) * q + j;
                    y[row * q + j] += x[row * p + i] as f64 * weight[w] as f64;
                    d_x[row * p + i] += d_y[row * q + j] as f64 * weight[w] as f64;
                    d_weight[w] += x[row * p + i] as f64 * d_y[row * q + j] as f64;
                }
            }
        }
    }
    let f32s = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    Products { y: f32s(y), d_x: f32s(d_x), d_weight: f32s(d_weight) }
}

fn tensor<const D: usize>(values: &[f32], shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    let data = match dtype {
        DType::BF16 => TensorData::new(values.iter().map(|value| bf16::from_f32(*value)).collect(), shape),
        _ => TensorData::new(values.to_vec(), shape),
    };
    Tensor::from_data(data, (device, dtype))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn run(case: &Case, x: &[f32], weight: &[f32], d_y: &[f32], dtype: DType) -> Products {
    let device = Device::cpu().autodiff();
    let e = case.segments.len() - 1;
    let x = tensor(x, [case.r, case.p], dtype, &device).require_grad();
    let weight = tensor(weight, [e, case.p, case.q], dtype, &device).require_grad();
    let segments = Tensor::<1, Int>::from_data(TensorData::new(case.segments.clone(), [e + 1]), (&device, DType::I32));
    let y = grouped_gemm(x.clone(), weight.clone(), &segments);
    let gradients = match dtype {
        DType::F32 => (y.clone() * tensor(d_y, [case.r, case.q], dtype, &device)).backward(),
        // Burn's own product in bf16 does not compile on every CPU: the gradient of `y` is 1.
        _ => y.clone().backward(),
    };
    Products {
        y: values(y),
        d_x: values(x.grad(&gradients).unwrap()),
        d_weight: values(weight.grad(&gradients).unwrap()),
    }
}

fn check(case: &Case, dtype: DType) {
    let e = case.segments.len() - 1;
    let (x, weight) = (eighths(case.r * case.p, 1), eighths(e * case.p * case.q, 2));
    let d_y = if dtype == DType::F32 { eighths(case.r * case.q, 3) } else { vec![1.0; case.r * case.q] };
    let (got, want) = (run(case, &x, &weight, &d_y, dtype), reference(case, &x, &weight, &d_y));
    let tolerance = if dtype == DType::BF16 { 1.0 / 256.0 } else { 1e-6 };
    for (name, got, want) in [("y", got.y, want.y), ("dx", got.d_x, want.d_x), ("dW", got.d_weight, want.d_weight)] {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{name}[{i}] is {got}, not {want}");
        }
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case { r: 13, p: 20, q: 12, segments: vec![0, 6, 6, 10] },
        Case { r: 40, p: 5, q: 7, segments: vec![0, 0, 40, 40] },
    ]
}

#[test]
fn simt() {
    let _alone = alone();
    for units in [1, 2] {
        set_cpu_units(units);
        for dtype in [DType::F32, DType::BF16] {
            for case in cases() {
                let t = std::time::Instant::now();
                check(&case, dtype);
                println!("{units} {dtype:?} {:?}", t.elapsed());
            }
        }
    }
}
