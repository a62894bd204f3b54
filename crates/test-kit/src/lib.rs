//! Helpers that tests of several crates share: numbers to compute with, comparisons, models' parameters, ranks, files.
//!
//! Tests use it as a dev-dependency, so no program contains it.
//!
//! | For | Here |
//! |---|---|
//! | pseudo-random numbers, the same in every run | [`random`], [`eighths`], [`noise`], [`Random`] |
//! | comparison of numbers up to rounding | [`assert_close`], [`largest`], [`worst`] |
//! | how far parameters move in a step | [`moved`], [`assert_moves`] |
//! | memory that a test holds | [`memory::Counting`] |
//! | files | [`reference()`], [`text_folder`] |
//! | tiny models | [`tiny`] |
//! | tests of timeouts | [`patiently`] |
//! | ranks that are processes | [`mpirun`], [`OPEN_MPI`] |
//!
//! With the feature `tensors`, which depends on Burn:
//!
//! | For | Here |
//! |---|---|
//! | tensors from numbers, and back | `float`, `int`, `random_tensor`, `leaf`, `floats`, `ints` |
//! | a module's parameters and gradients | `Values`, `gradients`, `tracked` |
//! | work on ranks that are threads | `on_ranks` |
//! | tensors in a safetensors file | `stored_floats`, `stored_ints` |
//! | what public functions do with invalid arguments | `arguments::check` |
//!
//! With the feature `cubecl`, `kernels::agree` compares kernels with plain Rust.
//!
//! # Unit tests
//!
//! A crate may also use the kit in its unit tests, although the kit depends on `comm` and `fused`. The unit tests of
//! these two crates then see two copies of their own types, one of them through the kit, and can only use items that
//! have none of these types in their signatures.
//!
//! ```
//! use test_kit::{assert_close, largest, random};
//!
//! let expected = random(7, 100);
//! let found: Vec<f32> = expected.iter().map(|value| *value as f32).collect();
//! assert_close("rounded numbers", &found, &expected, 1e-7 * largest(&expected, 0.0));
//! ```

mod close;
mod files;
pub mod memory;
mod moves;
mod patience;
mod processes;
mod random;
pub mod tiny;

#[cfg(feature = "tensors")]
pub mod arguments;
#[cfg(feature = "cubecl")]
pub mod kernels;
#[cfg(feature = "tensors")]
mod modules;
#[cfg(feature = "tensors")]
mod ranks;
#[cfg(feature = "tensors")]
mod stored;
#[cfg(feature = "tensors")]
mod tensors;

pub use close::{assert_close, largest, worst};
pub use files::{reference, text_folder};
pub use moves::{assert_moves, moved};
pub use patience::patiently;
pub use processes::{OPEN_MPI, mpirun};
pub use random::{Random, eighths, noise, random};

#[cfg(feature = "tensors")]
pub use modules::{Values, gradients, tracked};
#[cfg(feature = "tensors")]
pub use ranks::on_ranks;
#[cfg(feature = "tensors")]
pub use stored::{stored_floats, stored_ints};
#[cfg(feature = "tensors")]
pub use tensors::{float, floats, int, ints, leaf, random_tensor};
