//! The number of steps of a run whose length is given in epochs.

use crate::config::Config;
use crate::error::TrainError;
use checkpoint::Index;
use data::{Buckets, Dataset};

/// Sets `train.steps` to what `train.epochs` takes, if given, and validates what depends on it. In a resumed run, the
/// checkpoint's training counts toward these epochs.
///
/// # Errors
/// If the configuration cannot have that many steps, for example fewer than a learning rate decay takes.
pub(crate) fn set_steps(
    config: &mut Config,
    dataset: &Dataset,
    buckets: Option<&Buckets>,
    resumed: Option<&Index>,
) -> Result<(), TrainError> {
    let Some(epochs) = config.train.epochs.take() else { return Ok(()) };
    let (done, trained) = resumed.map_or((0, 0), |index| (index.step, index.tokens));
    let train = &config.train;
    let steps = match buckets {
        // Rows depend only on a step's number.
        Some(buckets) => {
            let batches: Vec<usize> = config.by_length().iter().map(|at| at.train.global_batch_size).collect();
            buckets.steps_in(epochs, &batches)
        }
        None => {
            let sequences =
                epochs * dataset.epoch_sequences(train.seq_len) as f64 - trained as f64 / train.seq_len as f64;
            done as f64 + (sequences / train.global_batch_size as f64).max(0.0)
        }
    };
    config.train.steps = (steps.ceil() as usize).max(1);
    config.validate()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    #[test]
    fn an_epoch_is_all_windows_once_and_what_a_checkpoint_has_done_counts() {
        let dataset = Dataset::new((0..1120).collect(), 16).unwrap(); // 1,008 train: 62 windows
        assert_eq!(dataset.epoch_sequences(16), 62);
        let steps = |epochs, batch, resumed: Option<&Index>| {
            let train = TrainConfig {
                epochs: Some(epochs),
                steps: 0,
                seq_len: 16,
                global_batch_size: batch,
                ..TrainConfig::default()
            };
            let mut config = Config { train, ..Config::default() };
            config.optim.warmup_steps = 0;
            set_steps(&mut config, &dataset, None, resumed).unwrap();
            assert_eq!(config.train.epochs, None);
            config.train.steps
        };
        assert_eq!([1.0, 0.5, 2.0].map(|epochs| steps(epochs, 4, None)), [16, 8, 31]);
        assert_eq!(steps(1e-9, 4, None), 1);
        // 10 steps of 4 sequences were made, so 22 of the epoch are left.
        let index = Index { step: 10, tokens: 640, ..Index::default() };
        assert_eq!(steps(1.0, 2, Some(&index)), 10 + 11);
        assert_eq!(steps(0.1, 2, Some(&index)), 10);
    }
}
