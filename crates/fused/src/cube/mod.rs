//! What every CubeCL kernel needs: how it is launched, how numbers are added up over a cube's units, how results are rounded, and how it is
//! compiled for GPUs that are not there.

pub mod launch;
mod math;
#[cfg(feature = "offline")]
pub mod offline;
mod reduce;
mod round;

pub use math::sigmoid;
pub use reduce::{Reduction, cube_reduce, cube_sum};
pub use round::rounded;
