//! The kernel of [`select`](super::super::select): one unit a token, tokens dealt out in strides.
//!
//! A unit reads its token's row of scores once, and once before where experts are divided into groups. The best experts so far are a
//! sorted list of `candidates` numbers in registers; nothing is shared between units.

use super::super::{GAMMA, Noise, SelectRule};
use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use fused::cube::launch::{contiguous, empty, over_items};
#[cfg(feature = "offline")]
use fused::cube::offline::{KernelCase, buffer};

pub(crate) fn select_experts(scores: CubeTensor, bias: CubeTensor, rule: SelectRule) -> CubeTensor {
    let [n, e] = scores.shape().dims();
    let (scores, bias) = (contiguous(scores, DType::F32), contiguous(bias, DType::F32));
    let experts = empty(&scores, [rule.candidates, n], DType::I32);
    if n > 0 {
        let (count, dim) = over_items(&scores.client, n);
        let noise = rule.noise.unwrap_or(Noise { amplitude: 0.0, key: 0, first_row: 0, seq_len: 1 });
        select_kernel::launch(
            &scores.client.clone(),
            count,
            dim,
            scores.into_buffer_arg(),
            bias.into_buffer_arg(),
            experts.clone().into_buffer_arg(),
            n,
            e,
            rule.n_group,
            rule.group_best as u32,
            rule.mask,
            SeedLaunch::new(noise.amplitude, noise.key, noise.first_row, noise.seq_len),
            rule.candidates,
            if rule.n_group > 1 { rule.topk_group } else { 0 },
            rule.noise.is_some(),
        );
    }
    experts
}

/// [`Noise`] as an argument of a kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Seed {
    amplitude: f32,
    key: u32,
    first_row: u32,
    seq_len: usize,
}

/// `best_groups` is how many groups of experts are chosen from; 0 where they are not divided.
#[cube(launch)]
fn select_kernel(
    scores: &[f32],
    bias: &[f32],
    experts: &mut [i32],
    n: usize,
    e: usize,
    n_group: usize,
    group_best: u32,
    mask: f32,
    seed: Seed,
    #[comptime] candidates: usize,
    #[comptime] best_groups: usize,
    #[comptime] noisy: bool,
) {
    let group_size = e / n_group;
    let mut token = ABSOLUTE_POS;
    while token < n {
        let row = token * e;
        let mut hash = 0u32;
        let mut place = 0u32;
        if comptime!(noisy) {
            let sequence = seed.first_row + (token / seed.seq_len) as u32;
            hash = mix(seed.key ^ mix(sequence + comptime!(GAMMA)));
            place = (token % seed.seq_len) as u32 * e as u32;
        }

        let mut groups = Best::new(best_groups);
        if comptime!(best_groups > 0) {
            for group in 0..n_group {
                let mut first = f32::min_value();
                let mut second = f32::min_value();
                for i in 0..group_size {
                    let expert = group * group_size + i;
                    let noise = noise(hash, place + expert as u32, seed.amplitude, noisy);
                    let value = scores[row + expert] + bias[expert] + noise;
                    second = max(second, min(first, value));
                    first = max(first, value);
                }
                groups.insert(select(group_best == 2u32, first + second, first), group as i32);
            }
        }

        let mut best = Best::new(candidates);
        for group in 0..n_group {
            let mut inside = true.runtime();
            if comptime!(best_groups > 0) {
                inside = groups.contains(group as i32);
            }
            for i in 0..group_size {
                let expert = group * group_size + i;
                let noise = noise(hash, place + expert as u32, seed.amplitude, noisy);
                let value = scores[row + expert] + bias[expert] + noise;
                best.insert(select(inside, value, mask), expert as i32);
            }
        }
        #[unroll]
        for j in 0..candidates {
            experts[j * n + token] = best.places[j];
        }
        token += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The largest values so far with their places, best first; a free entry's place is -1.
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

    /// Places come in increasing order, so a value goes behind those that are equal to it: the first entry that is free or smaller
    /// takes it, and everything from there on moves down by one.
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

/// [`Noise::at`] from the hash of the key and the sequence, and the place of token and expert in the sequence.
#[cube]
fn noise(hash: u32, place: u32, amplitude: f32, #[comptime] noisy: bool) -> f32 {
    if comptime!(noisy) {
        let number = mix(hash + place * comptime!(GAMMA));
        let unit = f32::cast_from(number >> 8u32) * comptime!(2.0 / (1 << 24) as f32) - 1.0f32;
        // Rounded before it is added to the score: a compiler may contract a product and a sum into one rounding, but not this.
        fma(amplitude, unit, 0.0f32)
    } else {
        0.0f32.runtime()
    }
}

/// The `mix` of the plain Rust.
#[cube]
fn mix(number: u32) -> u32 {
    let mut x = number;
    x = (x ^ (x >> 16u32)) * 0x7feb_352du32;
    x = (x ^ (x >> 15u32)) * 0x846c_a68bu32;
    x ^ (x >> 16u32)
}

#[cfg(feature = "offline")]
pub(super) fn cases() -> Vec<KernelCase> {
    use select_kernel::SelectKernel;

    let case = |candidates, best_groups, noisy| {
        let name = format!("select candidates={candidates} best_groups={best_groups} noisy={noisy}");
        KernelCase::new(name, move |gpu| {
            let (b, seed) = (buffer, SeedCompilationArg { amplitude: (), key: (), first_row: (), seq_len: () });
            let (s, d, t) = (gpu.settings(CubeDim::new_1d(256)), gpu.device(), gpu.target());
            SelectKernel::new(s, d, t, b(), b(), b(), (), (), (), (), (), seed, candidates, best_groups, noisy)
        })
    };
    vec![case(1, 0, false), case(2, 0, true), case(8, 0, false), case(8, 4, true), case(16, 4, true)]
}
