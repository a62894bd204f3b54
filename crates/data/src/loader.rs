//! Reading ahead: a thread cuts the batches of the next steps while the ranks compute this one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Batch, Dataset};

/// Steps that are ready before they are asked for.
const AHEAD: usize = 2;

/// The micro-batches of a rank, step by step, cut ahead of time in a thread that also takes the page faults of the mapped
/// files. Dropping it ends the thread.
///
/// ```text
/// thread   |cut 0|cut 1|cut 2|   waits   |cut 3|        |cut 4|
/// trainer  |wait |   step 0              |   step 1     |   step 2
/// ```
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Vec<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to cut the batches of `steps`; `micro_batches` says which sequences of the run those of a step are.
    pub fn start(
        dataset: Arc<Dataset>,
        seed: u64,
        seq_len: usize,
        steps: Range<u64>,
        micro_batches: impl Fn(u64) -> Vec<Range<u64>> + Send + 'static,
    ) -> Self {
        let (sender, batches) = sync_channel(AHEAD);
        let thread = std::thread::Builder::new().name("data loader".into()).spawn(move || {
            for step in steps {
                let cut = |sequences| dataset.train_batch(seed, sequences, seq_len);
                if sender.send(micro_batches(step).into_iter().map(cut).collect()).is_err() {
                    return; // the receiver is dropped
                }
            }
        });
        Self { batches: Some(batches), thread: Some(thread.expect("the system has room for one more thread")) }
    }

    /// The micro-batches of the next step, and how long they had to be waited for.
    ///
    /// # Panics
    /// If all `steps` have been taken.
    #[allow(clippy::should_implement_trait, reason = "a step without data is a bug of the trainer, not an end")]
    pub fn next(&mut self) -> (Vec<Batch>, Duration) {
        let start = Instant::now();
        let batches = self.batches.as_ref().expect("only dropping takes the receiver");
        let batches = batches.recv().expect("the loader was started for this step, and its thread did not panic");
        (batches, start.elapsed())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.batches = None; // so that a thread that waits to send stops
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_yields_what_the_dataset_cuts_from_any_step_on_and_stops_when_dropped() {
        let dataset = Arc::new(Dataset::new((0..1000).collect(), 8).unwrap());
        let micro_batches = |step| vec![step * 4..step * 4 + 2, step * 4 + 2..step * 4 + 4];
        let mut loader = Loader::start(dataset.clone(), 7, 8, 5..1_000_000, micro_batches);
        for step in 5..9 {
            let (batches, _) = loader.next();
            let expected = micro_batches(step).into_iter().map(|range| dataset.train_batch(7, range, 8));
            assert!(batches.into_iter().eq(expected));
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }
}
