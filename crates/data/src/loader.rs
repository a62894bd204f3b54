//! Reading ahead: a thread cuts the batches of the next steps while the ranks compute the current one.

use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Batch, DataError};

/// Steps that are prepared ahead of time.
const AHEAD: usize = 2;

/// The micro-batches of a rank, step by step, cut ahead of time in a thread that also waits for the disk. Dropping the
/// loader ends the thread.
///
/// ```text
/// thread   |cut 0|cut 1|cut 2|   waits   |cut 3|        |cut 4|
/// trainer  |wait |   step 0              |   step 1     |   step 2
/// ```
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Result<Vec<Batch>, DataError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to read ahead. The thread calls `cut`, which returns a step's micro-batches, for each of `steps` in
    /// order. Nothing follows the first error.
    pub fn start(
        steps: Range<u64>,
        mut cut: impl FnMut(u64) -> Result<Vec<Batch>, DataError> + Send + 'static,
    ) -> Self {
        let (sender, batches) = sync_channel(AHEAD);
        let thread = std::thread::Builder::new().name("data loader".into()).spawn(move || {
            for step in steps {
                let batches = cut(step);
                let failed = batches.is_err();
                if sender.send(batches).is_err() || failed {
                    return; // the receiver is dropped, or nothing follows
                }
            }
        });
        Self { batches: Some(batches), thread: Some(thread.expect("the system has room for one more thread")) }
    }

    /// The micro-batches of the next step, and how long the caller waited for them.
    ///
    /// # Errors
    /// The error of cutting them. Nothing follows it.
    ///
    /// # Panics
    /// If all `steps` have been taken, or after an error.
    #[allow(clippy::should_implement_trait, reason = "a step without data is a bug of the trainer, not an end")]
    pub fn next(&mut self) -> Result<(Vec<Batch>, Duration), DataError> {
        let start = Instant::now();
        let batches = self.batches.as_ref().expect("only dropping takes the receiver");
        let batches = batches.recv().expect("the loader was started for this step, and its thread did not panic")?;
        Ok((batches, start.elapsed()))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.batches = None; // unblocks a thread that waits to send
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Dataset;

    #[test]
    fn the_loader_yields_what_is_cut_for_each_step_from_any_on_and_stops_when_dropped() {
        let dataset = Arc::new(Dataset::new((0..1000).collect(), 8).unwrap());
        let cut = |dataset: &Dataset, step| {
            let micro_batch = |first| dataset.train_batch(7, first..first + 2, 8).unwrap();
            vec![micro_batch(step * 4), micro_batch(step * 4 + 2)]
        };
        let shared = dataset.clone();
        let mut loader = Loader::start(5..1_000_000, move |step| Ok(cut(&shared, step)));
        for step in 5..9 {
            assert_eq!(loader.next().unwrap().0, cut(&dataset, step));
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }

    #[test]
    fn an_error_comes_after_the_steps_before_it() {
        let cut = |step| if step < 7 { Ok(vec![]) } else { Err(DataError::NoSource) };
        let mut loader = Loader::start(5..1_000_000, cut);
        assert!(loader.next().is_ok() && loader.next().is_ok());
        assert!(matches!(loader.next(), Err(DataError::NoSource)));
    }
}
