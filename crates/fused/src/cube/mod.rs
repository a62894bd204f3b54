//! What every CubeCL kernel needs: how it is launched, how numbers are added up over a cube's units, how results are
//! rounded, and how it is compiled for GPUs that are not there.

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
pub mod testing;
mod unreadable;

pub use launches::launches;
pub use math::sigmoid;
pub(crate) use product::{product, product_into};
pub use reduce::{Reduction, cube_reduce, cube_sum};
pub use round::rounded;
pub use unreadable::unreadable;
