//! Linear layers and their gradients in plain Rust.

use super::{Again, LinearOps, ProductOps};
use crate::slices::{contiguous, float, slice};
use crate::with_float;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Element as TensorElement;
use cpu::gemm::{Epilogue, Matrix, Product, products, products_with};
use cpu::math::accumulate;
use cpu::{Element, Pieces, team, written};
use std::mem::MaybeUninit;

impl LinearOps for Flex {
    fn fused_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        transposed: bool,
        _: Option<Again>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let ([rows, _], to) = (x.shape().dims(), weight.shape()[usize::from(!transposed)]);
        with_float!(x.dtype(), T => float(weighted::<T>(&inputs, transposed).forward(None), [rows, to]))
    }

    fn fused_linear_gelu(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        _: Option<Again>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let ([rows, _], [_, to]) = (x.shape().dims(), weight.shape().dims());
        with_float!(x.dtype(), T => {
            let (y, pre) = weighted::<T>(&inputs, false).gelu();
            (float(y, [rows, to]), float(pre, [rows, to]))
        })
    }

    fn fused_linear_add(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = [&x, &weight, &bias].map(contiguous);
        let residual = contiguous(&residual);
        with_float!(x.dtype(), T => {
            float(weighted::<T>(&inputs, false).forward(Some(slice(&residual))), residual.shape())
        })
    }
}

impl ProductOps for Flex {
    fn fused_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(a, b)
    }

    fn fused_product_into(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: usize,
    ) -> FloatTensor<Self> {
        Self::fused_product(a, b)
    }

    fn fused_linear_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        d_y: FloatTensor<Self>,
        transposed: bool,
        wanted: [bool; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let [x, weight, d_y] = [&x, &weight, &d_y].map(contiguous);
        let [rows, to] = d_y.shape().dims();
        // An input of an unwanted gradient may be an empty placeholder.
        let from = if wanted[1] { x.shape()[1] } else { weight.shape()[usize::from(transposed)] };
        with_float!(d_y.dtype(), T => {
            let slices = [slice(&x), slice(&weight), slice(&d_y)];
            let [d_x, d_weight, d_bias] = backward_cpu::<T>(slices, [rows, from, to], transposed, wanted);
            let or_none = |values: Vec<T>, shape: Vec<usize>, wanted: bool| {
                float(values, if wanted { shape } else { vec![0] })
            };
            let of_weight = if transposed { vec![to, from] } else { vec![from, to] };
            (
                or_none(d_x, vec![rows, from], wanted[0]),
                or_none(d_weight, of_weight, wanted[1]),
                or_none(d_bias, vec![to], wanted[2]),
            )
        })
    }
}

fn weighted<T: Element + TensorElement>(
    [x, weight, bias]: &[FloatTensor<Flex>; 3],
    transposed: bool,
) -> Weighted<'_, T> {
    let (from, to) = (x.shape()[1], weight.shape()[usize::from(!transposed)]);
    Weighted { x: slice(x), weight: slice(weight), bias: slice(bias), from, to, transposed }
}

/// Rows of width `from`, a matrix that maps them to rows of width `to`, and a bias, which may be empty.
#[derive(Clone, Copy)]
struct Weighted<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    bias: &'a [T],
    from: usize,
    to: usize,
    transposed: bool,
}

impl<'a, T: Element> Weighted<'a, T> {
    fn rows(&self) -> usize {
        self.x.len() / self.from.max(1)
    }

    fn product<'c>(&self, c: &'c mut [MaybeUninit<T>]) -> Product<'c, T>
    where
        'a: 'c,
    {
        let Self { from, to, .. } = *self;
        let b = matrix(self.weight, from, to, self.transposed);
        Product { m: self.rows(), n: to, k: from, a: Matrix::new(self.x, from), b, c }
    }

    fn bias(&self) -> Option<&'a [T]> {
        (!self.bias.is_empty()).then_some(self.bias)
    }

    /// Computes `x W + b`, optionally added to a residual.
    fn forward(&self, residual: Option<&[T]>) -> Vec<T> {
        let write = |c: &mut [MaybeUninit<T>]| {
            products_with(vec![(self.product(c), Epilogue { bias: self.bias(), residual, ..Epilogue::default() })]);
        };
        // SAFETY: `products_with` sets all of `c`.
        unsafe { written(self.rows() * self.to, write) }
    }

    /// Computes `gelu(x W + b)` and `x W + b`.
    fn gelu(&self) -> (Vec<T>, Vec<T>) {
        let mut pre = vec![];
        let len = self.rows() * self.to;
        let write = |c: &mut [MaybeUninit<T>]| {
            let write = |pre: &mut [MaybeUninit<T>]| {
                let epilogue =
                    Epilogue { bias: self.bias(), pre_activation: Some(pre), gelu: true, ..Epilogue::default() };
                products_with(vec![(self.product(c), epilogue)]);
            };
            // SAFETY: `products_with` sets all of both outputs.
            pre = unsafe { written(len, write) };
        };
        // SAFETY: as above.
        let y = unsafe { written(len, write) };
        (y, pre)
    }
}

/// Returns the wanted gradients of `x`, weight and bias; the others are empty.
fn backward_cpu<T: Element>(
    [x, weight, dy]: [&[T]; 3],
    [rows, from, to]: [usize; 3],
    transposed: bool,
    [of_x, of_weight, of_bias]: [bool; 3],
) -> [Vec<T>; 3] {
    let dy_matrix = Matrix::new(dy, to);
    let mut d_weight = vec![];
    let write = |dx: &mut [MaybeUninit<T>]| {
        let write = |dw: &mut [MaybeUninit<T>]| {
            let mut wanted = vec![];
            if of_x {
                let b = matrix(weight, from, to, transposed).transposed();
                wanted.push(Product { m: rows, n: from, k: to, a: dy_matrix, b, c: dx });
            }
            if of_weight {
                let x = Matrix::new(x, from);
                let (m, n, a, b) = match transposed {
                    false => (from, to, x.transposed(), dy_matrix),
                    true => (to, from, dy_matrix.transposed(), x),
                };
                wanted.push(Product { m, n, k: rows, a, b, c: dw });
            }
            products(wanted);
        };
        // SAFETY: `products` sets the gradients that are wanted.
        d_weight = unsafe { written(if of_weight { from * to } else { 0 }, write) };
    };
    // SAFETY: as above.
    let dx = unsafe { written(if of_x { rows * from } else { 0 }, write) };
    [dx, d_weight, if of_bias { sum_of_rows(dy, to) } else { vec![] }]
}

/// The weight as a `[from, to]` matrix.
fn matrix<T>(weight: &[T], from: usize, to: usize, transposed: bool) -> Matrix<'_, T> {
    match transposed {
        false => Matrix::new(weight, to),
        true => Matrix::new(weight, from).transposed(),
    }
}

/// Sums rows in f32: first pieces of rows, whose size depends only on the width, then the pieces in order.
fn sum_of_rows<T: Element>(rows: &[T], width: usize) -> Vec<T> {
    let piece = (64 * 1024 / width.max(1)).max(1) * width.max(1);
    let tasks = rows.len().div_ceil(piece.max(1));
    let mut sums = vec![0.0; tasks * width];
    let parts = Pieces::new(&mut sums);
    team::for_each(tasks, |i| {
        // SAFETY: each task takes a different sum.
        let sum = unsafe { parts.part(i, width) };
        let rows = &rows[i * piece..rows.len().min((i + 1) * piece)];
        rows.chunks_exact(width).for_each(|row| accumulate(sum, row));
    });
    let mut all = vec![0.0; width];
    sums.chunks_exact(width.max(1)).for_each(|sum| accumulate(&mut all, sum));
    all.into_iter().map(T::from_f32).collect()
}
