//! Reductions over all units of a cube.

// `#[cube]` generates a module and a struct for each function.
#![allow(missing_docs)]
// Kernels have no iterators and no `is_multiple_of`.
#![allow(clippy::needless_range_loop, clippy::manual_is_multiple_of)]

use super::launch::{fixed_plane, has_planes};
use super::plane;
use cubecl::comptime;
use cubecl::prelude::*;

/// How the units' numbers are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest of them.
    Max,
}

/// Returns the sum of `value` over all units of the cube, in all of them; see [`cube_reduce()`].
#[cube]
pub fn cube_sum(value: f32, shared: &mut [f32], #[comptime] units: usize) -> f32 {
    cube_reduce(value, shared, units, Reduction::Sum)
}

/// Returns the reduction of `value` over all units of the cube, in all of them.
///
/// It reduces each plane first, then the planes in order, so the result is reproducible on a device whose planes have
/// one size. `shared` must have room for one number per unit and must not be used for anything else. `units` is a power
/// of two.
#[cube]
pub fn cube_reduce(value: f32, shared: &mut [f32], #[comptime] units: usize, #[comptime] reduction: Reduction) -> f32 {
    let mut result = value;
    // The width of a plane depends on the device: 32 on NVIDIA GPUs, 8 to 64 on others, where it may differ between
    // kernels.
    let mut width = 1usize.runtime();
    let properties = comptime::device_properties();
    if comptime!(has_planes(&properties)) {
        // A constant if possible, which saves registers.
        let fixed = comptime!(fixed_plane(&properties).min(units));
        width = if comptime!(fixed > 0) { fixed.runtime() } else { min(PLANE_DIM as usize, units) };
        result = match comptime!(reduction) {
            Reduction::Sum => plane::sum(value),
            Reduction::Max => plane::largest(value),
        };
    }
    if units > width {
        let unit = UNIT_POS as usize;
        // Waits for units that still read the result of a previous reduction.
        sync_cube();
        if unit % width == 0usize {
            shared[unit / width] = result;
        }
        sync_cube();
        result = shared[0];
        for other in 1..units / width {
            result = match comptime!(reduction) {
                Reduction::Sum => result + shared[other],
                Reduction::Max => max(result, shared[other]),
            };
        }
    }
    result
}
