//! Reading ahead: a thread cuts the batches of the next steps while the ranks compute the current one.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use crate::DataError;

/// Steps that are prepared ahead of time.
const AHEAD: usize = 2;

/// An iterator over what is cut for each step, such as a rank's micro-batches, cut ahead of time in a thread that also
/// waits for the disk. It ends with the last step, or after the first error. Dropping it ends the thread.
///
/// ```text
/// thread   |cut 0|cut 1|cut 2|   waits   |cut 3|        |cut 4|
/// trainer  |wait |   step 0              |   step 1     |   step 2
/// ```
#[derive(Debug)]
pub struct Loader<T> {
    batches: Option<Receiver<Result<T, DataError>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Loader<T> {
    /// Starts to read ahead. The thread calls `cut` for each of `steps` in order. Nothing follows the first error.
    ///
    /// # Panics
    /// If the system has no room for one more thread.
    pub fn start(steps: Range<u64>, mut cut: impl FnMut(u64) -> Result<T, DataError> + Send + 'static) -> Self {
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
}

impl<T> Iterator for Loader<T> {
    type Item = Result<T, DataError>;

    /// What was cut for the next step; waits until it is.
    ///
    /// # Panics
    /// If cutting it panicked.
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batches.as_ref().expect("only dropping takes the receiver").recv().ok();
        if next.is_none()
            && let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
        {
            resume_unwind(panic);
        }
        next
    }
}

impl<T> Drop for Loader<T> {
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
            assert_eq!(loader.next().unwrap().unwrap(), cut(&dataset, step));
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&dataset), 1);
    }

    #[test]
    fn the_loader_ends_with_the_last_step_or_after_an_error() {
        let cut = |step| if step < 7 { Ok(step) } else { Err(DataError::NoSource) };
        assert!(Loader::start(5..7, cut).map(Result::unwrap).eq(5..7));
        let mut loader = Loader::start(5..1_000_000, cut);
        assert!(matches!((loader.next(), loader.next()), (Some(Ok(5)), Some(Ok(6)))));
        assert!(matches!(loader.next(), Some(Err(DataError::NoSource))));
        assert!(loader.next().is_none() && loader.next().is_none());
    }

    #[test]
    #[should_panic(expected = "out of order")]
    fn a_panic_while_cutting_is_passed_on() {
        let cut = |step| if step == 0 { Ok(step) } else { panic!("out of order") };
        Loader::start(0..2, cut).for_each(drop);
    }
}
