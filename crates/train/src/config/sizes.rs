//! Checks of products of sizes, computed in floats, which do not overflow.

use super::validate::require;
use super::{CheckpointConfig, Config};
use crate::error::TrainError;
use model::Size;

/// Upper limit of a model's parameters, a tensor's numbers and a run's tokens. No machine has memory for more, and
/// products of validated sizes do not overflow.
const MOST: f64 = (1u64 << 53) as f64;

/// The list of a step's operations has some for each micro-batch and each block.
const MAX_MICRO_BATCHES: usize = 1 << 15;

impl Config {
    /// Whether checkpoints are written before the last step: by number of steps, by time, or for the best validations,
    /// the first of which always counts.
    pub(crate) fn saves_on_the_way(&self) -> bool {
        // Until the data determines how many steps an epoch has, there may be any number.
        let is_unknown = self.train.epochs.is_some() && self.train.steps == 0;
        let before_the_end = |every: usize| every > 0 && (every < self.train.steps || is_unknown);
        let CheckpointConfig { every, every_minutes, keep, keep_every, keep_best, .. } = self.checkpoint;
        let val_every = if keep_best { self.train.val_every } else { 0 };
        keep > 0 && (every_minutes.is_some() || [every, keep_every, val_every].into_iter().any(before_the_end))
    }

    /// Rejects sizes whose product is too large, naming the largest.
    pub(super) fn validate_sizes(&self) -> Result<(), TrainError> {
        let family = self.family();
        let (shape, parameters) = (family.sizes(), family.parameter_count());
        require(parameters <= MOST, || {
            let (key, value) = largest(&shape);
            format!("{key} is {value}, which makes a model of {parameters:.1e} parameters: lower it")
        })?;

        let train = &self.train;
        let (batch, seq_len) = (("train.global_batch_size", train.global_batch_size), ("train.seq_len", train.seq_len));
        // Steps are 0 until the data determines how many an epoch has.
        let run = [("train.steps", train.steps.max(1)), batch, seq_len];
        let tokens = product(&run);
        require(tokens <= MOST, || {
            let (key, value) = largest(&run);
            format!("{key} is {value}, which makes a run of {tokens:.1e} tokens: lower it")
        })?;

        let micro_batches = self.micro_batches();
        require(micro_batches <= MAX_MICRO_BATCHES, || {
            format!(
                "train.micro_batch_size is {}, which makes {micro_batches} micro-batches of a rank's share of train.global_batch_size: raise \
                 it, or lower the batch, to at most {MAX_MICRO_BATCHES}",
                self.micro_batch_size()
            )
        })?;

        let key = if train.micro_batch_size.is_some() { "train.micro_batch_size" } else { "train.global_batch_size" };
        let micro = (key, self.micro_batch_size());
        // A vocabulary that is not known yet is hardly larger.
        let vocab = if family.vocab_size() == 0 { 1 << 20 } else { family.vocab_size() };
        let widths = [vec![("model.vocab_size", vocab)]].into_iter().chain(family.activations(seq_len));
        let tensors = widths.map(|width| [&[micro, seq_len][..], &width].concat());
        let worst = tensors.max_by(|a, b| product(a).total_cmp(&product(b))).expect("a model has a vocabulary");
        require(product(&worst) <= MOST, || {
            let sizes: Vec<String> = worst.iter().map(|(key, value)| format!("{key} {value}")).collect();
            format!("{} make a tensor of {:.1e} numbers: lower one of them", sizes.join(" x "), product(&worst))
        })
    }
}

fn product(sizes: &[Size]) -> f64 {
    sizes.iter().map(|(_, value)| *value as f64).product()
}

fn largest(sizes: &[Size]) -> Size {
    *sizes.iter().max_by_key(|(_, value)| *value).expect("there are sizes")
}
