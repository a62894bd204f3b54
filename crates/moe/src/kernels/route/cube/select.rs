//! The kernel of [`select`](super::super::select): one plane (warp) per token, in a grid-stride loop.
//!
//! ```text
//! E = 10, 4 lanes       lane 0: experts 0 4 8     lane 1: 1 5 9     lane 2: 2 6     lane 3: 3 7
//!
//! for each candidate    each lane finds its best, the plane the best of these (the lower number if two are equal);
//!                       it is removed
//! ```
//!
//! Lanes read adjacent values once and keep them in registers: 2 values each for 64 experts, 8 for 256. Every lane
//! knows the decisions of its plane. CubeCL's CPU runtime has no planes: there a token has one lane, and the rest of
//! the kernel is the same.

use super::super::{GAMMA, Noise, SelectRule};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{Elements, contiguous, empty, over_items, plane_units};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};
use fused::cube::plane;

pub(super) fn select_experts(scores: CubeTensor, bias: CubeTensor, rule: SelectRule) -> CubeTensor {
    let [n, e] = scores.shape().dims();
    let (scores, bias) = (contiguous(scores, DType::F32), contiguous(bias, DType::F32));
    let experts = empty(&scores, [rule.candidates, n], DType::I32);
    if n > 0 {
        let lanes = plane_units(&scores.client);
        let (count, dim) = over_items(&scores.client, n * lanes);
        let noise = rule.noise.unwrap_or(Noise { amplitude: 0.0, key: 0, first_row: 0, seq_len: 1 });
        route_select_kernel::launch(
            &scores.client.clone(),
            count,
            dim,
            scores.elements(),
            bias.elements(),
            experts.clone().elements(),
            n,
            e,
            rule.n_group,
            rule.group_best as u32,
            rule.mask,
            f32::NEG_INFINITY,
            SeedLaunch::new(noise.amplitude, noise.key, noise.first_row, noise.seq_len),
            rule.candidates,
            if rule.n_group > 1 { rule.topk_group } else { 0 },
            rule.noise.is_some(),
            lanes,
            e.div_ceil(lanes),
        );
    }
    experts
}

/// [`Noise`] as a kernel argument.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Seed {
    amplitude: f32,
    key: u32,
    first_row: u32,
    seq_len: usize,
}

/// `best_groups` is the number of groups to choose from, or 0 if experts are not divided into groups. A lane has
/// `share` experts. `lowest` is minus infinity.
#[cube(launch)]
fn route_select_kernel(
    scores: &[f32],
    bias: &[f32],
    experts: &mut [i32],
    n: usize,
    e: usize,
    n_group: usize,
    group_best: u32,
    mask: f32,
    lowest: f32,
    seed: Seed,
    #[comptime] candidates: usize,
    #[comptime] best_groups: usize,
    #[comptime] noisy: bool,
    #[comptime] lanes: usize,
    #[comptime] share: usize,
) {
    let lane = UNIT_POS as usize % lanes;
    let group_size = e / n_group;
    let mut token = ABSOLUTE_POS / lanes;
    while token < n {
        let mut hash = 0u32;
        let mut place = 0u32;
        if comptime!(noisy) {
            let sequence = seed.first_row + (token / seed.seq_len) as u32;
            hash = mix(seed.key ^ mix(sequence + comptime!(GAMMA)));
            place = (token % seed.seq_len) as u32 * e as u32;
        }
        let mut own = Own::new(share);
        #[unroll(lanes > 1)]
        for i in 0..share {
            let expert = i * lanes + lane;
            own.values[i] = lowest;
            own.places[i] = comptime!(i32::MAX);
            if expert < e {
                let noise = noise(hash, place + expert as u32, seed.amplitude, noisy);
                // NaN is chosen last, but is an expert.
                let value = scores[token * e + expert] + bias[expert] + noise;
                let magnitude = u32::reinterpret(value) & 0x7fff_ffffu32;
                own.values[i] = select(magnitude > 0x7f80_0000u32, lowest, value);
                own.places[i] = expert as i32;
            }
        }

        if comptime!(best_groups > 0) {
            let mut groups = Best::new(best_groups);
            for group in 0..n_group {
                let mut first = lowest;
                let mut second = lowest;
                #[unroll(lanes > 1)]
                for i in 0..share {
                    let inside = (i * lanes + lane) / group_size == group;
                    let value = select(inside, own.values[i], lowest);
                    second = max(second, min(first, value));
                    first = max(first, value);
                }
                let largest = plane_largest(first, lanes);
                let owner = plane_lowest(select(first == largest, lane as i32, comptime!(i32::MAX)), lanes);
                let second = plane_largest(select(lane as i32 == owner, second, first), lanes);
                groups.insert(select(group_best == 2u32, largest + second, largest), group as i32);
            }
            #[unroll(lanes > 1)]
            for i in 0..share {
                let expert = i * lanes + lane;
                if expert < e && !groups.contains((expert / group_size) as i32) {
                    own.values[i] = mask;
                }
            }
        }

        #[unroll]
        for j in 0..candidates {
            let chosen = own.take_best(lowest, lanes);
            if lane == comptime!(j % lanes) {
                experts[j * n + token] = chosen;
            }
        }
        token += CUBE_COUNT * CUBE_DIM as usize / lanes;
    }
}

/// A lane's remaining experts and their values. An entry without an expert has the lowest value and `i32::MAX`.
#[derive(CubeType)]
struct Own {
    values: Array<f32>,
    places: Array<i32>,
    #[cube(comptime)]
    share: usize,
}

#[cube]
impl Own {
    fn new(#[comptime] share: usize) -> Self {
        Own { values: Array::<f32>::new(share), places: Array::<i32>::new(share), share }
    }

    /// Removes and returns the plane's expert with the largest value; of equal values, the one with the lowest number.
    fn take_best(&mut self, lowest: f32, #[comptime] lanes: usize) -> i32 {
        let mut value = lowest;
        let mut place = comptime!(i32::MAX).runtime();
        #[unroll(lanes > 1)]
        for i in 0..comptime!(self.share) {
            let better = self.values[i] > value || (self.values[i] == value && self.places[i] < place);
            value = select(better, self.values[i], value);
            place = select(better, self.places[i], place);
        }
        let largest = plane_largest(value, lanes);
        let chosen = plane_lowest(select(value == largest, place, comptime!(i32::MAX)), lanes);
        #[unroll(lanes > 1)]
        for i in 0..comptime!(self.share) {
            if self.places[i] == chosen {
                self.values[i] = lowest;
                self.places[i] = comptime!(i32::MAX);
            }
        }
        chosen
    }
}

#[cube]
fn plane_largest(value: f32, #[comptime] lanes: usize) -> f32 {
    if comptime!(lanes > 1) { plane::largest(value) } else { value }
}

#[cube]
fn plane_lowest(value: i32, #[comptime] lanes: usize) -> i32 {
    if comptime!(lanes > 1) { plane::smallest(value) } else { value }
}

/// The largest values so far with their places, best first; the place of a free entry is -1.
#[derive(CubeType)]
struct Best {
    values: Array<f32>,
    places: Array<i32>,
    #[cube(comptime)]
    len: usize,
}

#[cube]
impl Best {
    fn new(#[comptime] len: usize) -> Self {
        let mut values = Array::<f32>::new(len);
        let mut places = Array::<i32>::new(len);
        #[unroll]
        for i in 0..len {
            values[i] = 0.0f32;
            places[i] = -1i32;
        }
        Best { values, places, len }
    }

    /// Places come in increasing order, so a value goes after equal ones: the first entry that is free or smaller takes
    /// it, and the entries from there on move down by one.
    fn insert(&mut self, value: f32, place: i32) {
        let len = comptime!(self.len);
        if self.places[len - 1] < 0i32 || value > self.values[len - 1] {
            let mut value = value;
            let mut place = place;
            let mut moving = false.runtime();
            #[unroll]
            for i in 0..len {
                let (old, old_place) = (self.values[i], self.places[i]);
                moving = moving || old_place < 0i32 || value > old;
                self.values[i] = select(moving, value, old);
                self.places[i] = select(moving, place, old_place);
                value = select(moving, old, value);
                place = select(moving, old_place, place);
            }
        }
    }

    fn contains(&self, place: i32) -> bool {
        let mut found = false.runtime();
        #[unroll]
        for i in 0..comptime!(self.len) {
            found = found || self.places[i] == place;
        }
        found
    }
}

/// [`Noise::at`], from the hash of key and sequence, and the place of token and expert in the sequence.
#[cube]
fn noise(hash: u32, place: u32, amplitude: f32, #[comptime] noisy: bool) -> f32 {
    if comptime!(noisy) {
        let number = mix(hash + place * comptime!(GAMMA));
        let unit = f32::cast_from(number >> 8u32) * comptime!(2.0 / (1 << 24) as f32) - 1.0f32;
        // Rounded before it is added to the score: a compiler may contract a product and a sum into one rounding, but
        // not this.
        fma(amplitude, unit, 0.0f32)
    } else {
        0.0f32.runtime()
    }
}

/// The same as the host's `mix`.
#[cube]
fn mix(number: u32) -> u32 {
    let mut x = number;
    x = (x ^ (x >> 16u32)) * 0x7feb_352du32;
    x = (x ^ (x >> 15u32)) * 0x846c_a68bu32;
    x ^ (x >> 16u32)
}

#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    use route_select_kernel::RouteSelectKernel;

    let case = |e: usize, candidates, best_groups, noisy| {
        let name = format!("route select e={e} candidates={candidates} best_groups={best_groups} noisy={noisy}");
        KernelCase::new(name, move |gpu| {
            let (b, seed) = (buffer, SeedCompilationArg { amplitude: (), key: (), first_row: (), seq_len: () });
            let (s, d, t) = (gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            let share = e.div_ceil(32);
            RouteSelectKernel::new(
                s,
                d,
                t,
                b(),
                b(),
                b(),
                (),
                (),
                (),
                (),
                (),
                (),
                seed,
                candidates,
                best_groups,
                noisy,
                32,
                share,
            )
        })
    };
    vec![
        case(8, 2, 0, false),
        case(64, 6, 0, true),
        case(160, 6, 3, false),
        case(256, 8, 4, true),
        case(256, 16, 4, true),
    ]
}
