//! Operations across all units of a plane (warp, subgroup).
//!
//! CubeCL's plane operations cover the units that happen to execute them together. Units that took another branch or
//! left a loop earlier may not have rejoined yet; they are then skipped silently. The operations here wait for the
//! whole plane first, and kernels use only these.
//!
//! Mesa's llvmpipe is an exception. Its planes are vectors, whose units reconverge after every branch. It also treats a
//! plane's barrier as a barrier of the cube, and drops the planes that wait at it when another plane has ended.

// `#[cube]` generates a module and a struct for each function.
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

/// Returns the sum of `value` over the plane, in all of its units.
#[cube]
pub fn sum(value: f32) -> f32 {
    gather();
    plane_sum(value)
}

/// Returns the largest `value` of the plane, in all of its units.
#[cube]
pub fn largest(value: f32) -> f32 {
    gather();
    plane_max(value)
}

/// Returns the smallest `value` of the plane, in all of its units.
#[cube]
pub fn smallest(value: i32) -> i32 {
    gather();
    plane_min(value)
}

/// Returns the `value` of the unit whose index in the plane differs from this one's in the bits of `mask`.
#[cube]
pub fn exchanged(value: f32, mask: u32) -> f32 {
    gather();
    plane_shuffle_xor(value, mask)
}
