//! One number of all units of a cube.

// `#[cube]` makes a module and a struct beside each function.
#![allow(missing_docs)]
// Kernels have no iterators and no `is_multiple_of`.
#![allow(clippy::needless_range_loop, clippy::manual_is_multiple_of)]

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
/// their order, so it is the same at every run.
///
/// `shared` has room for a number a unit, and nobody else uses it.
#[cube]
pub fn cube_reduce(value: f32, shared: &mut [f32], #[comptime] units: usize, #[comptime] reduction: Reduction) -> f32 {
    // 32 on NVIDIA's GPUs; CubeCL's CPU runtime has planes of one unit and no instructions for them.
    let hardware = comptime::hardware_properties();
    let plane = comptime!(hardware.plane_size_min as usize);
    let mut result = value;
    if comptime!(plane > 1) {
        result = match comptime!(reduction) {
            Reduction::Sum => plane_sum(value),
            Reduction::Max => plane_max(value),
        };
    }
    if comptime!(units > plane) {
        let unit = UNIT_POS as usize;
        // Whoever still reads the result before this one must have it.
        sync_cube();
        if unit % plane == 0usize {
            shared[unit / plane] = result;
        }
        sync_cube();
        result = shared[0];
        for other in 1..comptime!(units / plane) {
            result = match comptime!(reduction) {
                Reduction::Sum => result + shared[other],
                Reduction::Max => max(result, shared[other]),
            };
        }
    }
    result
}
