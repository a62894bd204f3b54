//! What every CubeCL kernel needs: how it is launched, how results are rounded, and how it is compiled for GPUs that are not there.

pub mod launch;
#[cfg(feature = "offline")]
pub mod offline;
mod round;

pub use round::rounded;
