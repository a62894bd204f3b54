use crate::kernel::{Kernel, Saves, apply1, runs_on};
use crate::math::{over_rows, sigmoid};
use crate::precision::rounded;
use burn::tensor::{Shape, Tensor, activation};
use multiversion::multiversion;

/// GELU in its tanh form (GPT-2): `0.5 x (1 + tanh(u)) = x sigmoid(2u)` with `u = sqrt(2/pi) (x + 0.044715 x^3)`.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    rounded(x, |x| match runs_on(&x) {
        true => apply1(Gelu, x),
        false => activation::gelu_approximate(x),
    })
}

#[derive(Debug)]
struct Gelu;

/// 2 sqrt(2/pi)
const TWICE: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;

impl Kernel<1> for Gelu {
    const SAVES: Saves = Saves::Inputs;

    fn output_shape(&self, [x]: [&Shape; 1]) -> Shape {
        x.clone()
    }

    fn forward(&self, [x]: [&[f32]; 1], output: &mut [f32]) {
        over_rows(1, [x], output, |_, [x], y| forward(x, y));
    }

    fn backward(&self, [x]: [&[f32]; 1], _: &[f32], cotangent: &[f32], [gradient]: [&mut [f32]; 1]) {
        over_rows(1, [x, cotangent], gradient, |_, [x, dy], dx| backward(x, dy, dx));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = x * sigmoid(TWICE * (x + CUBIC * x * x * x));
    }
}

/// With `s = sigmoid(2u)`: `s + x s (1 - s) 2u'`, `2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        let s = sigmoid(TWICE * (x + CUBIC * x * x * x));
        *dx = dy * (s + x * s * (1.0 - s) * TWICE * (1.0 + 3.0 * CUBIC * x * x));
    }
}
