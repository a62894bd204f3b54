use crate::element::Element;
use crate::kernel::{Kernel, Saves, apply2, runs_on};
use crate::math::{TASK, over_rows, sigmoid};
use crate::precision::{rounded, widened};
use burn::tensor::{Shape, Tensor, activation};
use multiversion::multiversion;
use rayon::prelude::*;

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

/// `silu(gate) * up` of slices, computed in f32 and rounded once.
pub fn silu_mul_slices<T: Element>(gate: &[T], up: &[T]) -> Vec<T> {
    let mut y = vec![T::from_f32(0.0); gate.len()];
    let pieces = y.par_chunks_mut(TASK).zip(gate.par_chunks(TASK).zip(up.par_chunks(TASK)));
    pieces.for_each(|(y, (gate, up))| forward(gate, up, y));
    y
}

/// The gradients of gate and up in [`silu_mul_slices`].
pub fn silu_mul_gradients<T: Element>(gate: &[T], up: &[T], cotangent: &[T]) -> (Vec<T>, Vec<T>) {
    let (mut d_gate, mut d_up) = (vec![T::from_f32(0.0); gate.len()], vec![T::from_f32(0.0); gate.len()]);
    let inputs = gate.par_chunks(TASK).zip(up.par_chunks(TASK)).zip(cotangent.par_chunks(TASK));
    let pieces = d_gate.par_chunks_mut(TASK).zip(d_up.par_chunks_mut(TASK)).zip(inputs);
    pieces.for_each(|((d_gate, d_up), ((gate, up), dy))| {
        backward_up(gate, dy, d_up);
        backward_gate(gate, up, dy, d_gate);
    });
    (d_gate, d_up)
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward<T: Element>(gate: &[T], up: &[T], y: &mut [T]) {
    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
        let gate = gate.to_f32();
        *y = T::from_f32(gate * sigmoid(gate) * up.to_f32());
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward_up<T: Element>(gate: &[T], dy: &[T], d_up: &mut [T]) {
    for ((d_up, gate), dy) in d_up.iter_mut().zip(gate).zip(dy) {
        let gate = gate.to_f32();
        *d_up = T::from_f32(dy.to_f32() * gate * sigmoid(gate));
    }
}

/// `silu'(g) = s + g s (1 - s)` with `s = sigmoid(g)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward_gate<T: Element>(gate: &[T], up: &[T], dy: &[T], d_gate: &mut [T]) {
    for (((d_gate, gate), up), dy) in d_gate.iter_mut().zip(gate).zip(up).zip(dy) {
        let gate = gate.to_f32();
        let s = sigmoid(gate);
        *d_gate = T::from_f32(dy.to_f32() * up.to_f32() * s * (1.0 + gate * (1.0 - s)));
    }
}
