//! Where the tokens of a step went, and the selection bias that follows from it.

use moe::MoeStats;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a rank's mixtures of experts did in the last step, by layer and micro-batch. A forward that is run again for its activations
/// writes in the same place, so nothing is counted twice, and so does the next step.
#[derive(Clone, Default)]
pub(crate) struct ExpertLoads(Arc<Mutex<BTreeMap<Place, MoeStats>>>);

/// A layer, and the first row of a micro-batch in the step's global batch.
type Place = (usize, u64);

/// One layer's tokens in a step, by expert.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerLoad {
    pub layer: usize,
    /// Choices.
    pub assigned: Vec<f64>,
    /// Choices that no expert took.
    pub dropped: Vec<f64>,
    /// Sum of gates.
    pub gate_mass: Vec<f64>,
}

impl ExpertLoads {
    pub fn record(&self, layer: usize, first_row: u64, stats: MoeStats) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((layer, first_row), stats);
    }

    /// Each expert's choices in each of `layers`, one layer after another; 0 where this rank has none.
    pub fn assigned(&self, layers: &[usize], experts: usize) -> Vec<f64> {
        self.sums(layers, experts, |stats| stats.assigned_e().into_data().iter::<f64>().collect())
    }

    /// All that [`LayerLoad`] holds, as one list of numbers that ranks can add up; [`layer_loads`] reads it.
    pub fn all_sums(&self, layers: &[usize], experts: usize) -> Vec<f64> {
        let dropped = self.sums(layers, experts, |stats| stats.dropped_e().into_data().iter::<f64>().collect());
        let gate_mass = self.sums(layers, experts, |stats| stats.gate_mass_e().into_data().iter::<f64>().collect());
        [self.assigned(layers, experts), dropped, gate_mass].concat()
    }

    fn sums(&self, layers: &[usize], experts: usize, of: impl Fn(&MoeStats) -> Vec<f64>) -> Vec<f64> {
        let mut sums = vec![0.0; layers.len() * experts];
        for ((layer, _), stats) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let Some(i) = layers.iter().position(|of| of == layer) else { continue };
            sums[i * experts..][..experts].iter_mut().zip(of(stats)).for_each(|(sum, value)| *sum += value);
        }
        sums
    }
}

/// The parts of [`ExpertLoads::all_sums`] by layer.
pub(crate) fn layer_loads(sums: &[f64], layers: &[usize], experts: usize) -> Vec<LayerLoad> {
    let part = |which: usize, i: usize| sums[(which * layers.len() + i) * experts..][..experts].to_vec();
    let load = |(i, layer): (usize, &usize)| LayerLoad {
        layer: *layer,
        assigned: part(0, i),
        dropped: part(1, i),
        gate_mass: part(2, i),
    };
    layers.iter().enumerate().map(load).collect()
}

/// How the selection bias of each expert moves: `speed` up where it had fewer tokens than the mean of all, down where it had more
/// (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
pub(crate) fn bias_update(assigned: &[f64], speed: f64) -> Vec<f32> {
    let mean = assigned.iter().sum::<f64>() / assigned.len() as f64;
    let step = |load: &f64| if *load == mean { 0.0 } else { (speed * (mean - load).signum()) as f32 };
    assigned.iter().map(step).collect()
}

impl LayerLoad {
    /// The busiest expert's choices over the mean of all.
    pub fn max_ratio(&self) -> f64 {
        self.assigned.iter().copied().fold(0.0, f64::max) / self.mean()
    }

    /// Standard deviation over mean of the experts' choices.
    pub fn cv(&self) -> f64 {
        let mean = self.mean();
        let variance = self.assigned.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / self.assigned.len() as f64;
        variance.sqrt() / mean
    }

    /// Share of the choices that no expert took.
    pub fn dropped_share(&self) -> f64 {
        self.dropped.iter().sum::<f64>() / self.assigned.iter().sum::<f64>()
    }

    fn mean(&self) -> f64 {
        self.assigned.iter().sum::<f64>() / self.assigned.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_of_a_busy_expert_falls_and_that_of_an_idle_one_rises() {
        assert_eq!(bias_update(&[4.0, 0.0, 2.0, 2.0], 0.5), [-0.5, 0.5, 0.0, 0.0]);
        assert_eq!(bias_update(&[3.0, 3.0], 0.5), [0.0, 0.0]);
    }

    #[test]
    fn even_loads_have_no_variation_and_the_busiest_expert_is_the_mean() {
        let load = |assigned: [f64; 4], dropped: [f64; 4]| LayerLoad {
            layer: 0,
            assigned: assigned.into(),
            dropped: dropped.into(),
            gate_mass: vec![],
        };
        let even = load([2.0; 4], [0.0; 4]);
        assert_eq!((even.cv(), even.max_ratio(), even.dropped_share()), (0.0, 1.0, 0.0));
        let uneven = load([8.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]);
        assert_eq!((uneven.cv(), uneven.max_ratio(), uneven.dropped_share()), (3.0f64.sqrt(), 4.0, 0.25));
    }
}
