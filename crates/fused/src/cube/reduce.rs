//! One number of all units of a cube.

// `#[cube]` makes a module and a struct beside each function.
#![allow(missing_docs)]
// Kernels have no iterators and no `is_multiple_of`.
#![allow(clippy::needless_range_loop, clippy::manual_is_multiple_of)]

use super::launch::{fixed_plane, has_planes};
use super::plane;
use cubecl::comptime;
use cubecl::prelude::*;

/// What becomes of the units' numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}

/// The sum of `value` over all units of the cube, in all of them; see [`cube_reduce`].
#[cube]
pub fn cube_sum(value: f32, shared: &mut [f32], #[comptime] units: usize) -> f32 {
    cube_reduce(value, shared, units, Reduction::Sum)
}

/// The reduction of `value` over all units of the cube, in all of them: first in each plane, then over the planes in
/// their order, so it is the same at every run on a device whose planes have one size.
///
/// `shared` has room for a number a unit, and nobody else uses it. `units` is a power of two.
#[cube]
pub fn cube_reduce(value: f32, shared: &mut [f32], #[comptime] units: usize, #[comptime] reduction: Reduction) -> f32 {
    let mut result = value;
    // The number of units is the device's: 32 on NVIDIA's GPUs, from 8 to 64 on others, where it may differ between kernels.
    let mut width = 1usize.runtime();
    let properties = comptime::device_properties();
    if comptime!(has_planes(&properties)) {
        // A constant where it can be one: the kernel needs fewer registers.
        let fixed = comptime!(fixed_plane(&properties).min(units));
        width = if comptime!(fixed > 0) { fixed.runtime() } else { min(PLANE_DIM as usize, units) };
        result = match comptime!(reduction) {
            Reduction::Sum => plane::sum(value),
            Reduction::Max => plane::largest(value),
        };
    }
    if units > width {
        let unit = UNIT_POS as usize;
        // Whoever still reads the result before this one must have it.
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
