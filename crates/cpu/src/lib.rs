//! Building blocks of CPU operations: matrix products, loops on all cores, and vector instructions.
//!
//! Use this crate to write an operation in plain Rust. It works on slices, not tensors, and does not depend on Burn;
//! `fused` and `moe` build operations for Burn's backends from it. For the products of a model, call the operations of
//! those crates, which have gradients and also run on GPUs. This crate is not a linear algebra library: it only
//! multiplies dense matrices in f32, bf16 and f16, with sums in f32.
//!
//! | module or item | what it is |
//! |---|---|
//! | [`gemm`] | matrix products, deterministic and batch-invariant, with bias, GELU and residual in the same pass |
//! | [`team`] | loops over all threads of a rayon pool, without waking a thread for each loop |
//! | [`simd`], [`vectorised!`] | the vector instructions in use, and loops that are compiled for each set of them |
//! | [`math`] | `exp`, GELU, sums and loops over rows that compilers vectorize |
//! | [`heads`] | access to the rows of attention heads in place, without copying them |
//! | [`Element`] | f32, bf16 and f16, and their conversion from and to f32 |
//! | [`written`], [`Room`], [`Pieces`] | memory that is written exactly once, and its division among tasks |
//!
//! # Example
//!
//! A linear layer with GELU, on all cores:
//!
//! ```
//! use cpu::gemm::{Epilogue, Matrix, Product, products_with};
//!
//! let (m, k, n) = (2, 3, 2);
//! let (x, weight, bias) = ([1.0, 2.0, 3.0, -1.0, -2.0, -3.0], [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.5, 0.0]);
//! // SAFETY: `products_with` writes every element.
//! let y: Vec<f32> = unsafe {
//!     cpu::written(m * n, |c| {
//!         let product = Product { m, n, k, a: Matrix::new(&x, k), b: Matrix::new(&weight, n), c };
//!         products_with(vec![(product, Epilogue { bias: Some(&bias), gelu: true, ..Epilogue::default() })]);
//!     })
//! };
//! assert_eq!(y, [1.5, 2.0, -0.5, -2.0].map(cpu::math::gelu));
//! ```
//!
//! The unsafe code of this crate is also checked under Miri, valgrind and sanitizers, and the thread team under loom:
//! see `scripts`.

mod element;
pub mod gemm;
pub mod heads;
pub mod math;
mod pieces;
pub mod simd;
pub mod team;
mod uninit;

pub use element::Element;
pub use pieces::Pieces;
pub use uninit::{Room, overwritten, poison_uninitialised, written};
