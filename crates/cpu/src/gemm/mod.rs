//! Matrix products on the CPU: fast, deterministic and batch-invariant.
//!
//! [`products`] computes a list of products `C = A B` on the current rayon pool. It takes a list because a layer of
//! experts is many small products with different numbers of rows, and threads share a list better than single products.
//!
//! # Order of summation
//!
//! An element of `C` is a sum over `k`, always added in the same order:
//!
//! ```text
//! c = 0
//! for each block of KC = 256 consecutive values of p (the last may be shorter):
//!     s = 0
//!     for p in the block: s = fma(a[i, p], b[p, j], s)
//!     c = c + s
//! ```
//!
//! Nothing else affects it: neither `m` nor `n`, nor the position `(i, j)`, nor the other products of the list, nor the
//! number of threads. So the result of a row is bitwise the same alone and in a batch. Sums in blocks are also more
//! accurate than one long chain: rounding errors grow with `KC + k / KC` instead of `k`. Everything between packing and
//! the last rounding is `f32`, even for 16-bit elements. (A machine without FMA instructions also rounds the product;
//! the order is the same, but the bits differ.)
//!
//! If the processor has AVX512-BF16, `bf16` values are processed in pairs, and a block has `KC` pairs:
//!
//! ```text
//! c = 0
//! for each block of 2 KC = 512 consecutive values of p (the last may be shorter):
//!     s = 0
//!     for each pair p, p + 1 in the block: s = s + a[i, p] b[p, j] + a[i, p + 1] b[p + 1, j]
//!     c = c + s
//! ```
//!
//! A last `p` without a partner is paired with zeros. The processor determines how one instruction rounds between its
//! two products and the sum, and it treats subnormal numbers as zero. Everything else is as above.
//!
//! With AMX, which is used instead if the processor has it, an instruction adds 16 such pairs. Subnormal numbers are
//! zero here too.
//!
//! ```text
//! c = 0
//! for each block of 2 KC = 512 consecutive values of p (the last may be shorter):
//!     s = 0
//!     for each 32 values in the block (the last may be fewer):
//!         even = odd = 0
//!         for each pair p, p + 1: even = fma(a[i, p], b[p, j], even), odd = fma(a[i, p + 1], b[p + 1, j], odd)
//!         s = s + (even + odd)
//!     c = c + s
//! ```
//!
//! An [`Epilogue`] is a function of one element of `C` and of others at the same position, so it changes none of this.
//!
//! # Structure
//!
//! The structure is that of BLIS: `kernel` holds a small tile of `C` in registers and loops over one block of `k`;
//! `pack` copies blocks of `A` and `B` into the order in which the kernel reads them; `run` computes one rectangle of a
//! `C` with both, and finishes its rows with `epilogue`; `task` splits the products into such rectangles, all of
//! similar size. Each thread takes the next task until none is left.

#[cfg(target_arch = "x86_64")]
mod amx;
mod epilogue;
mod kernel;
mod pack;
mod run;
mod task;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use task::product_here;

use crate::Element;
use std::mem::MaybeUninit;

/// A view of a matrix: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
///
/// One of the strides should be 1 (row-major, or a transposed view of row-major). Other strides work, but are slow.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    /// All elements of the view, possibly among others.
    pub data: &'a [T],
    /// Stride from a row to the next.
    pub row_stride: usize,
    /// Stride from a column to the next.
    pub col_stride: usize,
}

/// One product `C = A B` of a list: `A` is `[m, k]`, `B` is `[k, n]`, `C` is `[m, n]`, row-major and contiguous.
///
/// `C` is overwritten and never read before it is written. With `k = 0` it becomes zeros.
pub struct Product<'a, T> {
    /// Rows of `A` and `C`.
    pub m: usize,
    /// Columns of `B` and `C`.
    pub n: usize,
    /// Columns of `A`, rows of `B`.
    pub k: usize,
    /// `[m, k]`
    pub a: Matrix<'a, T>,
    /// `[k, n]`
    pub b: Matrix<'a, T>,
    /// `[m, n]`; every element is written.
    pub c: &'a mut [MaybeUninit<T>],
}

impl<'a, T> Matrix<'a, T> {
    /// A view of row-major data with rows of this width.
    pub fn new(data: &'a [T], width: usize) -> Self {
        Self { data, row_stride: width, col_stride: 1 }
    }

    /// The same data with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// Whether all elements of a `[rows, cols]` matrix are inside the data.
    fn holds(&self, rows: usize, cols: usize) -> bool {
        let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        rows == 0
            || cols == 0
            || last(rows, self.row_stride)
                .zip(last(cols, self.col_stride))
                .and_then(|(row, col)| row.checked_add(col))
                .is_some_and(|index| index < self.data.len())
    }
}

/// What happens to the sums of a product while they are in the cache, all in `f32`:
///
/// ```text
/// x = A B + bias               written to `pre_activation`
/// C = gelu(x) + residual
/// ```
///
/// Every part is optional.
pub struct Epilogue<'a, T> {
    /// `[n]`, added to every row.
    pub bias: Option<&'a [T]>,
    /// `[m, n]`: receives the sums with the bias, rounded; every element is written.
    pub pre_activation: Option<&'a mut [MaybeUninit<T>]>,
    /// Whether to apply GELU in its tanh form; see [`gelu`](crate::math::gelu).
    pub gelu: bool,
    /// `[m, n]`, added last.
    pub residual: Option<&'a [T]>,
}

/// No epilogue.
impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self { bias: None, pre_activation: None, gelu: false, residual: None }
    }
}

/// Computes all products on the current rayon pool.
///
/// # Panics
///
/// If a matrix is larger than its data, or `c` does not have `m * n` elements.
pub fn products<T: Element>(list: Vec<Product<'_, T>>) {
    products_with(list.into_iter().map(|product| (product, Epilogue::default())).collect());
}

/// Computes all products, each with its epilogue, on the current rayon pool.
///
/// # Panics
///
/// Like [`products`], or if a part of an epilogue does not have the documented number of elements.
pub fn products_with<T: Element>(mut list: Vec<(Product<'_, T>, Epilogue<'_, T>)>) {
    for (product, epilogue) in &list {
        let (m, n, k) = (product.m, product.n, product.k);
        assert!(product.a.holds(m, k), "products: A [{m}, {k}] is larger than its data");
        assert!(product.b.holds(k, n), "products: B [{k}, {n}] is larger than its data");
        let len = product.c.len();
        assert!(Some(len) == m.checked_mul(n), "products: C must be [{m}, {n}], not {len} elements");
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == n), "products: the bias must be [{n}]");
        let as_c = |other: Option<usize>, name| {
            assert!(other.is_none_or(|other| other == len), "products: {name} must be as C")
        };
        as_c(epilogue.pre_activation.as_ref().map(|to| to.len()), "the pre-activation");
        as_c(epilogue.residual.map(<[T]>::len), "the residual");
    }
    list.retain(|(product, _)| !product.c.is_empty());
    task::multiply(list);
}
