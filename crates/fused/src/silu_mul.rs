use crate::kernel::{Kernel, Saves, apply2, runs_on};
use crate::math::{over_rows, sigmoid};
use crate::precision::{rounded, widened};
use burn::tensor::{Shape, Tensor, activation};
use multiversion::multiversion;

/// `silu(gate) * up` with `silu(g) = g sigmoid(g)`: the gate of a SwiGLU (arXiv 2002.05202). Both are of one shape.
pub fn silu_mul<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    let up = widened(up);
    rounded(gate, |gate| match runs_on(&gate) {
        true => apply2(SiluMul, gate, up),
        false => activation::silu(gate) * up,
    })
}

#[derive(Debug)]
struct SiluMul;

impl Kernel<2> for SiluMul {
    const SAVES: Saves = Saves::Inputs;

    fn output_shape(&self, [gate, up]: [&Shape; 2]) -> Shape {
        assert_eq!(gate, up, "silu_mul: gate and up are of one shape");
        gate.clone()
    }

    fn forward(&self, inputs: [&[f32]; 2], output: &mut [f32]) {
        over_rows(1, inputs, output, |_, [gate, up], y| forward(gate, up, y));
    }

    fn backward(&self, [gate, up]: [&[f32]; 2], _: &[f32], cotangent: &[f32], [d_gate, d_up]: [&mut [f32]; 2]) {
        over_rows(1, [gate, cotangent], d_up, |_, [gate, dy], d_up| backward_up(gate, dy, d_up));
        over_rows(1, [gate, up, cotangent], d_gate, |_, [gate, up, dy], d_gate| backward_gate(gate, up, dy, d_gate));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward(gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
        *y = gate * sigmoid(*gate) * up;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward_up(gate: &[f32], dy: &[f32], d_up: &mut [f32]) {
    for ((d_up, gate), dy) in d_up.iter_mut().zip(gate).zip(dy) {
        *d_up = dy * gate * sigmoid(*gate);
    }
}

/// `silu'(g) = s + g s (1 - s)` with `s = sigmoid(g)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward_gate(gate: &[f32], up: &[f32], dy: &[f32], d_gate: &mut [f32]) {
    for (((d_gate, gate), up), dy) in d_gate.iter_mut().zip(gate).zip(up).zip(dy) {
        let s = sigmoid(*gate);
        *d_gate = dy * up * s * (1.0 + gate * (1.0 - s));
    }
}
