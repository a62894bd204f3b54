use crate::element::Element;
use crate::kernel::{Kernel, Saves, apply2, runs_on};
use crate::math::{TASK, over_rows, sigmoid};
use crate::precision::{rounded, widened};
use crate::uninit::{overwritten, written};
use burn::tensor::{Shape, Tensor, activation};
use multiversion::multiversion;
use rayon::prelude::*;
use std::mem::MaybeUninit;

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
        // SAFETY: `forward` sets what it writes.
        over_rows(1, inputs, output, |_, [gate, up], y| forward(gate, up, unsafe { overwritten(y) }));
    }

    fn backward(&self, [gate, up]: [&[f32]; 2], _: &[f32], cotangent: &[f32], [d_gate, d_up]: [&mut [f32]; 2]) {
        // SAFETY: `gradients` sets what it writes.
        let (d_gate, d_up) = unsafe { (overwritten(d_gate), overwritten(d_up)) };
        gradients(gate, up, cotangent, d_gate, d_up);
    }
}

/// `silu(gate) * up` of slices, computed in f32 and rounded once.
pub fn silu_mul_slices<T: Element>(gate: &[T], up: &[T]) -> Vec<T> {
    assert_eq!(gate.len(), up.len(), "silu_mul: gate and up are of one shape");
    let write = |y: &mut [MaybeUninit<T>]| {
        let pieces = y.par_chunks_mut(TASK).zip(gate.par_chunks(TASK).zip(up.par_chunks(TASK)));
        pieces.for_each(|(y, (gate, up))| forward(gate, up, y));
    };
    // SAFETY: `forward` sets every element of a piece, and the pieces are all of `y`.
    unsafe { written(gate.len(), write) }
}

/// The gradients of gate and up in [`silu_mul_slices`].
pub fn silu_mul_gradients<T: Element>(gate: &[T], up: &[T], cotangent: &[T]) -> (Vec<T>, Vec<T>) {
    assert!(gate.len() == up.len() && up.len() == cotangent.len(), "silu_mul: gate, up and cotangent are of one shape");
    let mut d_up = vec![];
    let write = |d_gate: &mut [MaybeUninit<T>]| {
        // SAFETY: `gradients` sets all of both.
        d_up = unsafe { written(gate.len(), |d_up| gradients(gate, up, cotangent, d_gate, d_up)) };
    };
    // SAFETY: as above.
    let d_gate = unsafe { written(gate.len(), write) };
    (d_gate, d_up)
}

/// Sets all of `d_gate` and `d_up`.
fn gradients<T: Element>(gate: &[T], up: &[T], dy: &[T], d_gate: &mut [MaybeUninit<T>], d_up: &mut [MaybeUninit<T>]) {
    let inputs = gate.par_chunks(TASK).zip(up.par_chunks(TASK)).zip(dy.par_chunks(TASK));
    let pieces = d_gate.par_chunks_mut(TASK).zip(d_up.par_chunks_mut(TASK)).zip(inputs);
    pieces.for_each(|((d_gate, d_up), ((gate, up), dy))| backward(gate, up, dy, d_gate, d_up));
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn forward<T: Element>(gate: &[T], up: &[T], y: &mut [MaybeUninit<T>]) {
    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
        let gate = gate.to_f32();
        y.write(T::from_f32(gate * sigmoid(gate) * up.to_f32()));
    }
}

/// `silu'(g) = s + g s (1 - s)` with `s = sigmoid(g)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn backward<T: Element>(gate: &[T], up: &[T], dy: &[T], d_gate: &mut [MaybeUninit<T>], d_up: &mut [MaybeUninit<T>]) {
    let outputs = d_gate.iter_mut().zip(d_up);
    for ((d_gate, d_up), ((gate, up), dy)) in outputs.zip(gate.iter().zip(up).zip(dy)) {
        let (gate, dy) = (gate.to_f32(), dy.to_f32());
        let s = sigmoid(gate);
        d_up.write(T::from_f32(dy * gate * s));
        d_gate.write(T::from_f32(dy * up.to_f32() * s * (1.0 + gate * (1.0 - s))));
    }
}
