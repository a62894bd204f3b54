use crate::gemm::{Matrix, Product, products};
use crate::kernel::{Kernel, Saves, apply2, apply3, runs_on};
use crate::uninit::overwritten;
use burn::tensor::{Shape, Tensor, module};
use multiversion::multiversion;

/// `x W + b`: `[.., from]` to `[.., to]`, with `W: [from, to]` and `b: [to]`.
///
/// All rows are one matrix (Burn's own `linear` may keep the leading dimensions as a batch of small products, each of which reads and
/// packs all of `W` again), and of f32 a row's result has the same bits whatever other rows there are; see [`gemm`](crate::gemm).
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let [from, to] = weight.dims();
    let op = Linear { from, to, transposed: false };
    flat(x, to, |x| match bias {
        bias if !runs_on(&x) => module::linear(x, weight, bias),
        None => apply2(op, x, weight),
        Some(bias) => apply3(op, x, weight, bias.unsqueeze()),
    })
}

/// `x W^T`: `[.., from]` to `[.., to]`, with `W: [to, from]`, such as a head that is the token embedding. `W` is read as it lies.
pub fn linear_transposed<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let [to, from] = weight.dims();
    flat(x, to, |x| match runs_on(&x) {
        true => apply2(Linear { from, to, transposed: true }, x, weight),
        false => module::linear(x, weight.transpose(), None),
    })
}

/// `op` of all rows of `x`, which makes them `to` wide.
fn flat<const D: usize>(x: Tensor<D>, to: usize, op: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<D> {
    let mut shape = x.dims();
    let (rows, from) = (shape[..D - 1].iter().product::<usize>(), shape[D - 1]);
    shape[D - 1] = to;
    op(x.reshape([rows, from])).reshape(shape)
}

#[derive(Debug, Clone, Copy)]
struct Linear {
    from: usize,
    to: usize,
    /// The matrix is `[to, from]`.
    transposed: bool,
}

impl Linear {
    fn output_shape(&self, x: &Shape) -> Shape {
        assert_eq!(x[1], self.from, "linear: rows of {} by a matrix for rows of {}", x[1], self.from);
        [x[0], self.to].into()
    }

    fn output(&self, x: &[f32], weight: &[f32], y: &mut [f32]) {
        let Self { from, to, .. } = *self;
        products(vec![Product {
            m: y.len() / to,
            n: to,
            k: from,
            a: Matrix::new(x, from),
            b: self.matrix(weight),
            // SAFETY: `products` sets what it writes.
            c: unsafe { overwritten(y) },
        }]);
    }

    /// `dx = dy W^T`, `dW = x^T dy`, where they are wanted.
    fn gradients(&self, x: &[f32], weight: &[f32], dy: &[f32], dx: &mut [f32], d_weight: &mut [f32]) {
        let Self { from, to, .. } = *self;
        let (rows, dy) = (dy.len() / to, Matrix::new(dy, to));
        let mut wanted = vec![];
        if !dx.is_empty() {
            // SAFETY: `products` sets what it writes.
            let c = unsafe { overwritten(dx) };
            wanted.push(Product { m: rows, n: from, k: to, a: dy, b: self.matrix(weight).transposed(), c });
        }
        if !d_weight.is_empty() {
            let x = Matrix::new(x, from);
            let (m, n, a, b) = match self.transposed {
                false => (from, to, x.transposed(), dy),
                true => (to, from, dy.transposed(), x),
            };
            // SAFETY: `products` sets what it writes.
            wanted.push(Product { m, n, k: rows, a, b, c: unsafe { overwritten(d_weight) } });
        }
        products(wanted);
    }

    /// `[from, to]`
    fn matrix<'a>(&self, weight: &'a [f32]) -> Matrix<'a, f32> {
        match self.transposed {
            false => Matrix::new(weight, self.to),
            true => Matrix::new(weight, self.from).transposed(),
        }
    }
}

impl Kernel<2> for Linear {
    const SAVES: Saves = Saves::Inputs;
    const WEIGHT: Option<usize> = Some(1);

    fn output_shape(&self, [x, _]: [&Shape; 2]) -> Shape {
        self.output_shape(x)
    }

    fn forward(&self, [x, weight]: [&[f32]; 2], output: &mut [f32]) {
        self.output(x, weight, output);
    }

    fn backward(&self, [x, weight]: [&[f32]; 2], _: &[f32], dy: &[f32], [dx, d_weight]: [&mut [f32]; 2]) {
        self.gradients(x, weight, dy, dx, d_weight);
    }
}

impl Kernel<3> for Linear {
    const SAVES: Saves = Saves::Inputs;
    const WEIGHT: Option<usize> = Some(1);

    fn output_shape(&self, [x, ..]: [&Shape; 3]) -> Shape {
        self.output_shape(x)
    }

    fn forward(&self, [x, weight, bias]: [&[f32]; 3], output: &mut [f32]) {
        self.output(x, weight, output);
        output.chunks_exact_mut(self.to).for_each(|y| add(y, bias));
    }

    fn backward(&self, [x, weight, _]: [&[f32]; 3], _: &[f32], dy: &[f32], [dx, d_weight, d_bias]: [&mut [f32]; 3]) {
        self.gradients(x, weight, dy, dx, d_weight);
        if !d_bias.is_empty() {
            dy.chunks_exact(self.to).for_each(|dy| add(d_bias, dy));
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
