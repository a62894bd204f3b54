//! Shared parts of CubeCL kernels: launch parameters, reductions over a cube's units, rounding of results, and
//! compilation without a GPU.

#[cfg(feature = "offline")]
pub mod kernels;
pub mod launch;
mod launches;
mod math;
#[cfg(feature = "offline")]
pub mod offline;
pub mod plane;
mod product;
mod reduce;
mod round;
#[cfg(feature = "offline")]
pub mod sources;
pub mod specs;
pub mod testing;
mod unreadable;

pub use launches::launches;
pub use math::sigmoid;
pub(crate) use product::{product, product_into};
pub use reduce::{Reduction, cube_reduce, cube_sum};
pub use round::rounded;
pub use unreadable::unreadable;
