//! The kernel of [`reroute`](super): one cube per sequence, which places one window of assignments at a time, one per
//! unit.
//!
//! Each placement depends on those before it, but usually agrees with the guess that there is room:
//!
//! ```text
//! window     assignments 8 .. 12, loads of the experts known     A 7 of 8 | B 3 of 8 | C 8 of 8
//!
//! guess      A     A     B     C        each its first candidate
//! round 1    A     D     B     D        room for an assignment: load + picks of earlier units < capacity;
//!                                       if there is none, the next candidate
//! round 2    A     D     B     D        nothing has changed: these are the placements; loads += picks
//! ```
//!
//! In a round that changes nothing, every pick follows from those before it, which only the sequential placements
//! satisfy. The pick of the first unit is right after one round, that of the second after two. So there are at most as
//! many rounds as units, and usually one.

use super::{RerouteOps, RerouteRule};
use crate::kernels::dispatch::{Order, cube::assignment};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, contiguous, empty, over_rows, units};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};

impl RerouteOps for CubeBackend {
    fn moe_reroute(candidates: CubeTensor, rule: RerouteRule) -> CubeTensor {
        let [c, n] = candidates.shape().dims();
        let candidates = contiguous(candidates, DType::I32);
        let experts = empty(&candidates, [rule.top_k, n], DType::I32);
        if n > 0 {
            let units = units(&candidates.client, n / rule.groups * rule.top_k);
            let (count, dim) = over_rows(&candidates.client, rule.groups, units);
            reroute_kernel::launch(
                &candidates.client.clone(),
                count,
                dim,
                candidates.elements(),
                experts.clone().elements(),
                n,
                rule.groups,
                rule.experts,
                rule.top_k,
                c,
                rule.capacity.min(i32::MAX as usize) as i32,
                rule.experts.next_power_of_two(),
                units,
                rule.order == Order::Choice,
            );
        }
        experts
    }
}

#[cube(launch)]
fn reroute_kernel(
    candidates: &[i32],
    experts: &mut [i32],
    n: usize,
    groups: usize,
    e: usize,
    k: usize,
    c: usize,
    capacity: i32,
    #[comptime] table: usize,
    #[comptime] units: usize,
    #[comptime] choice_major: bool,
) {
    let unit = UNIT_POS as usize;
    let tokens = n / groups;
    let load = Shared::<[Atomic<i32>]>::new_slice(table);
    let mut picks = Shared::<[i32]>::new_slice(units);
    // The last round in which a pick changed.
    let changed = Shared::<[Atomic<i32>]>::new_slice(1usize);
    let mut round = 0i32;
    if unit == 0 {
        changed[0].store(0i32);
    }
    let mut group = CUBE_POS;
    while group < groups {
        let mut expert = unit;
        while expert < e {
            load[expert].store(0i32);
            expert += units;
        }
        let mut start = 0usize;
        while start < tokens * k {
            let inside = start + unit < tokens * k;
            let p = assignment(min(start + unit, tokens * k - 1), group, tokens, n, k, choice_major);
            let (choice, token) = (p / n, p % n);
            picks[unit] = select(inside, candidates[p], -1i32);
            sync_cube();

            let mut settled = false.runtime();
            while !settled {
                round += 1i32;
                // The candidates of this assignment: its choice, then the token's reserves.
                let mut pick = (-1i32).runtime();
                let mut next = 0usize;
                while inside && pick < 0i32 && next <= c - k {
                    let candidate = candidates[select(next == 0usize, choice, k + next - 1usize) * n + token];
                    // Checked here: a launch checks bounds in global memory but not in shared memory.
                    let is_expert = candidate >= 0i32 && candidate < e as i32;
                    let known = select(is_expert, candidate, 0i32);
                    let mut fits = has_room(load[known as usize].load(), candidate, capacity, &picks, unit);
                    fits = fits && is_expert;
                    // Both orders place a token's choices in order, so the token holds the choices before this one.
                    for j in 0..choice {
                        let earlier =
                            if comptime!(choice_major) { j * tokens + token % tokens } else { token % tokens * k + j };
                        let here = earlier >= start;
                        let held = select(here, picks[select(here, earlier - start, 0usize)], experts[j * n + token]);
                        fits = fits && held != candidate;
                    }
                    if fits {
                        pick = candidate;
                    }
                    next += 1usize;
                }
                sync_cube();
                if pick != picks[unit] {
                    picks[unit] = pick;
                    changed[0].store(round);
                }
                sync_cube();
                settled = changed[0].load() != round;
            }

            if inside {
                experts[p] = picks[unit];
            }
            if picks[unit] >= 0i32 {
                load[picks[unit] as usize].fetch_add(1i32);
            }
            start += units;
            sync_cube();
        }
        group += CUBE_COUNT;
    }
}

/// Whether `load` and the picks of the units before `unit` leave room at the expert `candidate`.
#[allow(clippy::needless_range_loop)]
#[cube]
fn has_room(load: i32, candidate: i32, capacity: i32, picks: &[i32], unit: usize) -> bool {
    let mut count = load;
    // Usually an expert is already full, or has room for any picks of these units.
    if count < capacity && count + unit as i32 >= capacity {
        for other in 0..unit {
            count += select(picks[other] == candidate, 1i32, 0i32);
        }
    }
    count < capacity
}

/// Lists the kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use reroute_kernel::RerouteKernel;

    let case = |choice_major| {
        KernelCase::new(format!("reroute choice_major={choice_major}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            RerouteKernel::new(s, d, t, b(), b(), (), (), (), (), (), (), 256, 256, choice_major)
        })
    };
    vec![case(false), case(true)]
}
