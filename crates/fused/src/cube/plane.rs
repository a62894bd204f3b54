//! Operations of all units of a plane (warp, subgroup).
//!
//! CubeCL's own are among the units that happen to execute them together. Units that took another way through an `if`,
//! or left a loop earlier, may not be back yet: they are then left out, and nobody is told. So these wait for the whole
//! plane first, and kernels use no others.
//!
//! Mesa's llvmpipe is the exception. Its planes are vectors, whose units are together behind every branch; and it takes
//! the barrier of a plane for one of the cube, at which it drops the planes that wait when another one has ended.

// `#[cube]` makes a module and a struct beside each function.
#![allow(missing_docs)]

use super::launch::is_llvmpipe;
use cubecl::comptime;
use cubecl::prelude::*;

/// Waits for all units of the plane.
#[cube]
fn gather() {
    let properties = comptime::device_properties();
    if comptime!(!is_llvmpipe(&properties)) {
        sync_plane();
    }
}

/// The sum of `value` over the plane, in all of its units.
#[cube]
pub fn sum(value: f32) -> f32 {
    gather();
    plane_sum(value)
}

/// The largest `value` of the plane, in all of its units.
#[cube]
pub fn largest(value: f32) -> f32 {
    gather();
    plane_max(value)
}

/// The smallest `value` of the plane, in all of its units.
#[cube]
pub fn smallest(value: i32) -> i32 {
    gather();
    plane_min(value)
}

/// The `value` of the unit whose place in the plane differs from this one's in the bits of `mask`.
#[cube]
pub fn exchanged(value: f32, mask: u32) -> f32 {
    gather();
    plane_shuffle_xor(value, mask)
}
