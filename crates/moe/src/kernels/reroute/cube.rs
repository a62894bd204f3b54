//! The kernel of [`reroute`](super): one unit a sequence, because each placement depends on those before it.
//!
//! A unit counts its experts' loads in a row of its own of `load`, `[groups, e]`, and reads back choices that it has written itself, so
//! no two units touch the same element.

use super::RerouteRule;
use crate::kernels::dispatch::{Order, cube::assignment};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{contiguous, empty, over_items};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};

pub(crate) fn reroute(candidates: CubeTensor, rule: RerouteRule) -> CubeTensor {
    let [c, n] = candidates.shape().dims();
    let candidates = contiguous(candidates, DType::I32);
    let experts = empty(&candidates, [rule.top_k, n], DType::I32);
    if n > 0 {
        let load = empty(&candidates, [rule.groups, rule.experts], DType::I32);
        let (count, dim) = over_items(&candidates.client, rule.groups);
        reroute_kernel::launch(
            &candidates.client.clone(),
            count,
            dim,
            candidates.into_buffer_arg(),
            experts.clone().into_buffer_arg(),
            load.into_buffer_arg(),
            n,
            rule.groups,
            rule.experts,
            rule.top_k,
            c,
            rule.capacity.min(i32::MAX as usize) as i32,
            rule.order == Order::Choice,
        );
    }
    experts
}

#[cube(launch)]
fn reroute_kernel(
    candidates: &[i32],
    experts: &mut [i32],
    load: &mut [i32],
    n: usize,
    groups: usize,
    e: usize,
    k: usize,
    c: usize,
    capacity: i32,
    #[comptime] choice_major: bool,
) {
    let tokens = n / groups;
    let mut group = ABSOLUTE_POS;
    while group < groups {
        for i in 0..e {
            load[group * e + i] = 0i32;
        }
        for i in 0..tokens * k {
            let p = assignment(i, group, tokens, n, k, choice_major);
            let (choice, token) = (p / n, p % n);
            // The candidates of this assignment: its own, and then the token's reserves.
            let mut expert = (-1i32).runtime();
            let mut next = 0usize;
            while expert < 0i32 && next <= c - k {
                let candidate = candidates[select(next == 0usize, choice, k + next - 1usize) * n + token];
                // Both orders place a token's choices in order: what it holds are the choices before this one.
                let mut fits = load[group * e + candidate as usize] < capacity;
                for j in 0..choice {
                    fits = fits && experts[j * n + token] != candidate;
                }
                if fits {
                    expert = candidate;
                }
                next += 1usize;
            }
            if expert >= 0i32 {
                load[group * e + expert as usize] += 1i32;
            }
            experts[p] = expert;
        }
        group += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The kernel with typical compile-time values.
#[cfg(feature = "offline")]
pub(crate) fn cases() -> Vec<KernelCase> {
    use reroute_kernel::RerouteKernel;

    let case = |choice_major| {
        KernelCase::new(format!("reroute choice_major={choice_major}"), move |gpu| {
            let (b, s, d, t) = (buffer, gpu.settings(CubeDim::new_1d(32)), gpu.device(), gpu.target());
            RerouteKernel::new(s, d, t, b(), b(), b(), (), (), (), (), (), (), choice_major)
        })
    };
    vec![case(false), case(true)]
}
