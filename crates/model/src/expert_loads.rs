//! Expert loads of a step, and the selection bias that follows them.

use burn::tensor::Tensor;
use moe::{MoeConfig, MoeLayer, MoeStats};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A rank's expert loads in a step: sums over its micro-batches, kept on the device and read once for all layers. Only
/// requested sums are computed.
#[derive(Clone, Default)]
pub struct ExpertLoads {
    /// Whether every step's assignments are needed because the selection bias follows them.
    pub follows: bool,
    step: Arc<Mutex<StepLoads>>,
}

#[derive(Default)]
struct StepLoads {
    /// Whether the step reports all sums.
    report: bool,
    /// Layers and micro-batches (by first row) already in the sums, so that a recomputed forward is not counted twice.
    counted: HashSet<(usize, u64)>,
    /// Sums per layer: `[1, e]` assigned, or `[3, e]` assigned, dropped and gate mass. Counts are exact up to 2^24.
    sums_se: BTreeMap<usize, Tensor<2>>,
}

/// One layer's load in a step, per expert.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerLoad {
    /// Number of the block.
    pub layer: usize,
    /// Tokens routed to the expert.
    pub assigned: Vec<f64>,
    /// Assignments among these that no expert took.
    pub dropped: Vec<f64>,
    /// Sum of the gates.
    pub gate_mass: Vec<f64>,
}

impl ExpertLoads {
    /// Creates the loads of a run, before its first step.
    pub fn new(moe: Option<&MoeConfig>) -> Self {
        let follows = moe.is_some_and(|moe| moe.bias_update_speed != 0.0);
        Self { follows, step: Arc::default() }
    }

    /// Starts a step, and forgets the sums of the step before. Call it before each step of your own loop: without it, the
    /// micro-batches of later steps are taken for repetitions. With `report`, all sums are recorded, otherwise only those
    /// the selection bias follows.
    pub fn begin(&self, report: bool) {
        *self.lock() = StepLoads { report, ..StepLoads::default() };
    }

    /// Adds the statistics of `layer` for the micro-batch that begins at `first_row` of the step's global batch. A second
    /// call with the same `layer` and `first_row` adds nothing, because a forward may be recomputed.
    pub fn record(&self, layer: usize, first_row: u64, stats: &MoeStats) {
        let mut step = self.lock();
        if !(step.report || self.follows) || !step.counted.insert((layer, first_row)) {
            return;
        }
        let mut sums = vec![stats.assigned_e().float()];
        if step.report {
            sums.extend([stats.dropped_e().float(), stats.gate_mass_e()]);
        }
        let new_se = Tensor::stack(sums, 0);
        let sum_se = match step.sums_se.remove(&layer) {
            Some(sum_se) => sum_se + new_se,
            None => new_se,
        };
        step.sums_se.insert(layer, sum_se);
    }

    /// The sums of each of `layers`, concatenated, as numbers that ranks can add up and [`layer_loads`] reads. Layers
    /// this rank does not have and sums that were not requested are 0.
    pub fn sums(&self, layers: &[usize], experts: usize) -> Vec<f64> {
        let step = self.lock();
        let found = layers.iter().enumerate().filter_map(|(i, layer)| Some((i, step.sums_se.get(layer)?.clone())));
        let (places, sums): (Vec<usize>, Vec<_>) = found.unzip();
        let mut all = vec![0.0; layers.len() * 3 * experts];
        if let Some(len) = sums.first().map(|sum_se| sum_se.shape().num_elements()) {
            let values: Vec<f64> = Tensor::cat(sums, 0).into_data().iter::<f64>().collect();
            for (i, values) in places.into_iter().zip(values.chunks(len)) {
                all[i * 3 * experts..][..len].copy_from_slice(values);
            }
        }
        all
    }

    /// The numbers that all ranks add up in this step: the [`sums`](Self::sums) of all layers with experts; empty if
    /// the step is not reported and no selection bias follows it.
    pub fn numbers(&self, expert_layers: Option<(Vec<usize>, usize)>) -> Vec<f64> {
        match expert_layers {
            Some((layers, experts)) if self.follows || self.lock().report => self.sums(&layers, experts),
            _ => vec![],
        }
    }

    /// Updates the selection biases of these layers, each given with its block number, after a step on one device.
    pub(crate) fn update_biases<'a>(&self, layers: impl Iterator<Item = (usize, &'a mut MoeLayer)>) {
        let step = self.lock();
        for (number, layer) in layers {
            if let Some(sums_se) = step.sums_se.get(&number) {
                layer.update_bias_from(sums_se.clone().slice_dim(0, 0..1).squeeze_dim(0));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, StepLoads> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits [`ExpertLoads::sums`] by layer.
pub fn layer_loads(sums: &[f64], layers: &[usize], experts: usize) -> Vec<LayerLoad> {
    let load = |(layer, sums): (&usize, &[f64])| LayerLoad {
        layer: *layer,
        assigned: sums[..experts].to_vec(),
        dropped: sums[experts..2 * experts].to_vec(),
        gate_mass: sums[2 * experts..].to_vec(),
    };
    layers.iter().zip(sums.chunks(3 * experts)).map(load).collect()
}

impl LayerLoad {
    /// The busiest expert's load over the mean.
    pub fn max_ratio(&self) -> f64 {
        self.assigned.iter().copied().fold(0.0, f64::max) / self.mean()
    }

    /// Standard deviation of the loads over their mean.
    pub fn cv(&self) -> f64 {
        let mean = self.mean();
        let variance = self.assigned.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / self.assigned.len() as f64;
        variance.sqrt() / mean
    }

    /// Fraction of the assignments that were dropped.
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
    use burn::tensor::{Device, Distribution};

    const EXPERTS: usize = 4;

    fn layer() -> MoeLayer {
        let config = MoeConfig { num_experts: EXPERTS, top_k: 2, capacity_factor: Some(1.0), ..MoeConfig::default() };
        config.init(8, &Device::flex())
    }

    /// Statistics of a micro-batch of two sequences.
    fn stats(layer: &MoeLayer) -> MoeStats {
        let x_btd = Tensor::random([2, 1024, 8], Distribution::Default, &Device::flex());
        layer.forward(x_btd, None).stats
    }

    fn values(tensor: Tensor<1>) -> Vec<f64> {
        tensor.into_data().iter::<f64>().collect()
    }

    fn loads(bias_update_speed: f64) -> ExpertLoads {
        ExpertLoads::new(Some(&MoeConfig { bias_update_speed, ..MoeConfig::default() }))
    }

    #[test]
    fn a_step_counts_each_micro_batch_of_a_layer_once_and_the_next_one_begins_anew() {
        let (loads, layer) = (loads(0.0), layer());
        let [before, a, b, other_layer] = [(); 4].map(|()| stats(&layer));
        loads.begin(true);
        loads.record(1, 0, &before);
        loads.begin(true);
        loads.record(1, 0, &a);
        loads.record(1, 2, &b);
        loads.record(3, 0, &other_layer);
        loads.record(1, 0, &a); // recomputed for the backward

        let found = layer_loads(&loads.sums(&[1, 2, 3], EXPERTS), &[1, 2, 3], EXPERTS);
        let sum = |of: fn(&MoeStats) -> Tensor<1>| values(of(&a) + of(&b));
        let expected = LayerLoad {
            layer: 1,
            assigned: sum(|stats| stats.assigned_e().float()),
            dropped: sum(|stats| stats.dropped_e().float()),
            gate_mass: sum(MoeStats::gate_mass_e),
        };
        assert_eq!(found[0], expected);
        assert_eq!(expected.assigned.iter().sum::<f64>(), 2.0 * 2.0 * 1024.0 * 2.0);
        assert!(expected.dropped.iter().sum::<f64>() > 0.0);
        let none = vec![0.0; EXPERTS];
        let none = LayerLoad { layer: 2, assigned: none.clone(), dropped: none.clone(), gate_mass: none };
        assert_eq!(found[1], none, "this rank has no such layer");
        assert_eq!(found[2].assigned, values(other_layer.assigned_e().float()));
    }

    #[test]
    fn a_step_without_report_has_what_the_selection_bias_follows_and_nothing_where_there_is_none() {
        let layer = layer();
        let stats = stats(&layer);
        let assigned = |speed| {
            let loads = loads(speed);
            loads.begin(false);
            loads.record(0, 0, &stats);
            loads.record(1, 0, &stats);
            let [first, second] = layer_loads(&loads.sums(&[0, 1], EXPERTS), &[0, 1], EXPERTS).try_into().unwrap();
            assert_eq!((&first.assigned, first.gate_mass.iter().sum::<f64>()), (&second.assigned, 0.0));
            first.assigned
        };
        assert_eq!(assigned(0.001), values(stats.assigned_e().float()));
        assert_eq!(assigned(0.0), [0.0; EXPERTS]);
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
